//! Tests of a storage node whose data was rolled back: it starts with fewer blocks than it had reported durable.

use base::ErrorKind;
use base::rt::simulation::DiskCopy;

use super::basics::{check_rows, simulate};
use super::*;
use crate::state_store::StateStore;
use crate::tables::RangeQuery;

/// Blocks that have rows when the copy is made, and when the node ends.
const COPIED: u64 = 10;
const KNOWN: u64 = 12;

struct FilledNode {
    blocks: RemoteBlocks,
    state: RemoteStateStore,
    reader: RemoteStateStore,
    texts: Vec<String>,
    copy: DiskCopy,
}

/// Appends blocks, copies a folder at block 10, and continues to block 12.
async fn fill(node: &base::rt::simulation::SimNode, folder: &str) -> FilledNode {
    let blocks = RemoteBlocks::open(options(1)).await.expect("the node is there");
    let state = RemoteStateStore::open(options(1)).await.expect("the node is there");
    let mut rng = Prng::new(3);
    let mut texts = Vec::new();
    let mut copy = None;
    for number in 0..KNOWN {
        let block = TestBlock::after(blocks.tip(), &mut rng);
        block.append(&blocks).await.expect("it follows");
        texts.push(block.text);
        blocks.sync().await.expect("the disk works");
        if number + 1 == COPIED || number + 1 == KNOWN {
            let savepoint = state.materialize(number + 1).await.expect("rows can be made");
            assert_eq!(savepoint.height, number + 1);
            copy.get_or_insert_with(|| node.disk().copy(folder));
        }
    }
    let reader = RemoteStateStore::open_read_only(options(0)).await.expect("the node is there");
    assert_eq!(reader.savepoint().height, KNOWN);
    FilledNode { blocks, state, reader, texts, copy: copy.expect("block 10 was come by") }
}

fn restore(node: &base::rt::simulation::SimNode, copy: &DiskCopy) {
    node.crash();
    node.disk().restore(copy);
    node.restart();
}

/// An operator restored a copy of a peer's tables that was five blocks old. The primary had dropped the records that the
/// savepoint covered, and read the old rows without an error: from then on its verdicts differed from those of other peers,
/// with no sign of it.
#[test]
fn old_rows_are_never_read_after_an_earlier_copy_of_the_tables_was_restored() {
    simulate(1, |_, node| async move {
        let FilledNode { state, reader, texts, copy, blocks: _blocks } = fill(&node, "/data/tables").await;
        restore(&node, &copy);
        let through = BlockNumber(KNOWN - 1);
        let early = reader
            .range(RangeQuery { namespace: "cc", start: b"", end: b"", through, limit: 3 })
            .await
            .expect_err("the rows are not there");
        assert_eq!(early.kind(), ErrorKind::Retry, "the primary is to have them made: {early}");
        check_rows(&state, &texts, KNOWN as usize - 1).await;
        check_rows(&reader, &texts, KNOWN as usize - 1).await;
    });
}

#[test]
fn a_node_that_lost_rows_and_their_blocks_is_not_read_from() {
    simulate(2, |_, node| async move {
        let FilledNode { state, copy, blocks: _blocks, .. } = fill(&node, "/data").await;
        restore(&node, &copy);
        let error = state.get("cc", b"k1", BlockNumber(KNOWN - 1)).await.expect_err("nobody has the rows");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("restore its directory"), "{error}");
    });
}
