//! A storage node that comes back with less than it had said is durable.

use base::ErrorKind;
use base::rt::simulation::DiskCopy;

use super::basics::{check_rows, simulate};
use super::*;
use crate::state_store::StateStore;

/// Blocks that have rows when the copy is made, and when the node ends.
const COPIED: u64 = 10;
const KNOWN: u64 = 12;

struct Filled {
    blocks: RemoteBlocks,
    state: RemoteStateStore,
    reader: RemoteStateStore,
    texts: Vec<String>,
    copy: DiskCopy,
}

/// Appends blocks, makes a copy of a folder at block 10, and goes on to block 12.
async fn fill(node: &base::rt::simulation::Node, folder: &str) -> Filled {
    let blocks = RemoteBlocks::open(options(1)).await.expect("the node is there");
    let state = RemoteStateStore::open(options(1)).await.expect("the node is there");
    let mut chance = Chance::new(3);
    let mut texts = Vec::new();
    let mut copy = None;
    for number in 0..KNOWN {
        let block = TestBlock::after(blocks.tip(), &mut chance);
        block.append(&blocks).await.expect("it follows");
        texts.push(block.text);
        blocks.sync().await.expect("the disk works");
        if number + 1 == COPIED || number + 1 == KNOWN {
            let savepoint = state.materialize(number + 1).await.expect("rows can be made");
            assert_eq!(savepoint.height, number + 1);
            copy.get_or_insert_with(|| node.disk().copy(folder));
        }
    }
    let reader = RemoteStateStore::open_reader(options(0)).await.expect("the node is there");
    assert_eq!(reader.savepoint().height, KNOWN);
    Filled { blocks, state, reader, texts, copy: copy.expect("block 10 was come by") }
}

fn restore(node: &base::rt::simulation::Node, copy: &DiskCopy) {
    node.crash();
    node.disk().put_back(copy);
    node.restart();
}

/// An operator restored a copy of a peer's tables of five blocks before. The primary had let go of what the savepoint covered, and read
/// the old rows without an error: its verdicts and those of other peers parted from then on, and nobody was told.
#[test]
fn old_rows_are_never_read_after_an_earlier_copy_of_the_tables_was_restored() {
    simulate(1, |_, node| async move {
        let Filled { state, reader, texts, copy, blocks: _blocks } = fill(&node, "/data/tables").await;
        restore(&node, &copy);
        let through = BlockNumber(KNOWN - 1);
        let early = reader.range("cc", b"", b"", through, 3).await.expect_err("the rows are not there");
        assert_eq!(early.kind(), ErrorKind::Retry, "the primary is to have them made: {early}");
        check_rows(&state, &texts, KNOWN as usize - 1).await;
        check_rows(&reader, &texts, KNOWN as usize - 1).await;
    });
}

#[test]
fn a_node_that_lost_rows_and_their_blocks_is_not_read_from() {
    simulate(2, |_, node| async move {
        let Filled { state, copy, blocks: _blocks, .. } = fill(&node, "/data").await;
        restore(&node, &copy);
        let error = state.get("cc", b"k1", BlockNumber(KNOWN - 1)).await.expect_err("nobody has the rows");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("restore its directory"), "{error}");
    });
}
