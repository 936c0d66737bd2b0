//! The chain: from a client's proposal to a committed transaction, with one folder per phase.
//!
//! A peer joins a channel, stops, and continues where it stopped:
//!
//! ```
//! use std::sync::Arc;
//!
//! use base::rt::{disk::Directory, simulation::Simulation};
//! use chain::{LocalStores, Peer, PeerSetup};
//! use contract::ContractRegistry;
//! use identity::MemberRole;
//! use identity::issue::{CertificateTerms, IssuingOrganization};
//! use ledger::config::{BatchLimits, Capabilities, ConsensusConfig, EndorsementRule, GenesisSpec, OrganizationSpec};
//! use prost::Message as _;
//! use storage::{GroupSync, tables::ModelEngine};
//!
//! let report = Simulation::new(7).run(|_sim| async {
//!     let found = |msp: &str, domain: &str| {
//!         IssuingOrganization::create(msp, domain, &CertificateTerms::seeded([7; 32])).expect("both names are valid")
//!     };
//!     let spec = |organization: &IssuingOrganization| OrganizationSpec {
//!         name: organization.msp_id().to_string(),
//!         msp_id: organization.msp_id().to_string(),
//!         msp: organization.definition().encode_to_vec().into(),
//!         anchor_peers: vec![],
//!         endpoints: vec!["orderer.example.com:7050".to_owned()],
//!     };
//!     let (org, ordering) = (found("Org1MSP", "org1.example.com"), found("OrdererMSP", "example.com"));
//!     let genesis = GenesisSpec {
//!         channel: "trade".to_owned(),
//!         application: vec![spec(&org)],
//!         orderers: vec![spec(&ordering)],
//!         endorsement: EndorsementRule::Any,
//!         batch: BatchLimits::default(),
//!         consensus: ConsensusConfig { kind: "solo".to_owned(), metadata: Default::default(), maintenance: false },
//!         capabilities: Capabilities::newest(),
//!     };
//!     let genesis = genesis.build().expect("the specification is usable");
//!
//!     let ledgers = Directory::open("ledgers").await.expect("the simulated disk has space");
//!     let tables = Directory::open("tables").await.expect("the simulated disk has space");
//!     let tables = ModelEngine::open(tables).await.expect("the directory is empty");
//!     let setup = PeerSetup {
//!         name: "peer0".to_owned(),
//!         signer: org.issue(MemberRole::Peer, "peer0").expect("the name is valid"),
//!         stores: Arc::new(LocalStores::new("peer0", ledgers, GroupSync::new(), tables)),
//!         registry: ContractRegistry::native(),
//!         definitions: Default::default(),
//!         members: Default::default(), // No other peers, so no private data travel.
//!         orderers: vec!["orderer".to_owned()].into(), // Nobody answers there yet; the peer keeps trying.
//!         settings: Default::default(),
//!     };
//!     let peer = Peer::open(setup.clone()).await.expect("the disk is empty");
//!     let channel = peer.join(&genesis).await.expect("the genesis block is valid");
//!     assert_eq!(channel.height(), 1); // The genesis block is durable and applied.
//!     peer.stop().await.expect("the state is persisted");
//!
//!     let again = Peer::open(setup).await.expect("the ledger is intact");
//!     again.channel("trade").map(|channel| channel.height())
//! });
//! assert_eq!(report.expect("the run succeeds").value, Some(1));
//! ```
//!
//! `tests/chain/end_to_end.rs` continues from here: an orderer, two peers, and transactions from proposal to commit.
//!
//! # Phases
//! 1. [`endorse`]: a peer runs the contract that a proposal names against one snapshot of its state, and signs the
//!    read-write set.
//! 2. [`order`]: an orderer puts endorsed transactions into blocks, makes each block durable and hands it to the peers.
//! 3. [`validation`]: a peer checks signatures and endorsements of a block's transactions in parallel, and conflicts in the
//!    order of the block.
//! 4. [`commit`]: the peer stores the block with its verdicts, applies the writes of valid transactions to the world state,
//!    and notifies the callers that wait.
//!
//! Each phase hands a transaction's read-write set to the next, in Fabric's encoding ([`ledger::rwset`]). [`history`] returns the
//! earlier values of a key. [`peer`] and [`channel`] assemble the phases of an organisation's peer, and [`compute_node`]
//! gives it several compute nodes. An [`order::Orderer`] runs on its own.
//!
//! # Guarantees
//!
//! * Peers that receive the same blocks reach the same validation code for every transaction, and the same state.
//! * A block is durable at a peer before it is applied, and applied before any caller sees it ([`Channel`]).
//! * An orderer shows a block to peers only once the block is committed; no crash replaces a block that a peer has seen
//!   ([`order`]).
//! * A transaction takes effect at most once: a later one with the same id is marked as a duplicate.
//! * Of a peer's compute nodes, only the one with the newest epoch appends blocks ([`replica::failover`]).
//! * Queues, batches, links and waiting callers are bounded. A request that exceeds a bound gets an error that the caller
//!   can act on.
//!
//! # What it needs around it
//!
//! * Above: `gateway` brings proposals and envelopes ([`endorse::Endorse`], [`order::Broadcast`]) and reads channels
//!   ([`view`]), in the same process or over links ([`remote`]). `node` composes peers and orderers.
//! * Below: `replica` decides which compute node of a peer is its primary, `block_transport` carries blocks from orderers
//!   to peers, `storage` keeps blocks and rows, `ordered_log` replicates the blocks of several orderers, `contract` runs
//!   contracts, `identity` determines who a signer is, `ledger` reads and writes Fabric's encodings.
//! * This crate itself uses neither verbs nor gRPC. It reads and writes state through [`state::WorldState`]; the gateway
//!   translates errors into the status codes of its services.
#![deny(missing_docs)]

pub mod channel;
pub mod commit;
pub mod compute_node;
pub mod early_abort;
pub mod endorse;
pub mod error;
pub mod events;
mod fault;
pub mod history;
mod local_member;
pub mod order;
pub mod peer;
pub mod private_block;
pub mod remote;
pub mod stores;
pub mod view;

// Tests and examples share their network; inside the crate it finds this crate under its external name.
#[cfg(test)]
extern crate self as chain;
#[cfg(test)]
#[path = "../tests/chain/support/mod.rs"]
mod support;

pub use channel::Channel;
pub use error::Error;
pub use local_member::LocalMember;
pub use peer::{Peer, PeerSetup};
pub use stores::{ChannelStores, LocalStores, NodeStores, PeerStores, WorldStateFactory};
