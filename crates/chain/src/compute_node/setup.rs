//! The configuration of a compute node, and the memory interface that its peer gives it.

use std::sync::Arc;

use async_trait::async_trait;
use base::Epoch;
use base::rt::net::Parties;
use block_transport::SourceAddresses;
use contract::ContractRegistry;
use identity::Signer;
use ledger::Block;
use replica::FailoverTimeouts;
use replica::load::NodeAddresses;
use state::DisaggregatedConfig;
use state::disaggregated::memory::{Memory, MemoryError, ReadOnlyMemory};
use storage::WatermarkFile;
use storage_copies::CopySet;

use crate::Error;
use crate::peer::PeerConfig;
use private_data::MemberPeers;
use rules::definitions::ContractDefinitions;

/// The remote memory of a peer, as one of its compute nodes reaches it.
#[async_trait]
pub trait PeerMemory: Send + Sync + 'static {
    /// Opens the memory for writing, and revokes all access that was given under earlier epochs.
    ///
    /// # Errors
    /// If it cannot be opened.
    async fn open(&self, epoch: Epoch) -> Result<Arc<dyn Memory>, Error>;

    /// Opens the memory for reading, with no section yet.
    ///
    /// # Errors
    /// If it cannot be opened.
    async fn open_read_only(&self) -> Result<Arc<dyn ReadOnlyMemory>, MemoryError>;

    /// Closes the memory that was opened last.
    async fn close(&self);
}

/// What a compute node needs to run beside the other compute nodes of its peer.
#[derive(Clone)]
pub struct ComputeNodeSetup {
    /// For logs.
    pub name: String,
    /// Signs endorsements: the same identity at all compute nodes of the peer.
    pub signer: Signer,
    /// The contracts that this node can run.
    pub registry: ContractRegistry,
    /// The contracts of the channel, as [`crate::PeerSetup::definitions`].
    pub definitions: ContractDefinitions,
    /// The genesis block of the one channel that the node takes part in.
    pub genesis: Block,
    /// Where orderers serve blocks.
    pub orderers: SourceAddresses,
    /// The peers of other organisations, with which private data are exchanged.
    pub members: Arc<MemberPeers>,
    /// How the peer checks proposals and commits blocks.
    pub settings: PeerConfig,
    /// The peer's storage nodes.
    pub storage: CopySet,
    /// Where this node answers the others while it is the primary; `None` if it never becomes the primary.
    pub address: Option<String>,
    /// Where the other candidates answer while they are the primary.
    pub others: Vec<String>,
    /// Where this node answers gateways, for the primary to tell them.
    pub addresses: NodeAddresses,
    /// The node's durable note of how far the channel has come. The node does not take over if the storage node has
    /// less than the note.
    pub watermark: Option<Arc<WatermarkFile>>,
    /// The other compute nodes, by the names that their links prove. Only these may follow the state, and only these
    /// may verify transactions for this node.
    pub parties: Parties,
    /// The peer's remote memory, as this node reaches it.
    pub memory: Arc<dyn PeerMemory>,
    /// The settings of the world state in that memory.
    pub state: DisaggregatedConfig,
    /// How long the node may be without a lease before it takes over; see [`replica::FAILOVER_TIMEOUTS`].
    pub failover_timeouts: FailoverTimeouts,
}
