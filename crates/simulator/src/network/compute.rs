//! Compute nodes of a disaggregated peer: a peer over pooled memory and a storage node, as production composes it.
//!
//! 1. The node waits until it is to be the primary ([`super::succession`] says so).
//! 2. It asks the storage node for the newest epoch and opens the channel under the next one, then the memory, which fences
//!    whoever was primary before; then it replays what the savepoint does not cover.
//! 3. It commits until it is fenced or fails. Nothing else tells it that it has been replaced.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::{Bytes, Epoch, ErrorKind, rt};
use chain::{NodeStores, Peer, States, Stores};
use pool::{AddressSpace, Donor, SpaceOptions};
use state::{Disaggregated, DisaggregatedSettings, WorldState};
use storage::StateStore;

use super::Network;
use super::members::CHANNEL;
use super::nodes::{Ended, peer_options, serve_peer};
use super::pools::{MEMORY_TOKEN, STORAGE_TOKEN, storage_address};
use crate::mutant::{LyingStores, Mutant};
use crate::scenario;

/// How often a spare looks whether it is to be the primary.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The name by which memory nodes know a peer.
pub fn owner(place: usize) -> String {
    format!("org{}.peer", place + 1)
}

/// The memory of a compute node's time as primary.
pub struct Pooled {
    network: Arc<Network>,
    place: usize,
    epoch: Epoch,
    opened: Mutex<Option<(AddressSpace, Arc<Disaggregated>)>>,
}

impl Pooled {
    /// The memory and the state in it, once they are open.
    pub fn opened(&self) -> Option<(AddressSpace, Arc<Disaggregated>)> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// [`Pooled`] as a peer asks for it.
struct Opens(Arc<Pooled>);

#[async_trait]
impl States for Opens {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, chain::Error> {
        let Pooled { network, place, epoch, opened } = &*self.0;
        let pools = network.scenario.forms[*place].pools().expect("only disaggregated peers have memory");
        let donor = |address: String| Donor { address, token: MEMORY_TOKEN };
        let options = SpaceOptions {
            owner: owner(*place),
            epoch: *epoch,
            fabric: Arc::new(network.fabric.clone()),
            donors: network.scenario.memory_nodes(*place).into_iter().map(donor).collect(),
            section_bytes: pools.section_bytes,
            budget_bytes: pools.sections_max * pools.section_bytes,
        };
        let settings = DisaggregatedSettings {
            metadata_cache_bytes: pools.metadata_cache_bytes,
            data_cache_bytes: pools.data_cache_bytes,
            delta_bytes_max: network.scenario.delta_bytes,
            view_lag_blocks_max: pools.view_lag_blocks_max,
            savepoint_lag_blocks_max: pools.savepoint_lag_blocks_max,
            ..DisaggregatedSettings::default()
        };
        let failed = |error: pool::Error| chain::Error::Io {
            what: "pooled memory".to_owned(),
            cause: error.to_string(),
            kind: error.kind(),
        };
        let space = AddressSpace::open(options).await.map_err(failed)?;
        let state = Arc::new(Disaggregated::open(Arc::new(space.clone()), rows, settings).await?);
        *opened.lock().unwrap_or_else(PoisonError::into_inner) = Some((space, Arc::clone(&state)));
        Ok(state)
    }
}

/// A compute node's role.
pub async fn endorse_and_commit(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let place = network.place(&name);
    while network.primary(place) != name {
        rt::sleep(LOOK_AGAIN).await;
    }
    let (address, token) = (storage_address(&scenario::storage(place)), Bytes::from_static(STORAGE_TOKEN));
    let kept = match Mutant::EpochKept.is_in(&network, place) {
        true => storage::node::newest_epoch(&address, &token, CHANNEL).await?,
        false => Epoch(0),
    };
    let epoch = match kept {
        Epoch(0) => storage::node::begin_epoch(&address, &token, CHANNEL).await?,
        kept => kept,
    };
    let pooled = Pooled { network: Arc::clone(&network), place, epoch, opened: Mutex::default() };
    let pooled = Arc::new(pooled);
    let stores: Arc<dyn Stores> =
        Arc::new(NodeStores { address, token, epoch, states: Arc::new(Opens(Arc::clone(&pooled))) });
    let stores = LyingStores::over(&network, place, stores);
    let _handle = network.pooled.show(&name, Arc::clone(&pooled));
    let peer = Peer::open(peer_options(&network, &name, place, stores)).await?;
    let close = async |in_order| {
        let opened = pooled.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((space, _)) = opened.filter(|_| in_order) {
            // Others may have the memory at once.
            space.close().await;
        }
    };
    serve_peer(&network, &name, place, Some(epoch), peer, close).await.map_err(|ended| match ended.kind {
        // Only a later epoch fences.
        ErrorKind::Fenced => Ended { reason: format!("it is fenced: {}", ended.reason), ..ended },
        _ => ended,
    })
}
