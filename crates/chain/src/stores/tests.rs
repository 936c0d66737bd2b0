//! Tests of opening.

use base::rt;
use base::rt::net::Parties;
use base::rt::simulation::Simulation;
use state::{Snapshot, UpdateBatch};
use storage::DataDirectory;
use storage::node::{NodeOptions, StorageNode};
use storage::tables::ModelEngine;

use super::*;
use crate::commit::pipeline::append_block;
use crate::support::{Consortium, Terms_};

const ADDRESS: &str = "storage";
const CHANNEL: &str = "alpha";

async fn serve() {
    let data = DataDirectory::open("/data").await.expect("the disk works");
    let tables = data.subdirectory("tables").await.expect("the disk works");
    let node = StorageNode::open(NodeOptions {
        name: ADDRESS.to_owned(),
        data,
        sync: GroupSync::new(),
        tables: ModelEngine::open(tables).await.expect("the disk works"),
        materializer: Arc::new(BlockRows),
        token: Bytes::new(),
        blocks: BlockOptions::default(),
    })
    .await
    .expect("the options are good");
    node.serve(ADDRESS, &Parties::anyone()).await.expect("the address is free");
    std::future::pending::<()>().await;
    drop(node);
}

fn remote(epoch: u64) -> RemoteOptions {
    let (address, channel) = (ADDRESS.to_owned(), CHANNEL.to_owned());
    RemoteOptions { address, token: Bytes::new(), channel, epoch: Epoch(epoch) }
}

/// Opens a state after somebody else has become the primary, and has appended a block and had it made into rows.
struct Late(Block);

#[async_trait]
impl States for Late {
    async fn open(&self, _channel: &str, rows: Arc<dyn StateStore>) -> Result<Arc<dyn WorldState>, Error> {
        let blocks = RemoteBlocks::open(remote(2)).await?;
        append_block(&blocks, &self.0, &[]).await?;
        blocks.sync().await?;
        RemoteStateStore::open(remote(2)).await?.materialize(1).await?;
        rt::sleep(std::time::Duration::from_millis(10)).await;
        Ok(Arc::new(Height(rows.savepoint().height)))
    }
}

/// A state of which nothing but its height is asked.
struct Height(u64);

#[async_trait]
impl WorldState for Height {
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

/// A compute node took long to open its memory, and was replaced meanwhile. Its rows then reached beyond the blocks that it
/// had found, which it took for damaged data ("the state is beyond the last stored block") and told its operator.
#[test]
fn who_is_replaced_while_it_opens_is_fenced_and_finds_no_damage() {
    let run = Simulation::new(3).run(|sim| async move {
        drop(sim.node("storage").spawn(serve()));
        rt::sleep(std::time::Duration::from_millis(20)).await;
        let opening = sim.node("compute").spawn(async {
            let consortium = Consortium::found(Terms_::seeded(1, ledger::config::EndorsementRule::Any));
            let mut metadata = consortium.genesis.metadata().clone();
            metadata.set_filter(vec![0; consortium.genesis.len()].into());
            let late = Late(consortium.genesis.with_metadata(metadata));
            let (address, token) = (ADDRESS.to_owned(), Bytes::new());
            let stores = NodeStores { address, token, epoch: Epoch(1), states: Arc::new(late) };
            stores.open(CHANNEL).await.map(drop)
        });
        let opened = opening.await.expect("nobody crashes it");
        assert_eq!(opened.map_err(|error| error.kind()), Err(ErrorKind::Fenced));
    });
    run.expect("the run succeeds");
}
