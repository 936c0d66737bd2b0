use base::ErrorKind;
use base::rt::simulation::{Prng, Sim, Simulation};

use super::super::files::{index_name, segment_name};
use super::super::format::SEGMENT_HEADER_BYTES;
use super::*;

const SEGMENT_BYTES: u64 = 8_000;

/// Fills a store on node "peer" and closes it; returns the first blocks and the lengths of its segments.
async fn filled(sim: &Sim, blocks: &[TestBlock]) -> Vec<(BlockNumber, u64)> {
    let blocks = blocks.to_vec();
    let run = sim.node("peer").spawn(async move {
        let (store, _) = open("/blocks", SEGMENT_BYTES).await.expect("a new store opens");
        append_all(&store, &blocks).await;
        store.close().await.expect("the disk is well");
        segments().await
    });
    run.await.expect("the node does not crash")
}

async fn segments() -> Vec<(BlockNumber, u64)> {
    let directory = Directory::open("/blocks").await.expect("the directory opens");
    let names = directory.list().expect("the directory is readable");
    let first = |name: &String| super::super::files::parse_segment_name(name);
    let length = |first| {
        let file = directory.open_file(&segment_name(first), false).expect("the segment is there");
        file.len().expect("its length is readable")
    };
    names.iter().filter_map(first).map(|first| (first, length(first))).collect()
}

/// A damaged store may refuse to open and name the file, or serve every block except those that it names as damaged.
async fn check_serves_no_wrong_byte(blocks: &[TestBlock], path: &str) -> (usize, bool) {
    let (store, report) = match open("/blocks", SEGMENT_BYTES).await {
        Ok(opened) => opened,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains(path), "{error} does not name {path}");
            return (0, true);
        }
    };
    assert_eq!(report.torn_tail, None, "what was durable is not cut off");
    assert_eq!(report.height, blocks.len() as u64);
    let mut refused = 0;
    for block in blocks {
        match store.read_stored(BlockNumber(block.number)) {
            Ok(Some(stored)) => block.check_is(&stored),
            Ok(None) => panic!("block {} has gone", block.number),
            Err(Error::Corrupt(corruption)) => {
                assert_eq!(corruption.block, Some(BlockNumber(block.number)));
                assert!(corruption.path.ends_with(path), "{corruption} does not name {path}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    (refused, false)
}

#[test]
fn flipped_bit_anywhere_in_a_closed_store_is_named_and_never_served() {
    let (mut refused_reads, mut refused_openings) = (0, 0);
    for seed in 0..150 {
        let report = Simulation::new(seed)
            .run(move |sim| async move {
                let blocks = chain(30, seed, 900);
                let segments = filled(&sim, &blocks).await;
                let mut rng = Prng::new(seed);
                let (first, length) = *rng.pick(&segments);
                // Mostly in records, because the rest of the header page is padding.
                let from = if rng.one_in(5) { 0 } else { SEGMENT_HEADER_BYTES };
                let offset = from + rng.below(length - from);
                let path = std::path::Path::new("/blocks").join(segment_name(first));
                let disk = sim.node("peer").disk();
                assert!(disk.flip(&path, offset, 1 << rng.below(8)));
                // Sometimes without the index, so that sealed segments are read as a whole.
                let without_index = rng.one_in(3);
                let name = segment_name(first);
                let check = sim.node("peer").spawn(async move {
                    if without_index {
                        let directory = Directory::open("/blocks").await.expect("the directory opens");
                        let _ = directory.remove(&index_name(first));
                    }
                    check_serves_no_wrong_byte(&blocks, &name).await
                });
                let (refused, refused_opening) = check.await.expect("the node does not crash");
                let padding = offset < SEGMENT_HEADER_BYTES;
                assert!(padding || refused == 1 || refused_opening, "the flipped bit at {offset} was not noticed");
                (refused, refused_opening)
            })
            .expect("the run succeeds");
        refused_reads += report.value.0;
        refused_openings += usize::from(report.value.1);
    }
    assert!(refused_reads > 20 && refused_openings > 20, "{refused_reads} {refused_openings}");
}

/// Opens a closed store of 30 blocks after `change` has modified its files.
fn open_after(
    change: impl Fn(&Directory, &[(BlockNumber, u64)]) + Clone + Send + Sync + 'static,
    check: impl Fn(Result<(BlockStore, OpenReport), Error>, &[TestBlock]) + Clone + Send + Sync + 'static,
) {
    Simulation::new(6)
        .run(move |sim| async move {
            let blocks = chain(30, 6, 900);
            let segments = filled(&sim, &blocks).await;
            let run = sim.node("peer").spawn(async move {
                let directory = Directory::open("/blocks").await.expect("the directory opens");
                change(&directory, &segments);
                check(open("/blocks", SEGMENT_BYTES).await, &blocks);
            });
            run.await.expect("the node does not crash");
        })
        .expect("the run succeeds");
}

#[test]
fn missing_segment_is_named() {
    open_after(
        |directory, segments| directory.remove(&segment_name(segments[1].0)).expect("the segment is there"),
        |opened, _| {
            let error = opened.expect_err("a segment is missing");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("after block height"), "{error}");
        },
    );
}

#[test]
fn shortened_segments_are_named() {
    // By one byte, to the header without a record, and into the header.
    for (position, left) in [(0, None), (usize::MAX, None), (usize::MAX, Some(4096)), (usize::MAX, Some(2000))] {
        open_after(
            move |directory, segments| {
                let (first, length) = segments[position.min(segments.len() - 1)];
                let file = directory.open_file(&segment_name(first), false).expect("the segment is there");
                file.truncate(left.unwrap_or(length - 1)).expect("the disk is well");
            },
            |opened, _| {
                let error = opened.expect_err("a durable record is cut off");
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            },
        );
    }
}

#[test]
fn missing_stale_and_damaged_indexes_are_built_again() {
    open_after(
        |directory, segments| {
            directory.remove(&index_name(segments[0].0)).expect("the index is there");
            let file = directory.open_file(&index_name(segments[1].0), false).expect("the index is there");
            file.write_at(20, b"nonsense").expect("the disk is well");
            let other = directory.open_file(&index_name(segments[1].0), false).expect("the index is there");
            let bytes = other.read_at(0, 1 << 20).expect("the disk is well");
            let stale = directory.open_file(&index_name(segments[2].0), false).expect("the index is there");
            stale.write_at(0, &bytes).expect("the disk is well");
        },
        |opened, blocks| {
            let (store, report) = opened.expect("indexes are not needed");
            assert_eq!(report.indexes_rebuilt, 3);
            check_holds(&store, blocks);
        },
    );
}

#[test]
fn segment_of_another_chain_is_not_joined() {
    open_after(
        |directory, segments| {
            // The third segment gets a header that continues other blocks.
            let file = directory.open_file(&segment_name(segments[2].0), false).expect("the segment is there");
            let header =
                super::super::format::SegmentHeader { first: segments[2].0, previous_hash: [1; 32], epoch: Epoch(0) };
            file.write_at(0, &header.encode()).expect("the disk is well");
        },
        |opened, _| {
            let error = opened.expect_err("the chain is broken");
            assert!(error.to_string().contains("another chain"), "{error}");
        },
    );
}

#[test]
fn bytes_after_the_last_record_are_cut_off_and_reported() {
    for garbage in [&b"x"[..], &[0; 5000]] {
        open_after(
            |directory, segments| {
                let (first, length) = *segments.last().expect("there are segments");
                let file = directory.open_file(&segment_name(first), false).expect("the segment is there");
                file.write_at(length, garbage).expect("the disk is well");
            },
            move |opened, blocks| {
                let (store, report) = opened.expect("a torn tail is no damage");
                let torn = report.torn_tail.expect("the tail is reported");
                assert_eq!((torn.bytes, torn.block), (garbage.len() as u64, BlockNumber(30)));
                check_holds(&store, blocks);
            },
        );
    }
}
