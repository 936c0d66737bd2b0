//! Sequences of events that the seeds of a simulation seldom produce.

use std::path::PathBuf;
use std::time::Duration;

use base::rt::channel::{WatchSender, watch};
use base::rt::net;
use base::rt::net::BoxFuture;
use base::rt::simulation::{Sim, Simulation};
use base::{Bytes, rt};
use raft_rs::eraftpb::{Message, MessageType};

use super::engine::first_snapshot;
use super::fault::{Mutant, plant};
use super::links::{LinkEndpoints, send_snapshot};
use super::*;

const GROUP: u64 = 7;
const DIRECTORY: &str = "/raft";
/// The time until a node that has ended no longer listens.
const PAUSE: Duration = Duration::from_millis(20);

fn founders() -> Vec<RaftMember> {
    (1..=3).map(|id| RaftMember { id, address: format!("n{id}"), is_learner: false }).collect()
}

fn ends() -> LinkEndpoints {
    LinkEndpoints { group: GROUP, from: 1, incarnation: 0, address: "n1".into(), to: 2 }
}

fn options() -> RaftConfig {
    RaftConfig { directory: Some(PathBuf::from(DIRECTORY)), ..RaftConfig::new(GROUP, 2, founders()) }
}

/// Runs a scenario with a planted mistake, which it must find, and without.
fn must_find<F: Future<Output = u64> + Send + 'static>(mutant: Mutant, run: impl Fn(Sim) -> F, says: &str) {
    plant(mutant);
    let outcome = Simulation::new(1).run(&run);
    plant(Mutant::None);
    let reason = outcome.expect_err("the mistake does harm").reason.to_string();
    assert!(reason.contains(says), "{mutant:?} is found, but by something else: {reason}");
    Simulation::new(1).run(&run).expect("without it all is well");
}

/// A snapshot as a leader sends it.
fn snapshot_of(machine: &[u8], members: &[RaftMember]) -> Message {
    let mut snapshot = first_snapshot(members, machine);
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (10, 5);
    let mut message = Message { msg_type: MessageType::MsgSnapshot, from: 1, to: 2, term: 5, ..Message::default() };
    message.set_snapshot(snapshot);
    message
}

/// A machine without state: its snapshots are empty, and it reads no others.
struct Stateless;

impl StateMachine for Stateless {
    type Output = ();

    fn apply(&mut self, entries: Vec<AppliedEntry>) -> Vec<()> {
        entries.iter().map(|_| ()).collect()
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>> {
        Box::pin(async { Ok(Bytes::new()) })
    }

    fn restore(&mut self, _index: u64, snapshot: Bytes) -> Result<(), Error> {
        if snapshot.is_empty() { Ok(()) } else { Err(Error::Corrupt("a snapshot of another machine")) }
    }
}

/// A node is sent snapshots that it cannot read.
async fn unreadable(sim: Sim) -> u64 {
    let taking = sim.node("n2").spawn(async move {
        let node = Raft::start(options(), Stateless).await.expect("the directory is blank");
        let send = |message| send_snapshot("n2", ends(), message);
        // Its members are not those that its metadata names.
        let mut strange = snapshot_of(&[], &founders());
        strange.mut_snapshot().mut_metadata().mut_conf_state().voters.push(4);
        send(strange).await;
        let goes_on = rt::timeout(Duration::from_millis(100), node.ended()).await.is_err();
        assert!(goes_on, "a node outlives what it does not take");
        // No machine can decode it.
        send(snapshot_of(b"no machine", &founders())).await;
        assert!(matches!(node.ended().await, Error::Corrupt(_)));
        rt::sleep(PAUSE).await;
        let again = Raft::start(options(), Stateless).await;
        let again = again.unwrap_or_else(|error| panic!("report: it is on disk: {error}"));
        assert_eq!(again.applied(), 1, "it is what it was");
    });
    taking.await.expect("it does not crash");
    1
}

#[test]
fn a_snapshot_that_cannot_be_read_never_comes_to_disk() {
    must_find(Mutant::InstallUnread, unreadable, "report: it is on disk");
}

/// A machine whose snapshots take for ever.
struct Slow(WatchSender<bool>);

impl StateMachine for Slow {
    type Output = ();

    fn apply(&mut self, entries: Vec<AppliedEntry>) -> Vec<()> {
        entries.iter().map(|_| ()).collect()
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>> {
        // The first snapshot of the directory is made at once.
        let is_later = *self.0.borrow();
        self.0.send(true);
        Box::pin(async move {
            if is_later {
                std::future::pending::<()>().await;
            }
            Ok(Bytes::new())
        })
    }

    fn restore(&mut self, _index: u64, _snapshot: Bytes) -> Result<(), Error> {
        Ok(())
    }
}

/// A node is stopped while it makes a snapshot, and another one opens its directory.
async fn stopped(sim: Sim) -> u64 {
    let running = sim.node("n2").spawn(async move {
        let alone = || RaftConfig {
            founders: vec![RaftMember { id: 2, address: "n2".to_owned(), is_learner: false }],
            snapshot_after_bytes: 1,
            ..options()
        };
        let node = Raft::start(alone(), Slow(watch(false).0)).await.expect("the directory is blank");
        while node.propose(Bytes::from_static(b"entry")).await.is_err() {
            rt::sleep(Duration::from_millis(10)).await;
        }
        let elsewhere = RaftConfig { listen: "elsewhere".to_owned(), ..alone() };
        let locked = Raft::start(elsewhere, Slow(watch(false).0)).await;
        assert!(matches!(&locked, Err(Error::Locked(path)) if path == DIRECTORY), "{locked:?}");
        rt::sleep(Duration::from_millis(50)).await;
        node.stop().await;
        rt::sleep(PAUSE).await;
        let again = Raft::start(alone(), Slow(watch(false).0)).await;
        let again = again.unwrap_or_else(|error| panic!("report: {error}"));
        again.stop().await;
    });
    running.await.expect("it does not crash");
    1
}

#[test]
fn a_directory_has_one_node_at_a_time_and_is_free_when_that_has_stopped() {
    must_find(Mutant::LeaveSnapshot, stopped, "report: /raft is in use");
}

/// More links than a node accepts are silent; another one comes later.
async fn silent(sim: Sim) -> u64 {
    let talking = sim.node("n2").spawn(async move {
        let options = RaftConfig { directory: None, ..options() };
        let _node = Raft::start(options, Slow(watch(false).0)).await.expect("nothing is there");
        let mut links = Vec::new();
        for _ in 0..300 {
            links.push(net::connect("n2").await.expect("it listens"));
        }
        rt::sleep(Duration::from_secs(10)).await;
        let greeting = ends();
        let (sender, mut receiver) = net::connect("n2").await.expect("it listens").split();
        sender.send(links::hello(&greeting, links::KIND_MESSAGES)).await.expect("there is room");
        let answer = receiver.receive().await.expect("the late one is heard");
        let versions = links::PROTOCOL_VERSIONS;
        assert_eq!(answer[..], wire::hello::HelloAnswer::to(versions, versions).encode());
        let stays = rt::timeout(Duration::from_secs(1), receiver.receive()).await.is_err();
        assert!(stays, "a link that says who it is is one too many");
    });
    talking.await.expect("it does not crash");
    1
}

#[test]
fn links_that_say_nothing_make_room() {
    Simulation::new(1).run(silent).expect("the late one is heard");
}

/// A machine that panics at its first entry.
struct Panics;

impl StateMachine for Panics {
    type Output = ();

    fn apply(&mut self, _: Vec<AppliedEntry>) -> Vec<()> {
        panic!("it was impossible")
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>> {
        Box::pin(async { Ok(Bytes::new()) })
    }

    fn restore(&mut self, _index: u64, _snapshot: Bytes) -> Result<(), Error> {
        Ok(())
    }
}

fn alone(listen: &str) -> RaftConfig {
    RaftConfig::new(GROUP, 2, vec![RaftMember { id: 2, address: listen.to_owned(), is_learner: false }])
}

/// The node's task was gone, and callers that stopped it, or waited for its end, waited for ever.
#[test]
fn a_panic_of_the_machine_ends_the_node() {
    rt::production::run(async {
        let node = Raft::start(alone("127.0.0.1:0"), Panics).await.expect("it starts");
        let proposing = async {
            while let Err(Error::NotLeading(_) | Error::Busy) = node.propose(Bytes::from_static(b"entry")).await {
                rt::sleep(Duration::from_millis(10)).await;
            }
        };
        rt::timeout(Duration::from_secs(20), proposing).await.expect("the proposer is notified");
        let ended = rt::timeout(Duration::from_secs(20), node.ended()).await;
        assert_eq!(ended.expect("it has ended"), Error::Panicked("a Raft node"));
        rt::timeout(Duration::from_secs(20), node.stop()).await.expect("it stops");
    });
}

/// All proposals that came at once became one record, however many: the crate bounds the uncommitted entries only from the
/// second on.
async fn crowded(sim: Sim) -> u64 {
    let proposing = sim.node("n2").spawn(async move {
        let options = RaftConfig { uncommitted_bytes_max: 2 << 20, ..alone("n2") };
        let node = Raft::start(options, Slow(watch(false).0)).await.expect("nothing is there");
        while node.propose(Bytes::from_static(b"entry")).await.is_err() {
            rt::sleep(Duration::from_millis(10)).await;
        }
        let many = (0..100).map(|_| node.propose(vec![1; 300 << 10].into()));
        let outcomes = futures_util::future::join_all(many).await;
        let taken = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let refused = outcomes.iter().filter(|outcome| **outcome == Err(Error::Busy)).count();
        assert_eq!((taken, taken + refused), (6, 100), "as many as are to be uncommitted");
        node.propose(vec![1; 5 << 20].into()).await.expect("one alone is taken");
    });
    proposing.await.expect("it does not crash");
    1
}

#[test]
fn proposals_that_come_at_once_are_bounded_by_their_bytes() {
    Simulation::new(1).run(crowded).expect("the bound holds");
}
