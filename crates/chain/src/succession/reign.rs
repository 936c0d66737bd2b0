//! A compute node's time as the primary, under one epoch.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use base::Epoch;
use base::rt::channel::{WatchReceiver, watch};
use base::rt::net::{Door, Link, Parties};
use base::rt::{self, AbortOnDrop};
use futures_util::future::{Either, select};
use state::{Disaggregated, WorldState};
use std::pin::pin;
use storage::{StateStore, Watermark};

use super::around::greeting;
use super::{ComputeNodeOptions, NODES_MAX, Office, Shared};
use crate::stores::{ChannelStores, NodeStores, States, Stores};
use crate::{Channel, Error, Peer, PeerOptions};

/// Links of other nodes at a time.
const LINKS_MAX: usize = 2 * NODES_MAX;

/// A primary.
pub(super) struct Reign {
    epoch: Epoch,
    peer: Arc<Peer>,
    channel: Arc<Channel>,
    /// Blocks that were there when it began.
    first: u64,
    opened: Arc<Opened>,
    office: Arc<Office>,
    _tasks: Vec<AbortOnDrop<()>>,
}

/// The peer's stores of this epoch: of the one channel that the epoch is of.
struct ReignStores {
    stores: NodeStores,
    channel: String,
    office: Arc<Office>,
}

#[async_trait]
impl Stores for ReignStores {
    async fn channels(&self) -> Result<Vec<String>, Error> {
        let mut channels = self.stores.channels().await?;
        channels.retain(|channel| *channel == self.channel);
        Ok(channels)
    }

    async fn open(&self, channel: &str) -> Result<ChannelStores, Error> {
        self.stores.open(channel).await
    }

    fn office(&self) -> Option<Arc<Office>> {
        Some(self.office.clone())
    }

    async fn stopped(&self, channel: &str, durable: Watermark) {
        self.stores.stopped(channel, durable).await;
    }
}

/// A state, and the rows that it was opened over.
type Found = (Weak<Disaggregated>, Arc<dyn StateStore>);

/// The state of this epoch, once it is open.
struct Opened {
    options: ComputeNodeOptions,
    epoch: Epoch,
    found: Mutex<Option<Found>>,
}

#[async_trait]
impl States for Opened {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, Error> {
        let memory = self.options.memory.open(self.epoch).await?;
        let state = Disaggregated::open(memory, rows.clone(), self.options.state.clone()).await?;
        let state = Arc::new(state);
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some((Arc::downgrade(&state), rows));
        Ok(state)
    }
}

impl Opened {
    fn state(&self) -> Option<Arc<Disaggregated>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.0.upgrade()
    }

    fn rows(&self) -> Option<Arc<dyn StateStore>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, rows)| rows.clone())
    }
}

impl Reign {
    /// Steps 4 and 5. When it fails or is dropped, the peer that it has opened so far ends.
    pub(super) async fn begin(shared: &Arc<Shared>, epoch: Epoch) -> Result<Reign, Error> {
        let options = &shared.options;
        let (state_is_open, open) = watch(None);
        let serving = serve(&options.address, &options.parties, epoch, open).await?;
        let office = Arc::new(Office::default());
        let opened = Arc::new(Opened { options: options.clone(), epoch, found: Mutex::default() });
        let stores = NodeStores {
            address: options.storage.clone(),
            token: options.token.clone(),
            epoch,
            states: opened.clone(),
            watermark: options.watermark.clone(),
        };
        let peer = Peer::open(PeerOptions {
            name: options.name.clone(),
            signer: options.signer.clone(),
            stores: Arc::new(ReignStores { stores, channel: shared.channel_name.clone(), office: office.clone() }),
            registry: options.registry.clone(),
            definitions: options.definitions.clone(),
            orderers: options.orderers.clone(),
            settings: options.settings.clone(),
        })
        .await?;
        let channel = peer.join(&options.genesis).await?;
        let (state, rows) = (opened.state(), opened.rows());
        let (Some(state), Some(rows)) = (state, rows) else { return Err(Error::Stopped) };
        let first = channel.height();
        state.admit_readers().await;
        state_is_open.send(Some(Arc::downgrade(&state)));
        let keeping = rt::spawn(office.clone().keep(rows)).abort_on_drop();
        Ok(Reign { epoch, peer, channel, first, opened, office, _tasks: vec![serving, keeping] })
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    pub(super) fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    pub(super) fn state(&self) -> Option<Arc<Disaggregated>> {
        self.opened.state()
    }

    /// Blocks that were there when it began.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Whether it is to be shown as the primary.
    pub(super) fn is_seen(&self) -> bool {
        self.office.is_seen() && self.channel.failure().is_none()
    }

    /// Completes when it is over, and says why.
    pub(super) async fn ended(&self) -> Error {
        match select(pin!(self.office.lost()), pin!(self.channel.stopped())).await {
            Either::Left(_) => Error::State(state::Error::Fenced),
            Either::Right(_) => match self.channel.failure() {
                Some(failure) => Error::Refused {
                    name: "the channel's pipeline".to_owned(),
                    kind: failure.kind(),
                    reason: failure.to_string(),
                },
                None => Error::Stopped,
            },
        }
    }

    /// Finishes what was judged, as far as that takes effect.
    pub(super) async fn stop(&self) -> Result<(), Error> {
        self.peer.stop().await
    }
}

/// Answers the other nodes: at once with the epoch, so that they see that there is somebody, and with the state once it is
/// open.
async fn serve(
    address: &str,
    parties: &Parties,
    epoch: Epoch,
    open: WatchReceiver<Option<Weak<Disaggregated>>>,
) -> Result<AbortOnDrop<()>, Error> {
    let mut door = Door::open(address, parties, LINKS_MAX).await.map_err(|error| Error::io(address, &error))?;
    let task = rt::spawn(async move {
        // They end with the listener.
        let mut serving: Vec<AbortOnDrop<()>> = Vec::new();
        while let Ok((link, place)) = door.accept().await {
            serving.retain(|one| !one.is_finished());
            let open = open.clone();
            let one = async move {
                place.displaced().or_stopped(serve_one(link, epoch, open)).await;
            };
            serving.push(rt::spawn(one).abort_on_drop());
        }
    });
    Ok(task.abort_on_drop())
}

async fn serve_one(link: Link, epoch: Epoch, mut open: WatchReceiver<Option<Weak<Disaggregated>>>) {
    if link.send(greeting(epoch)).await.is_err() {
        return;
    }
    let Ok(state) = open.wait_for(Option::is_some).await else { return };
    let Some(state) = state.and_then(|state| state.upgrade()) else { return };
    // Why it ended, its reader finds out by itself.
    let _ended = state.serve_reader(link).await;
}
