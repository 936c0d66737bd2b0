use rma::shm::Shm;
use rma::{Fabric, HostOptions, NodeId, TOKEN_BYTES, Token};

use super::*;
use crate::layout::{FORMAT_VERSION, HEADER_BYTES};
use crate::scan::tests::{LAYOUT, Tape};
use crate::{GroupId, GroupMemory, MemoryNode, MemoryNodeOptions, Place, Standby};

/// Bytes of a record of a sixteenth of the log, with its head.
const SIXTEENTH: usize = 256 - 56;

fn indices(entries: &[Placed]) -> Vec<u64> {
    entries.iter().map(|placed| placed.entry.index).collect()
}

/// A log of so many entries of a sixteenth each, with the cursor behind each of them.
fn tape(entries: u64) -> (Tape, Vec<Cursor>) {
    let mut tape = Tape::new();
    let mut cursors = vec![tape.at];
    for _ in 0..entries {
        tape.append(2, SIXTEENTH);
        cursors.push(tape.at);
    }
    (tape, cursors)
}

/// A node had missed most of a round of the log. Its old entries led on to the newer ones of the others, and all of them
/// were written into its log: the newest took the places of the oldest, which its own header still needed. Then the
/// takeover crashed, and the next found the newest term at that node alone: the log ended where its hole began.
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

/// A record had been trimmed, which the node that was adopted last did not know. Where headers of the others were moved
/// back before it, a node that came back after it lacked what lies between.
#[test]
fn the_log_is_needed_behind_what_any_node_has_applied() {
    let (whole, cursors) = tape(12);
    let led = whole.log_applied(3, 12, cursors[4]);
    let ahead = whole.log_applied(2, 0, cursors[10]);
    let reconciled = reconcile(&[led, ahead], &LAYOUT).expect("the logs are good");
    assert_eq!((reconciled.base, reconciled.source), (cursors[10], 1));
    assert_eq!(reconciled.kept, cursors[10], "records begin behind it");
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
    // The same number, of another entry.
    let other = Cursor { chain: 1, ..cursors[6] };
    let refused = reconcile(&[led, short.log_applied(2, 0, other)], &LAYOUT).map(|reconciled| reconciled.end);
    assert_eq!(refused, Err(Error::Corrupt("a copy has applied what the newest logs do not hold")));
}

/// A group of three on shared memory.
async fn group() -> (Group, Vec<Arc<MemoryNode>>) {
    let (fabric, token) = (Arc::new(Shm::default()) as Arc<dyn Fabric>, Token::new([3; TOKEN_BYTES]));
    let place = |slot| Place { address: format!("local:takeover-{slot}"), name: "p".to_owned(), token: token.clone() };
    // No test depends on how fast this machine is.
    let timing = Timing { attempt_max: Duration::from_millis(500), ..Timing::of_busy_machines() };
    let group = Group { id: GroupId(7), layout: LAYOUT, nodes: (0..3).map(place).collect(), fabric, timing };
    let mut nodes = Vec::new();
    for place in &group.nodes {
        let token = token.clone();
        let options = HostOptions { node: NodeId(1), tokens: Arc::new(move |_| Some(token.clone())) };
        let host = group.fabric.host(&place.address, options).await.expect("the address is free");
        let groups = vec![GroupMemory { id: group.id, layout: LAYOUT }];
        let options = MemoryNodeOptions { host, groups, stop: rt::Stop::new() };
        nodes.push(MemoryNode::start(options).await.expect("there is memory"));
    }
    crate::format(&group).await.expect("the nodes are blank");
    (group, nodes)
}

/// Puts a header of a later format, which has its checksum, in the place of both that a node has.
async fn spoil(group: &Group, slot: usize, term: Term) {
    let link = Link::connect(group, slot).await.expect("it is up");
    let region = link.fence(group, term, 9).await.expect("nobody is newer");
    let held = Held { link, region, reign: Reign { term, holder: 9 } };
    let (applied, nodes) = (Cursor::default(), 3);
    let mut bytes = Header { sequence: 9, term, adopted: 0, applied, nodes }.encode();
    bytes[56..60].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    let checksum = twox_hash::XxHash3_64::oneshot(&bytes[8..]);
    bytes[..8].copy_from_slice(&checksum.to_le_bytes());
    for place in 0..2 {
        let writes = vec![(place * HEADER_BYTES as u64, Bytes::copy_from_slice(&bytes))];
        write_all(group, &held, writes).await.expect("it is ours");
    }
}

/// One node's header ended every takeover, and whoever stood by for good, though the two others were whole.
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
