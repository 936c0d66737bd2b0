//! The pooled memory of a compute node, and world states in it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::Parties;
use base::{Epoch, ErrorKind, rt};
use chain::compute_node::PeerMemory;
use chain::stores::WorldStateFactory;
use pool::{AddressSpace, AddressSpaceConfig, Donor, FindDonor, ReadOnlySpace, ReadOnlySpaceConfig};
use replica::load::NodeAddresses;
use rma::Provider;
use state::disaggregated::memory::{MemoryError, ReadOnlyMemory};
use state::{Disaggregated, DisaggregatedConfig, WorldState};
use storage::StateStore;
use storage_copies::CopySet;

use crate::control::budget::{self, MemorySettings};
use crate::network::NodeError;
use crate::process::file::DonorFile;

/// How often memory nodes are probed for whether they still answer.
const PROBE_PERIOD: Duration = Duration::from_secs(2);

/// Pooled memory and the storage node of a disaggregated peer.
#[derive(Clone)]
pub(crate) struct RemoteBackends {
    /// The storage nodes.
    pub storage: CopySet,
    /// The name by which memory nodes know this peer.
    pub owner: String,
    pub provider: Arc<dyn Provider>,
    pub donors: Vec<Donor>,
    pub section_bytes: u64,
    /// Bytes of memory that the configuration allows the peer.
    pub budget_bytes: u64,
    /// The folder of a budget that the operator set later. The compute nodes of a peer share it where they can.
    pub folder: PathBuf,
    /// The node's own folder, for the channel's watermark: how many blocks the storage node has confirmed.
    pub watermark_folder: PathBuf,
    /// How the node reaches the peer's other compute nodes, if there are any.
    pub peer_nodes: Option<PeerNodes>,
    /// Whether other peers run in the same process.
    pub shares_process: bool,
    pub state: DisaggregatedConfig,
}

impl RemoteBackends {
    /// What the operator has said about the peer's memory.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn settings(&self) -> Result<MemorySettings, NodeError> {
        budget::load(&self.folder, self.budget_bytes, self.section_bytes)
    }

    /// The configured memory nodes, and those that have joined.
    fn donors_with(&self, settings: &MemorySettings) -> Vec<Donor> {
        let mut donors = self.donors.clone();
        let is_new = |joined: &&DonorFile| donors.iter().all(|donor| donor.address != joined.address);
        let joined: Vec<Donor> = settings.joined.iter().filter(is_new).map(DonorFile::donor).collect();
        donors.extend(joined);
        donors
    }
}

/// The compute nodes of a peer that has several.
#[derive(Clone)]
pub(crate) struct PeerNodes {
    /// Address at which this node answers the others while it is the primary; `None` if it never becomes the primary.
    pub address: Option<String>,
    /// Addresses at which the other candidates answer.
    pub others: Vec<String>,
    /// The identities of the others, as their links prove them.
    pub parties: Parties,
    /// Where this node answers gateways, as it tells its primary.
    pub addresses: NodeAddresses,
}

/// Pooled memory.
pub(super) struct PooledMemory {
    pub remote: RemoteBackends,
    space: Mutex<Option<AddressSpace>>,
    /// Set where the node is the only one of its peer.
    state: Mutex<Weak<Disaggregated>>,
}

/// Opens world states in pooled memory, under one epoch.
pub(super) struct PooledStates {
    pub memory: Arc<PooledMemory>,
    pub epoch: Epoch,
}

#[async_trait]
impl WorldStateFactory for PooledStates {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, chain::Error> {
        if self.memory.space().is_some() {
            return Err(failed(
                "the memory of an owner serves one channel, and it is open".to_owned(),
                ErrorKind::Rejected,
            ));
        }
        let memory = PeerMemory::open(&*self.memory, self.epoch).await?;
        let state = Arc::new(Disaggregated::open(memory, rows, self.memory.remote.state.clone()).await?);
        *self.memory.state.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&state);
        Ok(state)
    }
}

fn failed(cause: String, kind: ErrorKind) -> chain::Error {
    chain::Error::Io { what: "pooled memory".to_owned(), cause, kind }
}

#[async_trait]
impl PeerMemory for PooledMemory {
    async fn open(&self, epoch: Epoch) -> Result<Arc<dyn state::disaggregated::memory::Memory>, chain::Error> {
        let RemoteBackends { owner, provider, section_bytes, .. } = self.remote.clone();
        let settings = self.remote.settings().map_err(|error| failed(error.to_string(), error.kind()))?;
        let donors = self.remote.donors_with(&settings);
        let MemorySettings { bytes: budget_bytes, vacated, .. } = settings;
        let options = AddressSpaceConfig { owner, epoch, provider, donors, section_bytes, budget_bytes };
        let space =
            AddressSpace::adopt_headed(options).await.map_err(|error| failed(error.to_string(), error.kind()))?;
        for address in vacated {
            space.set_vacated(&address, true);
        }
        *self.lock() = Some(space.clone());
        Ok(Arc::new(space))
    }

    async fn open_read_only(&self) -> Result<Arc<dyn ReadOnlyMemory>, MemoryError> {
        let RemoteBackends { owner, provider, donors, section_bytes, .. } = self.remote.clone();
        let remote = self.remote.clone();
        // The primary has stored a memory node that joins before it has sections there.
        let find_donor: FindDonor = Arc::new(move |address| {
            let settings = remote.settings().inspect_err(|error| tracing::warn!(%error, "a memory node is not found"));
            remote.donors_with(&settings.ok()?).into_iter().find(|donor| donor.address == address)
        });
        let options = ReadOnlySpaceConfig { owner, provider, donors, section_bytes, find_donor };
        let lent = ReadOnlySpace::open(options).await;
        Ok(Arc::new(lent.map_err(|error| MemoryError::Failed(error.to_string()))?))
    }

    async fn close(&self) {
        let space = self.lock().take();
        if let Some(space) = space {
            // What is in it stays, for the next primary to adopt. Other owners get it when the peer stays away.
            space.leave();
        }
    }
}

impl PooledMemory {
    /// Opens nothing yet.
    pub fn new(remote: RemoteBackends) -> PooledMemory {
        PooledMemory { remote, space: Mutex::default(), state: Mutex::default() }
    }

    /// Probes the memory nodes, so that health shows one that hangs even while nothing requests memory from it.
    pub async fn probe(memory: Weak<PooledMemory>) {
        loop {
            rt::sleep(PROBE_PERIOD).await;
            let Some(memory) = memory.upgrade() else { return };
            if let Some(space) = memory.space() {
                space.probe().await;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<AddressSpace>> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address space, if it is open.
    pub fn space(&self) -> Option<AddressSpace> {
        self.lock().clone()
    }

    /// The world state that [`PooledStates`] has opened, if it is still in use.
    pub fn state(&self) -> Option<Arc<Disaggregated>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }
}
