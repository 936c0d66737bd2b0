//! Tests of opening a channel's stores.

use base::rt::net::Parties;
use base::rt::simulation::Simulation;
use base::{BlockNumber, Bytes, rt};
use ledger::Block;
use replica::failover::begin_epoch;
use state::{Snapshot, UpdateBatch};
use storage::DataDirectory;
use storage::node::{RemoteStoreConfig, StorageNode, StorageNodeConfig};
use storage::tables::ModelEngine;

use super::*;
use crate::commit::pipeline::append_block;
use crate::support::{Consortium, ConsortiumConfig};

const ADDRESS: &str = "storage";
const CHANNEL: &str = "alpha";

async fn serve() {
    let data = DataDirectory::open("/data").await.expect("the disk works");
    let tables = data.subdirectory("tables").await.expect("the disk works");
    let node = StorageNode::open(StorageNodeConfig {
        name: ADDRESS.to_owned(),
        data,
        sync: GroupSync::new(),
        tables: ModelEngine::open(tables).await.expect("the disk works"),
        materializer: Arc::new(BlockMaterializer),
        token: Bytes::new(),
        blocks: BlockStoreConfig::default(),
    })
    .await
    .expect("the options are good");
    node.serve(ADDRESS, &Parties::anyone()).await.expect("the address is free");
    std::future::pending::<()>().await;
    drop(node);
}

fn remote(epoch: u64) -> RemoteStoreConfig {
    let (address, channel) = (ADDRESS.to_owned(), CHANNEL.to_owned());
    RemoteStoreConfig { address, token: Bytes::new(), channel, epoch: Epoch(epoch) }
}

/// Opens a state after another node has become the primary, has appended a block and had it materialised.
struct Late(Block);

#[async_trait]
impl WorldStateFactory for Late {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, Error> {
        let blocks = RemoteBlocks::open(remote(2)).await?;
        append_block(&blocks, &self.0, &[]).await?;
        blocks.sync().await?;
        RemoteStateStore::open(remote(2)).await?.materialize(1).await?;
        rt::sleep(std::time::Duration::from_millis(10)).await;
        Ok(Arc::new(FixedHeight(rows.savepoint().height)))
    }
}

/// A state of which the test reads only the height.
struct FixedHeight(u64);

#[async_trait]
impl WorldState for FixedHeight {
    fn height(&self) -> u64 {
        self.0
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        unreachable!("nobody reads it")
    }

    async fn apply(&self, _number: u64, _batch: UpdateBatch) -> Result<(), state::Error> {
        unreachable!("nobody writes it")
    }

    async fn persist(&self) -> Result<u64, state::Error> {
        unreachable!("nobody writes it")
    }

    fn savepoint(&self) -> u64 {
        self.0
    }

    async fn digest(&self) -> Result<[u8; 32], state::Error> {
        unreachable!("nobody reads it")
    }
}

/// Regression: a compute node took long to open its memory and was replaced meanwhile. Its rows then reached beyond the
/// blocks that it had found. It took this for damaged data ("the state is beyond the last stored block") and reported
/// it to its operator.
#[test]
fn who_is_replaced_while_it_opens_is_fenced_and_finds_no_damage() {
    let run = Simulation::new(3).run(|sim| async move {
        drop(sim.node("storage").spawn(serve()));
        rt::sleep(std::time::Duration::from_millis(20)).await;
        let opening = sim.node("compute").spawn(async {
            let consortium = Consortium::create(ConsortiumConfig::seeded(1, ledger::config::EndorsementRule::Any));
            let mut metadata = consortium.genesis.metadata().clone();
            metadata.set_filter(vec![0; consortium.genesis.len()].into());
            let late = Late(consortium.genesis.with_metadata(metadata));
            let (address, token) = (ADDRESS.to_owned(), Bytes::new());
            let storage = CopySet::single(address, token);
            let stores = NodeStores { storage, epoch: Epoch(1), states: Arc::new(late), watermark: None };
            stores.open(CHANNEL).await.map(drop)
        });
        let opened = opening.await.expect("nobody crashes it");
        assert_eq!(opened.map_err(|error| error.kind()), Err(ErrorKind::Fenced));
    });
    run.expect("the run succeeds");
}

/// What happened to a storage node while its compute node was away.
struct LossyStores {
    /// The folder was replaced by an earlier copy, of a time when there were no blocks.
    folder: &'static str,
    /// Epochs that other nodes have started since.
    unseen: u64,
    /// Blocks of another chain that another node has appended since.
    others: u64,
    says: &'static str,
}

/// Regression: a storage node's directory, or only its epoch file, was replaced by an earlier copy, and the compute
/// node was started afterwards. It had nothing to compare with. It endorsed on the old rows, and became primary under
/// an epoch that had been used before.
#[test]
fn a_storage_node_that_has_less_than_was_noted_is_refused_each_time_and_not_changed() {
    let fewer_epochs = "has begun epoch 1 of channel alpha, and 3 before";
    let lacks = "lacks block 0 of channel alpha, which was durable there";
    for LossyStores { folder, unseen, others, says } in [
        LossyStores { folder: "/data", unseen: 0, others: 0, says: fewer_epochs },
        LossyStores { folder: "/data/epochs", unseen: 0, others: 0, says: fewer_epochs },
        LossyStores { folder: "/data/blocks", unseen: 0, others: 0, says: lacks },
        LossyStores { folder: "/data", unseen: 5, others: 0, says: lacks },
        LossyStores { folder: "/data", unseen: 5, others: 2, says: lacks },
    ] {
        let run = Simulation::new(4).run(|sim| async move {
            let node = sim.node("storage");
            drop(node.spawn(serve()));
            rt::sleep(Duration::from_millis(20)).await;
            let copy = sim.node("compute").spawn({
                let node = node.clone();
                async move {
                    drop(open_noting().await.expect("there is nothing yet"));
                    let copy = node.disk().copy(folder);
                    let stores = open_noting().await.expect("it has all that was there");
                    append_chain(&*stores.blocks, 1, 1).await;
                    // Until the height is noted. It has no rows.
                    rt::sleep(3 * WATERMARK_PERIOD).await;
                    drop(stores);
                    // A primary that has appended nothing: only the file holds its epoch.
                    drop(open_noting().await.expect("it has all that was there"));
                    copy
                }
            });
            let copy = copy.await.expect("nobody crashes it");
            node.crash();
            node.disk().restore(&copy);
            node.restart();
            drop(node.spawn(serve()));
            rt::sleep(Duration::from_millis(20)).await;
            let opening = sim.node("compute").spawn(async move {
                for _ in 0..unseen {
                    storage::node::begin_epoch(ADDRESS, &Bytes::new(), CHANNEL).await.expect("it answers");
                }
                if others > 0 {
                    let blocks = RemoteBlocks::open(remote(newest().await.get())).await.expect("it answers");
                    append_chain(&blocks, 2, others).await;
                }
                let found = newest().await;
                for attempt in 0..2 {
                    let error = open_noting().await.err().expect("it has less");
                    let text = format!("attempt {attempt} after {folder}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
                    assert!(text.contains(says), "{text}");
                    assert!(text.contains("remove /notes/alpha and start again"), "{text}");
                }
                assert_eq!(newest().await, found, "{folder}: who is refused begins no epoch");
                let notes = Directory::open("/notes").await.expect("the disk works");
                notes.remove(CHANNEL).expect("there is one");
                open_noting().await.map(drop)
            });
            opening.await.expect("nobody crashes it").expect("the step that the error names");
        });
        run.expect("the run succeeds");
    }
}

async fn newest() -> Epoch {
    storage::node::newest_epoch(ADDRESS, &Bytes::new(), CHANNEL).await.expect("it answers")
}

/// Appends `count` blocks and makes them durable. The number of organisations in the first block distinguishes chains.
async fn append_chain(blocks: &dyn Blocks, organizations: usize, count: u64) {
    let consortium = Consortium::create(ConsortiumConfig::seeded(organizations, ledger::config::EndorsementRule::Any));
    let mut block = consortium.genesis;
    for number in 1..=count {
        let mut metadata = block.metadata().clone();
        metadata.set_filter(vec![0; block.len()].into());
        block = block.with_metadata(metadata);
        append_block(blocks, &block, &[]).await.expect("it follows");
        block = Block::build(BlockNumber(number), Some(block.hash()), &[]);
    }
    blocks.sync().await.expect("the disk works");
}

/// Starts an epoch and opens the stores under it, with the note of this node.
async fn open_noting() -> Result<ChannelStores, Error> {
    let notes = Directory::open("/notes").await.expect("the disk works");
    let watermark = Arc::new(WatermarkFile::open(notes, CHANNEL)?);
    let storage = CopySet::single(ADDRESS, Bytes::new());
    let epoch = begin_epoch(&storage, CHANNEL, None, Some(watermark.as_ref())).await?;
    NodeStores { storage, epoch, states: Arc::new(Heights), watermark: Some(watermark) }.open(CHANNEL).await
}

/// States of which the test reads only the height.
struct Heights;

#[async_trait]
impl WorldStateFactory for Heights {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, Error> {
        Ok(Arc::new(FixedHeight(rows.savepoint().height)))
    }
}
