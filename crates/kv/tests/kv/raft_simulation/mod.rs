//! A key-value store on the Raft engine under faults: three or five nodes with disks, a guest that is added, gets a
//! vote and is removed again, and clients of the current leader.
//!
//! 1. A seed decides delays, requests and faults: nodes crash, also at the named points of the protocol, and lose the
//!    bytes that they had not synced; they are paused, are cut off and have drifting clocks; disks fail and fill up;
//!    links break; messages are lost. In every fifth seed nothing is durable and no node crashes. In every third seed,
//!    if it has three durable nodes, a node forgets its promises to the leader while the leader is cut off from another
//!    node.
//! 2. Meanwhile the applied entries of all nodes, the leaders of terms, and the versions that clients see are checked
//!    for contradictions.
//! 3. All faults are healed. Every client's operation then succeeds soon, and every node applies everything. The
//!    history of every key must be linearizable.
//!
//! Each of the planted mistakes ([`raft::fault`]) must be caught.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt::net::BoxFuture;
use base::rt::simulation::{FaultKind, FaultPlan, FaultPlanLimits, Sim};
use base::rt::{self, CancellationToken};
use base::{Bytes, ErrorKind};
use futures_util::FutureExt as _;
use kv::SwapOutcome;
use kv::raft_baseline::{KvStateMachine, RaftKvStore};
use raft::fault::{Mutant, plant};
use raft::{AppliedEntry, Error, RaftConfig, RaftMember, RaftTimeouts, StateMachine, Term};

use crate::history::{Asked, History, Outcome, bytes_of, expected_of};
use sift::testing::campaign::{Campaign, endure, plans_of, tests_of};

const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];
const GUEST: &str = "guest";
const KEYS: u64 = 12;
const CLIENTS: usize = 5;
/// Operations of a seed.
const OPERATIONS_MIN: u64 = 300;
/// How long faults happen.
const TROUBLE: Duration = Duration::from_millis(3000);
/// Time before a crashed node starts again.
const REVIVE: Duration = Duration::from_millis(60);
/// Within this time everything works again.
const CALM_MAX: Duration = Duration::from_secs(30);

const CRASH_POINTS: &[&str] = &[
    "consensus.raft.applying",
    "consensus.raft.installed",
    "consensus.raft.installing",
    "consensus.raft.saved",
    "consensus.raft.saving",
    "consensus.raft.synced",
    "consensus.raft.syncing",
];
/// Points that every run reaches again and again.
const OFTEN: &[&str] = &["consensus.raft.applying", "consensus.raft.synced", "consensus.raft.syncing"];
const FAULT_POINTS: &[&str] = &["consensus.raft.lose_message"];

/// Everything that the nodes have shown so far.
#[derive(Default)]
struct Truth {
    /// Term and bytes that were applied at an index.
    applied: BTreeMap<u64, (Term, Bytes)>,
    /// The leader of each term.
    leaders: BTreeMap<Term, u64>,
}

/// The world of one seed.
#[derive(Clone)]
struct World {
    history: Arc<History>,
    truth: Arc<Mutex<Truth>>,
    /// Each node's store as it is now, by the node's number.
    stores: Arc<Mutex<BTreeMap<u64, RaftKvStore>>>,
    guest: Arc<Mutex<u64>>,
    nodes: usize,
    is_durable: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state machine, with a check of the entries that it gets.
struct Checked {
    keys: KvStateMachine,
    truth: Arc<Mutex<Truth>>,
}

impl StateMachine for Checked {
    type Output = Option<SwapOutcome>;

    fn apply(&mut self, entries: Vec<AppliedEntry>) -> Vec<Option<SwapOutcome>> {
        for AppliedEntry { index, term, data } in &entries {
            let mut truth = lock(&self.truth);
            let before = truth.applied.entry(*index).or_insert_with(|| (*term, data.clone()));
            assert!(*before == (*term, data.clone()), "applied: {index} is of {}, and of {term} too", before.0);
        }
        self.keys.apply(entries)
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>> {
        self.keys.snapshot()
    }

    fn restore(&mut self, index: u64, snapshot: Bytes) -> Result<(), Error> {
        self.keys.restore(index, snapshot)
    }
}

fn timing() -> RaftTimeouts {
    RaftTimeouts { tick: Duration::from_millis(5), heartbeat_ticks: 3, election_ticks: 12 }
}

impl World {
    fn founders(&self) -> Vec<RaftMember> {
        let member =
            |which: usize| RaftMember { id: which as u64 + 1, address: NODES[which].to_owned(), is_learner: false };
        (0..self.nodes).map(member).collect()
    }

    fn options(&self, id: u64) -> RaftConfig {
        let founders = if id <= NODES.len() as u64 { self.founders() } else { Vec::new() };
        RaftConfig {
            listen: if id <= NODES.len() as u64 { NODES[id as usize - 1].to_owned() } else { guest_address(id) },
            directory: self.is_durable.then(|| format!("/raft-{id}").into()),
            timing: timing(),
            is_commit_lazy: id % 2 == 1,
            uncommitted_bytes_max: 1 << 20,
            log_bytes: 1500,
            snapshot_after_bytes: 12_000,
            segment_bytes: Some(4096),
            snapshot_bytes_max: 1 << 20,
            ..RaftConfig::new(9, id, founders)
        }
    }

    /// Runs a node, and restarts it when it has ended by itself.
    async fn run(self, id: impl Fn() -> u64) {
        loop {
            let number = id();
            let truth = Arc::clone(&self.truth);
            match RaftKvStore::start_with(self.options(number), |keys| Checked { keys, truth }).await {
                Ok(store) => {
                    lock(&self.stores).insert(number, store.clone());
                    let error = self.serve(&store, number, &id).await;
                    self.check_end(number, &error);
                    store.raft().stop().await;
                }
                Err(error) => self.check_end(number, &error),
            }
            rt::sleep(Duration::from_millis(20)).await;
        }
    }

    fn check_end(&self, id: u64, error: &Error) {
        let is_disk = matches!(error, Error::LogStore(_));
        if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) && !is_disk {
            self.history.fail(format!("report: node {id}: {error}"));
        }
    }

    async fn serve(&self, store: &RaftKvStore, number: u64, id: &impl Fn() -> u64) -> Error {
        let mut tasks = Vec::new();
        for _ in 0..CLIENTS {
            let (world, store) = (self.clone(), store.clone());
            tasks.push(rt::spawn(async move { world.ask(&store).await }).abort_on_drop());
        }
        let (truth, mut role) = (Arc::clone(&self.truth), store.raft().status());
        tasks.push(
            rt::spawn(async move {
                while role.changed().await.is_ok() {
                    let role = *role.borrow();
                    if role.is_leading {
                        let other = *lock(&truth).leaders.entry(role.term).or_insert(number);
                        assert!(other == number, "leaders: {other} and {number} lead in term {}", role.term);
                    }
                }
            })
            .abort_on_drop(),
        );
        let moved = async {
            while id() == number {
                rt::sleep(Duration::from_millis(30)).await;
            }
            Error::Closed
        };
        let mut ended = std::pin::pin!(store.raft().ended());
        let mut moved = std::pin::pin!(moved);
        futures_util::future::select(&mut ended, &mut moved).await.factor_first().0
    }

    async fn ask(&self, store: &RaftKvStore) {
        loop {
            match self.operate(store).await {
                Ok(()) => {}
                Err(Error::Closed) => return,
                Err(_) => rt::sleep(Duration::from_micros(5000 + rt::random_below(10_000))).await,
            }
        }
    }

    async fn operate(&self, store: &RaftKvStore) -> Result<(), Error> {
        let perform = |key: Bytes, asked| async move {
            Ok(match asked {
                Asked::Get => Outcome::got(store.get(&key).await?),
                Asked::Put(value) => Outcome::Done(store.put(&key, &bytes_of(value)).await?),
                Asked::Delete => Outcome::deleted(store.delete(&key).await?),
                Asked::Swap(expected, value) => {
                    let (expected, new) = (expected_of(expected), Some(bytes_of(value)));
                    Outcome::swapped(store.compare_and_set(&key, expected, new).await?)
                }
            })
        };
        self.history.operate(KEYS, Error::kind, perform).await
    }

    fn leading(&self) -> Option<RaftKvStore> {
        lock(&self.stores).values().find(|store| store.raft().status().borrow().is_leading).cloned()
    }

    /// Adds a guest, gives it a vote, removes it, and so on.
    async fn change_members(self, sim: Sim, until: CancellationToken) {
        let mut rng = sim.rng();
        let mut was_member = false;
        while !until.is_cancelled() {
            rt::sleep(rng.duration(&(Duration::from_millis(30)..Duration::from_millis(250)))).await;
            let Some(store) = self.leading() else { continue };
            let guest = store.raft().members().into_iter().find(|member| member.id > NODES.len() as u64);
            let changing = async {
                match guest {
                    None => {
                        let id = {
                            let mut guest = lock(&self.guest);
                            // A number that was a member's is not used again.
                            *guest += u64::from(std::mem::take(&mut was_member));
                            *guest
                        };
                        store.raft().add_learner(id, &guest_address(id)).await
                    }
                    Some(guest) => {
                        was_member = true;
                        match guest.is_learner {
                            true => store.raft().add_voter(guest.id, &guest.address).await,
                            false => store.raft().remove(guest.id).await,
                        }
                    }
                }
            };
            // The outcome does not matter: the members are read again.
            let _ = rt::timeout(Duration::from_millis(300), changing).await;
        }
    }

    /// Cuts a leader off from one node, and makes another node forget its promises to that leader.
    async fn break_promises(self, sim: Sim, until: CancellationToken) {
        let mut rng = sim.rng();
        while !until.is_cancelled() {
            rt::sleep(rng.duration(&(Duration::from_millis(100)..Duration::from_millis(300)))).await;
            let Some(leader) = self.leading().map(|store| store.raft().node() as usize - 1) else { continue };
            if leader >= self.nodes {
                continue;
            }
            let [cut, forgetful] = [1, 2].map(|step| NODES[(leader + step) % 3]);
            sim.cut(NODES[leader], cut);
            rt::sleep(rng.duration(&(Duration::from_millis(40)..Duration::from_millis(110)))).await;
            sim.node(forgetful).crash();
            sim.cut(NODES[leader], forgetful);
            sim.node(forgetful).restart();
            rt::sleep(Duration::from_millis(200)).await;
            sim.heal(NODES[leader], forgetful);
            sim.heal(NODES[leader], cut);
        }
    }

    /// Every node of the group applies the same entries as the others, and clients continue.
    async fn comes_to_rest(&self) {
        let start = rt::now();
        let late = || start.elapsed() >= CALM_MAX;
        while self.history.operations() < OPERATIONS_MIN {
            self.history.check_failed();
            assert!(!late(), "progress: after {CALM_MAX:?} of calm: {}", self.history.operations());
            rt::sleep(Duration::from_millis(50)).await;
        }
        let before = self.history.operations();
        while self.history.operations() < before + 20 {
            assert!(!late(), "progress: nothing is read or written any more");
            self.history.check_failed();
            rt::sleep(Duration::from_millis(50)).await;
        }
        let Some(members) = self.leading().map(|store| store.raft().members()) else {
            panic!("progress: nobody leads")
        };
        let until = lock(&self.truth).applied.last_key_value().map_or(0, |(index, _)| *index);
        // A node that an old leader considered removed is a member that does not run.
        let runs = |member: &RaftMember| member.id <= NODES.len() as u64 || member.id == *lock(&self.guest);
        for member in members.into_iter().filter(runs) {
            let applied = || lock(&self.stores).get(&member.id).map_or(0, |store| store.raft().applied());
            while applied() < until {
                assert!(!late(), "progress: node {} has applied {} of {until}", member.id, applied());
                rt::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

fn guest_address(id: u64) -> String {
    format!("guest-{id}")
}

fn is_durable(seed: u64) -> bool {
    seed % 5 != 4
}

fn nodes(seed: u64) -> usize {
    if seed % 4 == 3 { 5 } else { 3 }
}

/// Faults of all nodes, and crashes.
fn plans(seed: u64) -> [FaultPlan; 2] {
    let mut kinds = vec![
        FaultKind::Pause,
        FaultKind::Pause,
        FaultKind::Cut,
        FaultKind::Cut,
        FaultKind::Cut,
        FaultKind::Break,
        FaultKind::Drift,
    ];
    if is_durable(seed) {
        kinds.extend([FaultKind::Fail, FaultKind::Fill]);
    }
    let names: Vec<&str> = NODES[..nodes(seed)].iter().chain(&[GUEST]).copied().collect();
    let bounds = FaultPlanLimits {
        nodes: names.iter().map(|name| (*name).to_owned()).collect(),
        kinds,
        faults: 10,
        within: Duration::from_millis(300)..TROUBLE,
        lasting: Duration::from_millis(5)..Duration::from_millis(500),
        down_max: 2,
    };
    plans_of(seed, bounds, &names, if is_durable(seed) { 5 } else { 0 })
}

async fn scenario(sim: Sim) -> u64 {
    let seed = sim.seed();
    let history = Arc::new(History::new(&sim));
    let world = World {
        history: Arc::clone(&history),
        truth: Arc::default(),
        stores: Arc::default(),
        guest: Arc::new(Mutex::new(NODES.len() as u64 + 1)),
        nodes: nodes(seed),
        is_durable: is_durable(seed),
    };
    for (which, name) in NODES[..world.nodes].iter().enumerate() {
        let world = world.clone();
        sim.node(name).start(move || world.clone().run(move || which as u64 + 1));
    }
    let guest = world.clone();
    sim.node(GUEST).start(move || {
        let (world, number) = (guest.clone(), Arc::clone(&guest.guest));
        world.run(move || *lock(&number))
    });
    rt::sleep(Duration::from_millis(300)).await;
    let calm = CancellationToken::new();
    let changing = rt::spawn(world.clone().change_members(sim.clone(), calm.clone()));
    let forgetting = (seed % 3 == 1 && world.is_durable && world.nodes == 3)
        .then(|| rt::spawn(world.clone().break_promises(sim.clone(), calm.clone())));
    let names: Vec<&'static str> = NODES[..world.nodes].iter().chain(&[GUEST]).copied().collect();
    if !seed.is_multiple_of(4) {
        FAULT_POINTS.iter().for_each(|point| sim.inject(point, 0.01));
        for point in CRASH_POINTS.iter().filter(|_| world.is_durable) {
            sim.inject(point, if OFTEN.contains(point) { 0.002 } else { 0.08 });
        }
    }
    endure(&sim, plans(seed), &names, REVIVE, CRASH_POINTS.iter().chain(FAULT_POINTS)).await;
    calm.cancel();
    changing.await.expect("the driver does not crash");
    if let Some(forgetting) = forgetting {
        forgetting.await.expect("the driver does not crash");
    }
    sim.heal_all();
    history.check_failed();
    world.comes_to_rest().await;
    history.check_failed();
    history.check_linearizable();
    history.operations()
}

fn campaign() -> Campaign<Mutant> {
    Campaign {
        name: "RAFT",
        program: "kv",
        tests: "raft_simulation::",
        steps_max: 6_000_000,
        scenario: |sim, _| scenario(sim).boxed(),
        plans,
        points: FAULT_POINTS.iter().chain(CRASH_POINTS).copied().collect(),
        enough: 75,
        plant,
        sound: Mutant::None,
        mistakes: &[
            (Mutant::ConfirmUnsynced, &["linearizable:", "changed:", "applied:", "report:"]),
            (Mutant::ForgetVote, &["leaders:", "applied:", "linearizable:", "changed:"]),
            (Mutant::AnswerUncommitted, &["linearizable:", "changed:"]),
            (Mutant::ReadWithoutLease, &["linearizable:"]),
            (Mutant::KeepTorn, &["report:", "applied:", "torn:", "linearizable:"]),
            (Mutant::SnapshotUnsynced, &["report:", "applied:", "linearizable:"]),
            (Mutant::SkipRestore, &["linearizable:", "changed:"]),
        ],
    }
}

#[test]
fn seeds_0_to_74() {
    campaign().run(0..75);
}

#[test]
fn seeds_75_to_149() {
    campaign().run(75..150);
}

tests_of!(campaign());
