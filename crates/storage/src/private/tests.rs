use base::rt::disk::Directory;
use base::rt::simulation::Simulation;
use base::{BlockNumber, Bytes, Version};

use super::*;
use crate::tables::{ModelEngine, RangeQuery};

const ALL: BlockNumber = BlockNumber(u64::MAX);

fn row(key: &str, block: u64, value: Option<&'static str>) -> PrivateRow {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let value = value.map(|value| Bytes::from_static(value.as_bytes()));
    PrivateRow { namespace: "n".to_owned(), key, version: Version::new(block, 0), value }
}

async fn value(rows: &dyn PrivateRows, key: &str, through: BlockNumber) -> Option<Bytes> {
    let found = rows.get_many(&[("n", key.as_bytes())], through).await.expect("the tables answer");
    found.into_iter().next().flatten().and_then(|row| row.value)
}

#[test]
fn rows_are_durable_on_return_and_come_in_any_order_of_versions() {
    let run = Simulation::new(7).run(|sim| async move {
        let node = sim.node("peer");
        let written = node.spawn(async {
            let directory = Directory::open("tables").await.expect("the simulated disk works");
            let engine = ModelEngine::open(directory).await.expect("the directory is empty");
            let rows =
                LocalPrivateRows::open(engine.as_ref(), "trade", PrivateTable::Committed, 9).await.expect("it opens");
            rows.write(vec![row("a", 9, Some("new")), row("b", 9, Some("b"))]).await.expect("the disk works");
            // Found late, as private data are that another peer sends after the block.
            rows.write(vec![row("a", 3, Some("old")), row("b", 12, None)]).await.expect("the disk works");
            assert_eq!(value(&rows, "a", ALL).await.expect("it was written"), "new");
            assert_eq!(value(&rows, "a", BlockNumber(8)).await.expect("it was written"), "old");
            assert_eq!(value(&rows, "b", ALL).await, None);
            assert_eq!(value(&rows, "b", BlockNumber(11)).await.expect("it was written"), "b");
        });
        written.await.expect("it ends");
        node.crash();
        node.restart();
        let found = node.spawn(async {
            let directory = Directory::open("tables").await.expect("the simulated disk works");
            let engine = ModelEngine::open(directory).await.expect("the log is intact");
            let rows =
                LocalPrivateRows::open(engine.as_ref(), "trade", PrivateTable::Committed, 9).await.expect("it opens");
            assert_eq!(value(&rows, "a", ALL).await.expect("it was durable"), "new");
            // The blocks after 8 may not have been appended before the crash.
            assert_eq!(value(&rows, "a", BlockNumber(8)).await.expect("it was durable"), "old");
            while !rows.prune(BlockNumber(12)).await.expect("the disk works") {}
            let query = RangeQuery { namespace: "n", start: b"", end: b"", through: ALL, limit: 10 };
            let page = rows.range(query).await.expect("the tables answer");
            assert_eq!(page.entries.iter().map(|entry| &entry.key[..]).collect::<Vec<_>>(), [b"a"]);
            let transient =
                LocalPrivateRows::open(engine.as_ref(), "trade", PrivateTable::Transient, 9).await.expect("it opens");
            assert_eq!(value(&transient, "a", ALL).await, None, "the tables are separate");
        });
        found.await.expect("it ends");
    });
    run.expect("the run succeeds");
}
