//! Tests of a consensus group over shared memory within one process.

use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use base::rt::disk::Directory;
use base::rt::{self, CancellationToken};
use rma::shm::ShmProvider;
use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token};
use sift::{
    Coordinator, EntryKind, Error, GroupId, GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig,
    MemoryNodeAddress, MemoryWrite, SiftGroup, SiftTimeouts, Standby,
};

const TOKEN: Token = Token::new([3; TOKEN_BYTES]);
const GROUP: GroupId = GroupId(7);
const LAYOUT: GroupLayout =
    GroupLayout { log_bytes: 8192, unlogged_bytes: 4096, memory_bytes: 512 << 10, block_bytes: 64, data_shards: 1 };

async fn node(provider: &Arc<dyn Provider>, address: &str, layout: GroupLayout) -> Arc<LogMemoryNode> {
    let options = HostConfig { node: NodeId(1), tokens: Arc::new(|_| Some(TOKEN)) };
    let host = provider.host(address, options).await.expect("the address is free");
    let groups = vec![GroupMemory { id: GROUP, layout }];
    LogMemoryNode::start(LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() })
        .await
        .expect("the options are good")
}

fn group(provider: &Arc<dyn Provider>, name: &str) -> SiftGroup {
    let place =
        |slot| MemoryNodeAddress { address: format!("local:{name}-{slot}"), name: "orderer".to_owned(), token: TOKEN };
    let timing = SiftTimeouts {
        // Longer than any pause of a busy machine: no coordinator loses its lease here. Nor is one waited for.
        lease: Duration::from_secs(60),
        election_timeout: Duration::from_millis(20),
        attempt_max: Duration::from_millis(500),
        reconnect: Duration::from_millis(10),
        ..SiftTimeouts::default()
    };
    SiftGroup { id: GROUP, layout: LAYOUT, nodes: (0..3).map(place).collect(), provider: Arc::clone(provider), timing }
}

async fn nodes(group: &SiftGroup) -> Vec<Arc<LogMemoryNode>> {
    let mut nodes = Vec::new();
    for place in &group.nodes {
        nodes.push(node(&group.provider, &place.address, LAYOUT).await);
    }
    nodes
}

/// A coordinator of a group that no other coordinator serves: it waits for no silence, and for no lease to end.
async fn coordinator(group: &SiftGroup) -> Coordinator {
    let coordinator = loop {
        let mut standby = Standby::new(group.clone(), 1).expect("the group is good");
        let recovered = match standby.elect().await {
            Ok(elected) => elected.recover_without_waiting().await,
            Err(error) => Err(error),
        };
        match recovered {
            Ok(recovered) => break recovered.into_coordinator_unchecked(),
            Err(error @ (Error::MemoryLost { .. } | Error::Corrupt(_) | Error::Invalid(_))) => panic!("{error}"),
            Err(_) => {}
        }
    };
    coordinator.set_unlogged_recovered();
    coordinator
}

fn run(test: impl Future<Output = ()>) {
    rt::production::Runtime::new(2).expect("threads").block_on(test);
}

fn value(byte: u8, bytes: usize) -> Bytes {
    Bytes::from(vec![byte; bytes])
}

#[test]
fn what_was_written_is_read_by_this_coordinator_and_the_next() {
    run(async {
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let group = group(&provider, "memory");
        let _nodes = nodes(&group).await;
        sift::format(&group).await.expect("the nodes are blank");
        sift::format(&group).await.expect("nobody has used the group");
        let first = coordinator(&group).await;
        let memory = LAYOUT.unlogged_bytes;
        // Many times around the log.
        for round in 0..400_u64 {
            let bytes = value(round as u8, 64 + (round as usize * 37) % 900);
            let at = memory + (round % 50) * 1024;
            let index = first.write(at, bytes.clone()).await.expect("it serves");
            assert_eq!(index, round + 1);
            assert_eq!(first.read(at, bytes.len()).await.expect("it serves"), bytes);
        }
        let pair = [0_u64, 8192].map(|at| MemoryWrite { address: memory + at, bytes: value(9, 100) });
        first.transact(pair.to_vec()).await.expect("it serves");
        first.write_unlogged(64, value(5, 128)).await.expect("it serves");
        let copies = first.read_each(64, 128).await.expect("it serves");
        assert!(copies.len() >= 2 && copies.iter().all(|copy| *copy == value(5, 128)));
        assert!(first.status().log_used_bytes <= LAYOUT.log_bytes);
        drop(first);

        let second = coordinator(&group).await;
        for (at, byte, bytes) in [(0, 9, 100), (8192, 9, 100), (49 * 1024, 399_u64 as u8, 64 + (399 * 37) % 900)] {
            assert_eq!(second.read(memory + at, bytes).await.expect("it serves"), value(byte, bytes), "at {at}");
        }
        assert_eq!(second.write(memory, value(1, 1)).await, Ok(402));
        assert!(matches!(sift::format(&group).await, Err(Error::AlreadyFormatted(_))));
    });
}

#[test]
fn a_fenced_coordinator_writes_nothing_and_says_so() {
    run(async {
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let group = group(&provider, "fenced");
        let _nodes = nodes(&group).await;
        sift::format(&group).await.expect("the nodes are blank");
        let old = coordinator(&group).await;
        old.write(LAYOUT.unlogged_bytes, value(1, 64)).await.expect("it serves");
        // As if its heartbeats did not arrive: the standby does not wait for them.
        let elected = loop {
            let mut standby = Standby::new(group.clone(), 2).expect("the group is good");
            if let Ok(elected) = standby.elect().await {
                break elected;
            }
        };
        let new = elected.recover_without_waiting().await.expect("a majority is there").into_coordinator_unchecked();
        let failed = old.write(LAYOUT.unlogged_bytes, value(2, 64)).await.expect_err("it is fenced");
        assert!(matches!(failed, Error::Ambiguous | Error::Fenced(_)), "{failed}");
        assert!(matches!(old.ended().await, Error::Fenced(_) | Error::LeaseLost(_)));
        assert!(!old.is_serving());
        assert_eq!(new.read(LAYOUT.unlogged_bytes, 64).await.expect("it serves"), value(1, 64));
    });
}

#[test]
fn a_lost_node_comes_back_with_everything() {
    run(async {
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let group = group(&provider, "lost");
        let mut nodes = nodes(&group).await;
        sift::format(&group).await.expect("the nodes are blank");
        let coordinator = coordinator(&group).await;
        let memory = LAYOUT.unlogged_bytes;
        coordinator.write(memory + 100, value(1, 300)).await.expect("it serves");
        for lost in [1, 0, 2] {
            nodes[lost].stop().await;
            let byte = 10 + lost as u8;
            while coordinator.status().live == 3 {
                coordinator.write(memory + 7000, value(byte, 64)).await.expect("a majority is there");
                rt::sleep(Duration::from_millis(1)).await;
            }
            coordinator.write(memory + 64 * lost as u64, value(byte, 64)).await.expect("a majority is there");
            nodes[lost] = node(&provider, &group.nodes[lost].address, LAYOUT).await;
            while coordinator.status().live < 3 {
                let read = coordinator.read(memory + 64 * lost as u64, 64).await.expect("reads never stop");
                assert_eq!(read, value(byte, 64));
                coordinator.write(memory + 9000, value(byte, 64)).await.expect("writes neither");
                rt::sleep(Duration::from_millis(1)).await;
            }
        }
        // All three nodes were lost, one after another, and no data is.
        assert_eq!(coordinator.read(memory + 192, 208).await.expect("it serves"), value(1, 208));
        for lost in [0_u8, 1, 2] {
            let read = coordinator.read(memory + 64 * u64::from(lost), 64).await.expect("it serves");
            assert_eq!(read, value(10 + lost, 64));
        }
    });
}

#[test]
fn too_many_lost_nodes_are_reported_and_nothing_is_guessed() {
    run(async {
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let group = group(&provider, "gone");
        let mut nodes = nodes(&group).await;
        sift::format(&group).await.expect("the nodes are blank");
        let first = coordinator(&group).await;
        first.write(LAYOUT.unlogged_bytes, value(1, 64)).await.expect("it serves");
        for lost in [0, 1] {
            nodes[lost].stop().await;
            nodes[lost] = node(&provider, &group.nodes[lost].address, LAYOUT).await;
        }
        first.step_down();
        let mut standby = Standby::new(group.clone(), 2).expect("the group is good");
        let failed = standby.take_over().await.expect_err("a majority has lost its memory");
        assert_eq!(failed, Error::MemoryLost { lost: 2, nodes: 3 });
    });
}

/// A verb that no node accepts was taken for a failure of all nodes, and the coordinator ended.
#[test]
fn what_no_verb_can_move_is_refused_and_loses_no_node() {
    run(async {
        const BEYOND: usize = rma::TRANSFER_BYTES_MAX + 64;
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let mut group = group(&provider, "beyond");
        let bytes = BEYOND as u64;
        group.layout = GroupLayout { log_bytes: 260 << 20, unlogged_bytes: bytes, memory_bytes: bytes, ..LAYOUT };
        let mut nodes = Vec::new();
        for place in &group.nodes {
            nodes.push(node(&provider, &place.address, group.layout).await);
        }
        sift::format(&group).await.expect("the nodes are blank");
        let coordinator = coordinator(&group).await;
        let too_long = || Bytes::from(vec![1; BEYOND]);
        let refused = [
            coordinator.read(0, BEYOND).await.map(drop),
            coordinator.read_each(0, BEYOND).await.map(drop),
            coordinator.write_unlogged(0, too_long()).await,
            coordinator.write(bytes, too_long()).await.map(drop),
            coordinator.append_record(too_long()).await.map(drop),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        }
        assert_eq!((coordinator.status().live, coordinator.is_serving()), (3, true));
        coordinator.write(bytes, value(1, 64)).await.expect("it serves");
    });
}

#[test]
fn records_stay_until_they_are_trimmed() {
    run(async {
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let group = group(&provider, "records");
        let _nodes = nodes(&group).await;
        sift::format(&group).await.expect("the nodes are blank");
        let first = coordinator(&group).await;
        for record in 1..=10 {
            assert_eq!(first.append_record(value(record, 200)).await, Ok(u64::from(record)));
        }
        first.trim(4);
        first.wait_applied().await.expect("it serves");
        drop(first);
        let second = coordinator(&group).await;
        let recovered: Vec<(u64, EntryKind, u8)> =
            second.recovered().iter().map(|entry| (entry.index, entry.kind, entry.writes[0].bytes[0])).collect();
        assert_eq!(recovered, (5..=10).map(|index| (index, EntryKind::Record, index as u8)).collect::<Vec<_>>());
        for record in 11..=20 {
            second.append_record(value(record, 200)).await.expect("there is room");
        }
        // The log is bounded: the client has to trim.
        let full = second.clone();
        let appending = rt::spawn(async move {
            for record in 21..=60 {
                full.append_record(value(record, 200)).await.expect("it serves");
                full.trim(u64::from(record) - 5);
            }
        });
        appending.await.expect("nothing panics");
    });
}

#[test]
fn a_coded_group_serves_from_any_shares_that_are_enough() {
    run(async {
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let mut group = group(&provider, "coded");
        let place = |slot| MemoryNodeAddress { address: format!("local:coded-{slot}"), ..group.nodes[0].clone() };
        group.nodes = (0..5).map(place).collect();
        group.layout = GroupLayout { log_bytes: 64 << 10, block_bytes: 1024, data_shards: 3, ..LAYOUT };
        let mut nodes = Vec::new();
        for place in &group.nodes {
            nodes.push(node(&provider, &place.address, group.layout).await);
        }
        sift::format(&group).await.expect("the nodes are blank");
        let first = coordinator(&group).await;
        let memory = group.layout.unlogged_bytes as usize;
        let mut expected = vec![0_u8; group.layout.address_bytes() as usize];
        // Of any size and address; most cover parts of blocks.
        for round in 0..300_usize {
            let (at, bytes) = (memory + round * 7919 % (500 << 10), 1 + round * 37 % 5000);
            first.write(at as u64, value(round as u8, bytes)).await.expect("it serves");
            expected[at..at + bytes].fill(round as u8);
        }
        let pieces = [10_usize, 1010, 5000, 4096].map(|at| memory + at);
        let writes = pieces.iter().map(|at| MemoryWrite { address: *at as u64, bytes: value(201, 100) }).collect();
        first.transact(writes).await.expect("it serves");
        pieces.iter().for_each(|at| expected[*at..at + 100].fill(201));
        first.write_unlogged(64, value(5, 128)).await.expect("it serves");
        expected[64..192].fill(5);

        let check = async |coordinator: &Coordinator| {
            for (at, bytes) in (0..expected.len()).step_by(4099).zip((1..9000).step_by(61)) {
                let bytes = bytes.min(expected.len() - at);
                let read = coordinator.read(at as u64, bytes).await.expect("it serves");
                assert!(read == expected[at..at + bytes], "{bytes} bytes at {at}");
            }
        };
        check(&first).await;
        // Data and parity shards, two at a time, each pair followed by another: no shard is where it was at first.
        for lost in [[0, 1], [2, 3], [4, 0]] {
            for lost in lost {
                nodes[lost].stop().await;
            }
            while first.status().live == 5 {
                let _ = first.read(memory as u64, 4096).await.expect("F+1 nodes are there");
                rt::sleep(Duration::from_millis(1)).await;
            }
            check(&first).await;
            for lost in lost {
                nodes[lost] = node(&provider, &group.nodes[lost].address, group.layout).await;
            }
            while first.status().live < 5 {
                rt::sleep(Duration::from_millis(1)).await;
            }
        }
        check(&first).await;
        let refused = first.read_each(memory as u64, 64).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "nobody has it as it is");
        drop(first);
        let second = coordinator(&group).await;
        check(&second).await;
        let too_long = second.write(memory as u64 + 1, value(1, 16 << 10)).await;
        assert!(matches!(too_long, Err(Error::Invalid(_))), "with the rest of its blocks it is too long for the log");
        second.write(memory as u64, value(1, 64)).await.expect("it serves");
    });
}

#[test]
fn what_does_not_fit_together_is_refused_by_name() {
    run(async {
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let mut group = group(&provider, "unfit");
        let other = GroupLayout { block_bytes: 128, ..LAYOUT };
        let mut nodes = Vec::new();
        for place in &group.nodes {
            nodes.push(node(&provider, &place.address, other).await);
        }
        assert!(matches!(sift::format(&group).await, Err(Error::Rejected { .. })));
        group.layout = other;
        group.id = GroupId(8);
        assert!(matches!(sift::format(&group).await, Err(Error::Rejected { .. })));
        group.id = GROUP;
        group.layout.data_shards = 3;
        assert!(matches!(sift::format(&group).await, Err(Error::Invalid(_))));
        group.layout.data_shards = 2;
        assert!(matches!(sift::format(&group).await, Err(Error::Rejected { .. })));
        group.nodes.pop();
        assert!(matches!(sift::format(&group).await, Err(Error::Invalid(_))));
        assert!(matches!(Standby::new(group, 1), Err(Error::Invalid(_))));
    });
}

#[test]
fn a_directory_has_one_persistent_node_at_a_time() {
    run(async {
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let folder = tempfile::tempdir().expect("a folder can be made");
        let directory = Directory::open(folder.path()).await.expect("it is there");
        let start = async |address: &str| {
            let options = HostConfig { node: NodeId(1), tokens: Arc::new(|_| Some(TOKEN)) };
            let host = provider.host(address, options).await.expect("the address is free");
            let groups = vec![GroupMemory { id: GROUP, layout: LAYOUT }];
            LogMemoryNode::start_persistent(
                LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() },
                &directory,
            )
            .await
        };
        let first = start("local:owner-0").await.expect("nobody else is there");
        let locked = start("local:owner-1").await;
        assert!(matches!(&locked, Err(Error::Locked(path)) if path == folder.path()), "{locked:?}");
        first.stop().await;
        start("local:owner-2").await.expect("the first has ended").stop().await;
    });
}
