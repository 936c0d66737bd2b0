//! Encodes, hashes and checks everything that a ledger contains: blocks, transactions and channel configuration.
//!
//! ```
//! use base::{BlockNumber, Bytes};
//! use identity::MemberRole;
//! use identity::issue::{CertificateTerms, IssuingOrganization};
//! use ledger::block::{Block, OrdererMetadata};
//! use ledger::config::{BatchLimits, Capabilities, ConsensusConfig, EndorsementRule, GenesisSpec, OrganizationSpec};
//! use ledger::verify::{LedgerVerifier, VerifyConfig};
//! use prost::Message;
//!
//! // An organisation that both endorses and orders founds a channel.
//! let organization = IssuingOrganization::create("Org1MSP", "org1.example.com", &CertificateTerms::seeded([7; 32]))?;
//! let member = OrganizationSpec {
//!     name: "Org1MSP".to_owned(),
//!     msp_id: "Org1MSP".to_owned(),
//!     msp: organization.definition().encode_to_vec().into(),
//!     anchor_peers: Vec::new(),
//!     endpoints: Vec::new(),
//! };
//! let channel = GenesisSpec {
//!     channel: "trade".to_owned(),
//!     application: vec![member.clone()],
//!     orderers: vec![member],
//!     endorsement: EndorsementRule::Any,
//!     batch: BatchLimits::default(),
//!     consensus: ConsensusConfig { kind: "solo".to_owned(), metadata: Bytes::new(), maintenance: false },
//!     capabilities: Capabilities::newest(),
//! };
//! let genesis = channel.build()?;
//!
//! // Its orderer puts an envelope into block 1 and signs the block.
//! let (payload, signature) = (Bytes::from_static(b"payload"), Bytes::from_static(b"signature"));
//! let envelope: Bytes = proto::common::Envelope { payload, signature }.encode_to_vec().into();
//! let orderer = organization.issue(MemberRole::Orderer, "orderer0")?;
//! let block = Block::build(BlockNumber(1), Some(genesis.hash()), &[envelope]);
//! let block = block.sign(&orderer, &OrdererMetadata::default());
//!
//! // The receiver of the bytes checks number, hashes and signatures.
//! let mut verifier = LedgerVerifier::new(VerifyConfig { validated: false, creators: false });
//! verifier.check(&genesis)?;
//! verifier.check(&Block::parse(&block.to_bytes())?)?;
//! assert_eq!(verifier.report().block_hash, Some(block.hash()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! * Blocks, headers, metadata and hashes are Hyperledger Fabric's, byte for byte; `docs/formats/fabric-blocks.md` shows
//!   their layout.
//! * Hashes and signatures are checked over bytes as they were received, never over a message encoded again.
//! * Malformed bytes from outside decode into an error that names the fault; nothing here panics on them.
//! * Equal configurations are read, checked and compiled to the same [`ChannelConfig`] at every peer.
//!
//! # What it needs around it
//!
//! * `identity` checks signatures and policies; `proto` provides the wire types; `storage` provides the block store that
//!   [`verify()`](verify::verify) reads, and the tables whose rows [`BlockMaterializer`] writes.
//! * `chain` orders, validates and commits blocks with these types; `gateway` and `node` read configurations and
//!   transactions; the command line checks whole ledgers.
//! * This crate does not know the world state. It leaves to `chain` the endorsement policies of contracts, duplicate
//!   transaction ids, and conflicts between transactions.
//!
//! # What is here
//!
//! * [`block`]: building, reading, hashing, signing and checking blocks.
//! * [`transaction`]: reading an endorser transaction in place, and the checks that need no state.
//! * [`rwset`]: read-write sets, recorded and decoded in Fabric's encoding.
//! * [`lifecycle`]: the definitions of contracts, as they stand in the state.
//! * [`namespace`]: the namespaces of the state.
//! * [`materialize`]: the rows that a stored block writes.
//! * [`config`]: reading a channel's configuration, deciding which one may follow it, and making genesis blocks.
//! * [`mod@verify`]: checking a whole stored ledger.
#![deny(missing_docs)]

pub mod block;
pub mod code;
pub mod config;
pub mod error;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod golden;
pub mod hash;
pub mod lifecycle;
pub mod materialize;
pub mod namespace;
pub mod proposal;
pub mod rwset;
pub mod transaction;
pub mod verify;
pub mod wire;

pub use block::{Block, CommitHasher, EncodedBlock};
pub use code::Code;
pub use config::ChannelConfig;
pub use error::Error;
pub use hash::{Hash, sha256};
pub use materialize::BlockMaterializer;
pub use transaction::Transaction;
