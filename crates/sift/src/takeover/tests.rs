use rma::shm::ShmProvider;
use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token};

use super::*;
use crate::layout::{FORMAT_VERSION, HEADER_BYTES};
use crate::scan::tests::{LAYOUT, LogImage};
use crate::{GroupId, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, Standby};

/// Bytes of a record that, with its head, takes a sixteenth of the log.
const SIXTEENTH: usize = 256 - 56;

fn indices(entries: &[LocatedEntry]) -> Vec<u64> {
    entries.iter().map(|placed| placed.entry.index).collect()
}

/// A log of `entries` entries of a sixteenth each, with the cursor after each of them.
fn tape(entries: u64) -> (LogImage, Vec<LogCursor>) {
    let mut tape = LogImage::new();
    let mut cursors = vec![tape.at];
    for _ in 0..entries {
        tape.append(2, SIXTEENTH);
        cursors.push(tape.at);
    }
    (tape, cursors)
}

/// A node had missed most of a round of the log. Its old entries led on to the newer entries of the other nodes, and
/// all of those were written into its log: the newest overwrote the oldest, which its own header still needed. Then the
/// takeover crashed, and the next one found the newest term at that node alone: the log ended where its hole began.
#[test]
fn a_copy_that_lacks_more_than_its_log_holds_is_not_mended_in_place() {
    let (old, _) = tape(12);
    for (entries, is_mended) in [(12, true), (13, true), (16, true), (17, false), (20, false), (28, false), (29, false)]
    {
        let (new, cursors) = tape(entries);
        let ahead = new.log_applied(2, 0, cursors[entries as usize - 2]);
        let behind = old.log(2, 0);
        let reconciled = reconcile(&[behind, ahead.clone(), ahead], &LAYOUT).expect("the logs are good");
        assert_eq!(reconciled.end, cursors[entries as usize]);
        assert_eq!(indices(&reconciled.tail), [entries - 1, entries]);
        assert_eq!(reconciled.missing[0].is_some(), is_mended, "{entries} entries");
        assert!(reconciled.missing[1].is_some() && reconciled.missing[2].is_some());
    }
}

/// A record had been trimmed, and the node that was adopted last did not know it. When headers of the other nodes were
/// moved back before that record, a node that came back after it lacked the entries in between.
#[test]
fn the_log_is_needed_behind_what_any_node_has_applied() {
    let (whole, cursors) = tape(12);
    let led = whole.log_applied(3, 12, cursors[4]);
    let ahead = whole.log_applied(2, 0, cursors[10]);
    let reconciled = reconcile(&[led, ahead], &LAYOUT).expect("the logs are good");
    assert_eq!((reconciled.base, reconciled.source), (cursors[10], 1));
    assert_eq!(reconciled.log_start, cursors[10], "records begin behind it");
    assert_eq!(indices(&reconciled.tail), [11, 12]);
    let missing: Vec<Vec<u64>> = reconciled.missing.iter().flatten().map(|missing| indices(missing)).collect();
    assert_eq!(missing, [(5..=12).collect::<Vec<u64>>(), vec![11, 12]]);
}

#[test]
fn a_log_that_lacks_what_was_applied_is_refused() {
    let (whole, cursors) = tape(12);
    let (short, _) = tape(8);
    let led = short.log_applied(3, 8, cursors[4]);
    let ahead = whole.log_applied(2, 0, cursors[10]);
    let refused = reconcile(&[led.clone(), ahead], &LAYOUT).map(|reconciled| reconciled.end);
    assert_eq!(refused, Err(Error::Corrupt("a copy has applied what the newest logs do not hold")));
    // The same index, but another entry.
    let other = LogCursor { chain: 1, ..cursors[6] };
    let refused = reconcile(&[led, short.log_applied(2, 0, other)], &LAYOUT).map(|reconciled| reconciled.end);
    assert_eq!(refused, Err(Error::Corrupt("a copy has applied what the newest logs do not hold")));
}

/// A group of three on shared memory.
async fn group() -> (SiftGroup, Vec<Arc<LogMemoryNode>>) {
    let (provider, token) = (Arc::new(ShmProvider::default()) as Arc<dyn Provider>, Token::new([3; TOKEN_BYTES]));
    let place = |slot| MemoryNodeAddress {
        address: format!("local:takeover-{slot}"),
        name: "p".to_owned(),
        token: token.clone(),
    };
    // No test depends on how fast this machine is.
    let timing = SiftTimeouts { attempt_max: Duration::from_millis(500), ..SiftTimeouts::of_busy_machines() };
    let group = SiftGroup { id: GroupId(7), layout: LAYOUT, nodes: (0..3).map(place).collect(), provider, timing };
    let mut nodes = Vec::new();
    for place in &group.nodes {
        let token = token.clone();
        let options = HostConfig { node: NodeId(1), tokens: Arc::new(move |_| Some(token.clone())) };
        let host = group.provider.host(&place.address, options).await.expect("the address is free");
        let groups = vec![GroupMemory { id: group.id, layout: LAYOUT }];
        let options = LogMemoryNodeConfig { host, groups, stop: rt::CancellationToken::new() };
        nodes.push(LogMemoryNode::start(options).await.expect("there is memory"));
    }
    crate::format(&group).await.expect("the nodes are blank");
    (group, nodes)
}

/// Overwrites both headers of a node with a header of a later format whose checksum is right.
async fn spoil(group: &SiftGroup, slot: usize, term: Term) {
    let link = MemoryNodeLink::connect(group, slot).await.expect("it is up");
    let region = link.fence(group, term, 9).await.expect("nobody is newer");
    let held = FencedNode { link, region, token: FenceToken { term, nonce: 9 } };
    let (applied, nodes) = (LogCursor::default(), 3);
    let mut bytes = CopyHeader { sequence: 9, term, adopted: 0, applied, nodes }.encode();
    bytes[56..60].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    let checksum = twox_hash::XxHash3_64::oneshot(&bytes[8..]);
    bytes[..8].copy_from_slice(&checksum.to_le_bytes());
    for place in 0..2 {
        let writes = vec![(place * HEADER_BYTES as u64, Bytes::copy_from_slice(&bytes))];
        write_all(group, &held, writes).await.expect("it is ours");
    }
}

/// One node's header ended every takeover, and every standby for good, although the two other nodes were intact.
#[test]
fn a_majority_of_sound_copies_is_enough() {
    rt::production::Runtime::new(2).expect("threads").block_on(async {
        let (group, _nodes) = group().await;
        let mut standby = Standby::new(group.clone(), 1).expect("the group is good");
        let first = standby.take_over().await.expect("all are sound");
        first.append_record(Bytes::from_static(b"record")).await.expect("it serves");
        first.step_down();
        spoil(&group, 2, Term(first.term().0 + 1)).await;
        let second = standby.take_over().await.expect("two are sound");
        assert_eq!(second.recovered().len(), 1);
        assert_eq!(second.status().lost, 1);
        second.step_down();
        spoil(&group, 1, Term(second.term().0 + 1)).await;
        let refused = standby.take_over().await.map(|coordinator| coordinator.term());
        assert_eq!(refused, Err(Error::Corrupt("a header of another format version")));
    });
}
