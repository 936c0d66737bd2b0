//! Tests over stores that are ahead of the peer, or away from it.

use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use base::rt::channel::WatchReceiver;
use state::{Snapshot, UpdateBatch, WorldState};
use storage::blocks::{Blocks, ChainTip, NewBlock, StoredBlock, TransactionLocation};

use super::*;
use crate::stores::{ChannelStores, PeerStores};

/// A state whose store has materialised more blocks than are applied here, as a storage node does by itself.
struct Ahead(Arc<dyn WorldState>);

#[async_trait]
impl WorldState for Ahead {
    fn height(&self) -> u64 {
        self.0.height()
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.0.snapshot()
    }

    async fn apply(&self, number: u64, batch: UpdateBatch) -> Result<(), state::Error> {
        self.0.apply(number, batch).await
    }

    async fn persist(&self) -> Result<u64, state::Error> {
        self.0.persist().await
    }

    fn savepoint(&self) -> u64 {
        self.0.height() + 3
    }

    async fn digest(&self) -> Result<[u8; 32], state::Error> {
        self.0.digest().await
    }
}

struct AheadStores(Arc<dyn PeerStores>);

#[async_trait]
impl PeerStores for AheadStores {
    async fn channels(&self) -> Result<Vec<String>, Error> {
        self.0.channels().await
    }

    async fn open(&self, channel: &str) -> Result<ChannelStores, Error> {
        let ChannelStores { blocks, state, history, private } = self.0.open(channel).await?;
        Ok(ChannelStores { blocks, state: Arc::new(Ahead(state)), history, private })
    }
}

/// Regression: a storage node materialised blocks that were durable and that its peer had not applied yet. The peer's
/// last stage subtracted the savepoint from the smaller height, and the channel ended with a panic.
#[test]
fn a_savepoint_ahead_of_what_is_applied_is_no_trouble() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = one_organization();
        let root = root(&scratch).await;
        let client = consortium.client();
        let orderer = orderer(&consortium, &root).await;
        let engine = engine(&root, "tables").await;
        let mut options = peer_options(&consortium, &root, 0, engine).await;
        options.stores = Arc::new(AheadStores(options.stores));
        let peer = joined(&consortium, options).await;
        for account in ["a", "b", "c"] {
            let args = [account, account, "1", "1"];
            let id = submit(&client, &[&peer], &orderer, "smallbank", "create_account", &args).await;
            channel(&peer).wait_committed(&id).await.expect("the channel runs");
        }
        // The stage continues after the answer.
        let height = channel(&peer).height() + 1;
        let id = submit(&client, &[&peer], &orderer, "smallbank", "create_account", &["d", "d", "1", "1"]).await;
        channel(&peer).wait_committed(&id).await.expect("the channel runs");
        at_height(&channel(&peer), height).await;
        assert!(channel(&peer).failure().is_none());
        peer.stop().await.expect("the peer stops");
        orderer.stop().await;
    });
}

/// A block store that may be away: it then accepts as many blocks as it has space for, and none becomes durable.
struct Remote {
    inner: Arc<dyn Blocks>,
    is_away: Arc<AtomicBool>,
    has_room: bool,
}

impl Remote {
    fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Blocks for Remote {
    async fn append(&self, block: NewBlock<'_>) -> Result<(), storage::Error> {
        if self.is_away() && !self.has_room {
            std::future::pending::<()>().await;
        }
        self.inner.append(block).await
    }

    async fn sync(&self) -> Result<u64, storage::Error> {
        if self.is_away() {
            std::future::pending::<()>().await;
        }
        self.inner.sync().await
    }

    fn tip(&self) -> ChainTip {
        self.inner.tip()
    }

    fn durable_height(&self) -> u64 {
        self.inner.durable_height()
    }

    fn subscribe_durable(&self) -> WatchReceiver<u64> {
        self.inner.subscribe_durable()
    }

    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, storage::Error> {
        self.inner.read(number).await
    }

    async fn read_stored(&self, number: BlockNumber) -> Result<Option<StoredBlock>, storage::Error> {
        self.inner.read_stored(number).await
    }

    async fn read_page(&self, from: BlockNumber, limit: usize) -> Result<Vec<StoredBlock>, storage::Error> {
        self.inner.read_page(from, limit).await
    }

    async fn transactions(&self, number: BlockNumber) -> Result<Option<Vec<(TxId, u8)>>, storage::Error> {
        self.inner.transactions(number).await
    }

    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, storage::Error> {
        self.inner.number_by_hash(header_hash).await
    }

    async fn find_transactions(&self, ids: &[TxId]) -> Result<Vec<Option<TransactionLocation>>, storage::Error> {
        self.inner.find_transactions(ids).await
    }

    async fn close(&self) -> Result<(), storage::Error> {
        self.inner.close().await
    }
}

struct RemoteStores {
    inner: Arc<dyn PeerStores>,
    is_away: Arc<AtomicBool>,
    has_room: bool,
}

#[async_trait]
impl PeerStores for RemoteStores {
    async fn channels(&self) -> Result<Vec<String>, Error> {
        self.inner.channels().await
    }

    async fn open(&self, channel: &str) -> Result<ChannelStores, Error> {
        let ChannelStores { blocks, state, history, private } = self.inner.open(channel).await?;
        let blocks = Remote { inner: blocks, is_away: self.is_away.clone(), has_room: self.has_room };
        Ok(ChannelStores { blocks: Arc::new(blocks), state, history, private })
    }
}

/// Runs an orderer and a peer with a committed transaction over a remote store. From then on the store is away. Sends
/// another transaction, and then runs `what` on the peer.
fn with_a_store_away<F>(has_room: bool, what: impl FnOnce(Arc<Peer>) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let run = Simulation::new(1).run(move |sim| async move {
        let both = sim.node("both").spawn(async move {
            let consortium = one_organization();
            let root = Directory::open("root").await.expect("it is made");
            let client = consortium.client();
            let orderer = orderer(&consortium, &root).await;
            let engine = engine(&root, "tables").await;
            let mut options = peer_options(&consortium, &root, 0, engine).await;
            let is_away = Arc::new(AtomicBool::new(false));
            options.stores = Arc::new(RemoteStores { inner: options.stores, is_away: is_away.clone(), has_room });
            let peer = joined(&consortium, options).await;
            let first = submit(&client, &[&peer], &orderer, "smallbank", "create_account", &["1", "a", "1", "1"]).await;
            channel(&peer).wait_committed(&first).await.expect("the channel runs");
            is_away.store(true, Ordering::Relaxed);
            submit(&client, &[&peer], &orderer, "smallbank", "create_account", &["2", "b", "1", "1"]).await;
            rt::sleep(Duration::from_secs(1)).await;
            what(peer).await;
            orderer.stop().await;
        });
        both.await.expect("it runs to its end");
    });
    run.expect("the run succeeds");
}

/// Regression: the storage node of a peer was away, and the peer's stop waited for it for ever.
#[test]
fn a_peer_stops_while_its_storage_is_away() {
    with_a_store_away(true, |peer| async move {
        let stopped = rt::timeout(Duration::from_secs(15), peer.stop()).await.expect("it stops");
        assert_eq!(stopped.map_err(|error| error.kind()), Err(ErrorKind::Ambiguous));
    });
    with_a_store_away(false, |peer| async move {
        let stopped = rt::timeout(Duration::from_secs(1), peer.stop()).await.expect("it stops at once");
        stopped.expect("what was taken is durable");
    });
}

/// Regression: a compute node was stopped while it started as the primary. It forgot its peer, whose channel kept
/// running.
#[test]
fn the_channels_of_a_peer_that_is_dropped_end() {
    with_a_store_away(true, |peer| async move {
        let (here, channel) = (channel(&peer), Arc::downgrade(&channel(&peer)));
        drop(peer);
        rt::timeout(Duration::from_secs(1), here.stopped()).await.expect("it ends");
        drop(here);
        rt::sleep(Duration::from_secs(15)).await;
        assert_eq!(channel.strong_count(), 0, "nothing holds it");
    });
}
