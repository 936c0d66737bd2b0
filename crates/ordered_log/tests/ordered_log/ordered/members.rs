//! Changes of the members of an ordered log on Raft, under load and faults: a fourth CPU node joins, and one of the
//! founders is removed.
//!
//! 1. The current leader carries out an operator's requests: [`RaftLog::admit`], repeated until the new CPU node has a
//!    vote, and then the removal of the founder that the seed chose. If the leader is that founder itself, it hands
//!    over its leadership first. In every second seed the founder crashes for good once its removal is requested,
//!    whether it is removed by then or not. In every third seed the leader is cut off when the removal is requested.
//! 2. CPU nodes crash, also at the named points, are paused and cut off; messages are lost. [`LogChecker`] checks the
//!    shown entries against the guarantees, as for all engines. A node that gets a vote must have the entries that were
//!    committed before that. Once a node's vote was reported, every later leader must know of the vote.
//! 3. All faults are healed. The three remaining nodes must show all entries that were ever shown, and more.
//!
//! Planted mistakes in admission and in removal must be caught.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use ordered_log::raft::AdmissionProgress;
use raft::fault::{Mutant as RaftMutant, plant as plant_raft};

use super::*;
use sift::testing::campaign::{Outcome, endure, plans_of};

const NEWCOMER: &str = "newcomer";
const NEWCOMER_ID: u64 = 4;
const SEEDS: u64 = 40;
/// Between two steps of the operator.
const STEP: Duration = Duration::from_millis(15);

/// What is asked of the current leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Nothing,
    Admit,
    Remove(u64),
}

#[derive(Default)]
struct Told {
    /// The number of the newcomer's incarnation, and its log store.
    newcomer: Option<(u64, Arc<dyn LogStore>)>,
    lives: u64,
    /// The terms in which it was reported that the newcomer has a vote, and that the founder is removed.
    voted: Option<Term>,
    removed: Option<Term>,
    /// How often a leader had to hand over in order to be removed.
    handed_over: u64,
}

#[derive(Clone)]
struct Changing {
    world: World,
    asked: Arc<Mutex<Asked>>,
    told: Arc<Mutex<Told>>,
    victim: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder panics")
}

fn name_of(id: u64) -> &'static str {
    if id == NEWCOMER_ID { NEWCOMER } else { CPU_NODES[id as usize - 1] }
}

fn address_of(id: u64) -> String {
    format!("raft-{}", name_of(id))
}

fn options(id: u64) -> raft::RaftConfig {
    if id != NEWCOMER_ID {
        return raft_options(id as usize - 1);
    }
    raft::RaftConfig { node: id, listen: address_of(id), founders: Vec::new(), ..raft_options(0) }
}

impl Changing {
    async fn process(self, id: u64) {
        loop {
            self.world.checker.starts(name_of(id));
            match self.serve(id).await {
                // It has learned that it is not a member any more.
                Ok(Error::Raft(raft::Error::Removed)) | Err(Error::Raft(raft::Error::Removed)) => {
                    assert!(id == self.victim, "report: {} was removed", name_of(id));
                    self.world.checker.starts(name_of(id));
                    return std::future::pending().await;
                }
                Ok(error) | Err(error) => match error.kind() {
                    ErrorKind::Corrupt | ErrorKind::Rejected => {
                        return self.world.checker.fail(format!("report: {}: {error}", name_of(id)));
                    }
                    _ => rt::sleep(Duration::from_millis(20)).await,
                },
            }
        }
    }

    async fn serve(&self, id: u64) -> Result<Error, Error> {
        let (world, name) = (&self.world, name_of(id).to_owned());
        let journal: Arc<dyn LogStore> = Arc::new(FileLogStore::open(&World::first()).await?);
        if id == NEWCOMER_ID {
            let mut told = lock(&self.told);
            told.lives += 1;
            told.newcomer = Some((told.lives, Arc::clone(&journal)));
        }
        let log = Arc::new(RaftLog::open(options(id), Arc::clone(&journal)).await?);
        let engine: Arc<dyn OrderedLog> = log.clone();
        let driven = conformance::drive(&world.checker, &name, &*engine, &*journal);
        let all = join(driven, self.clone().operate(id, Arc::clone(&log)));
        match select(pin!(engine.ended()), pin!(all)).await {
            Either::Left((error, _)) => Ok(error),
            Either::Right(_) => unreachable!("they have no end"),
        }
    }

    /// Does what is asked while this CPU node is the leader.
    async fn operate(self, id: u64, log: Arc<RaftLog>) {
        let role = log.leadership();
        loop {
            rt::sleep(STEP).await;
            let Some(term) = role.borrow().term() else { continue };
            self.check(term, &log, role.borrow().term());
            // The effect of an error shows at the next step.
            let asked = *lock(&self.asked);
            let _ = match asked {
                Asked::Nothing => Ok(()),
                Asked::Admit => self.admit(term, &log).await,
                Asked::Remove(victim) => self.remove(victim, id, term, &log).await,
            };
        }
    }

    /// Checks that a leader has applied all changes that were reported in earlier terms.
    fn check(&self, term: Term, log: &RaftLog, still: Option<Term>) {
        let members = log.raft().members();
        let told = lock(&self.told);
        if still != Some(term) {
            return;
        }
        let votes = |id: u64| members.iter().any(|member| member.id == id && !member.is_learner);
        if told.voted.is_some_and(|voted| voted < term) {
            assert!(votes(NEWCOMER_ID), "told: the newcomer has a vote, and in {term} it has none: {members:?}");
        }
        if told.removed.is_some_and(|removed| removed < term) {
            assert!(!votes(self.victim), "told: {} has gone, and in {term} it has a vote", name_of(self.victim));
        }
    }

    async fn admit(&self, term: Term, log: &RaftLog) -> Result<(), Error> {
        let life = lock(&self.told).newcomer.as_ref().map(|(life, _)| *life);
        let safe = *log.deliverable().borrow();
        let had_a_vote = log.raft().members().iter().any(|member| member.id == NEWCOMER_ID && !member.is_learner);
        if log.admit(NEWCOMER_ID, &address_of(NEWCOMER_ID)).await? != AdmissionProgress::Voter {
            return Ok(());
        }
        let mut told = lock(&self.told);
        if let Some((now, journal)) = &told.newcomer
            && Some(*now) == life
            && !had_a_vote
        {
            let has = journal.height();
            assert!(has >= safe, "blank: the newcomer got its vote with {has} entries, when {safe} were safe");
        }
        told.voted.get_or_insert(term);
        Ok(())
    }

    async fn remove(&self, victim: u64, id: u64, term: Term, log: &RaftLog) -> Result<(), Error> {
        if victim == id {
            lock(&self.told).handed_over += 1;
            log.raft().transfer_leadership(&options(id).timing);
            return Ok(());
        }
        log.raft().remove(victim).await?;
        lock(&self.told).removed.get_or_insert(term);
        Ok(())
    }

    async fn told(&self, what: impl Fn(&Told) -> bool) {
        let start = rt::now();
        while !what(&lock(&self.told)) {
            self.world.checker.check_failed();
            assert!(start.elapsed() < CALM_MAX, "progress: the members do not change: {:?}", *lock(&self.asked));
            rt::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The remaining nodes show all entries that were ever shown, and this many more.
    async fn come_to_rest(&self, more: u64) {
        let start = rt::now();
        let goal = self.world.checker.height() + more;
        let left: Vec<&str> = (1..=NEWCOMER_ID).filter(|id| *id != self.victim).map(name_of).collect();
        loop {
            self.world.checker.check_failed();
            let heights: BTreeMap<String, u64> = self.world.checker.heights();
            if left.iter().all(|name| heights.get(*name).is_some_and(|height| *height >= goal)) {
                return;
            }
            assert!(start.elapsed() < CALM_MAX, "progress: {goal} entries are to be shown, and there are {heights:?}");
            rt::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Returns how often a leader handed over.
async fn scenario(sim: Sim, mutant: Mutant, raft_mutant: RaftMutant) -> u64 {
    plant(mutant);
    plant_raft(raft_mutant);
    let seed = sim.seed();
    let mut rng = sim.rng();
    let layout = GroupLayout { log_bytes: 8192, unlogged_bytes: 0, memory_bytes: 0, block_bytes: 64, data_shards: 1 };
    let world = World {
        sim: sim.clone(),
        engine: Engine::Raft,
        provider: SimProvider::new(&sim),
        checker: Arc::new(LogChecker::new(&sim)),
        layout,
        status: Arc::default(),
        may_end: Arc::default(),
    };
    let victim = 1 + rng.below(CPU_NODES.len() as u64);
    let asked = Arc::new(Mutex::new(Asked::Nothing));
    let changing = Changing { world, asked: Arc::clone(&asked), told: Arc::default(), victim };
    for id in 1..=NEWCOMER_ID {
        let changing = changing.clone();
        sim.node(name_of(id)).start(move || changing.clone().process(id));
    }
    // Enough for the newcomer to get a snapshot, and entries from log stores.
    while changing.world.checker.height() < 60 {
        rt::sleep(Duration::from_millis(20)).await;
    }
    *lock(&asked) = Asked::Admit;
    let names = [CPU_NODES[0], CPU_NODES[1], CPU_NODES[2], NEWCOMER];
    if !seed.is_multiple_of(4) {
        for point in RAFT_FAULT_POINTS.iter().chain(RAFT_OFTEN) {
            sim.inject(point, 0.002);
        }
        for point in RAFT_CRASH_POINTS.iter().filter(|point| !RAFT_OFTEN.contains(point)) {
            sim.inject(point, 0.03);
        }
    }
    let bounds = rt::simulation::FaultPlanLimits {
        nodes: names.iter().map(|name| (*name).to_owned()).collect(),
        kinds: vec![FaultKind::Pause, FaultKind::Cut, FaultKind::Cut, FaultKind::Break, FaultKind::Drift],
        faults: 8,
        within: Duration::from_millis(50)..Duration::from_millis(2000),
        lasting: Duration::from_millis(5)..Duration::from_millis(400),
        down_max: 2,
    };
    let points = RAFT_FAULT_POINTS.iter().chain(RAFT_CRASH_POINTS);
    let trouble = endure(&sim, plans_of(seed, bounds, &names, 4), &names, Duration::from_millis(60), points);
    // The founder leaves as soon as the newcomer has a vote, during the faults or after them.
    let next = async {
        changing.told(|told| told.voted.is_some()).await;
        let leader = changing.world.checker.leader();
        let cut_off = names.into_iter().find(|name| seed.is_multiple_of(3) && leader.as_deref() == Some(name));
        let others = || names.into_iter().filter(move |name| Some(*name) != cut_off);
        cut_off.iter().for_each(|leader| others().for_each(|other| sim.cut(leader, other)));
        *lock(&asked) = Asked::Remove(victim);
        if let Some(leader) = cut_off {
            rt::sleep(Duration::from_millis(300)).await;
            others().for_each(|other| sim.heal(leader, other));
        }
    };
    futures_util::future::join(trouble, next).await;
    if seed.is_multiple_of(2) {
        // Removed, or about to be removed: it never comes back.
        sim.node(name_of(victim)).crash();
    }
    changing.told(|told| told.removed.is_some()).await;
    *lock(&asked) = Asked::Nothing;
    sim.node(name_of(victim)).crash();
    changing.come_to_rest(20).await;
    changing.world.checker.check_failed();
    changing.world.checker.check_complete();
    lock(&changing.told).handed_over
}

fn run(seed: u64, mutant: Mutant, raft_mutant: RaftMutant) -> Outcome {
    let outcome = Simulation::new(seed).trace_lines_max(60).run(move |sim| scenario(sim, mutant, raft_mutant));
    plant_raft(RaftMutant::None);
    outcome
}

#[test]
fn members_change_under_faults_and_nothing_shown_is_lost() {
    let run =
        |seed| run(seed, Mutant::None, RaftMutant::None).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    let handed_over: u64 = (0..SEEDS).map(|seed| run(seed).value).sum();
    assert!(handed_over > 0, "no leader was to be removed in {SEEDS} seeds");
}

#[test]
fn a_vote_without_entries_and_a_change_without_a_majority_are_caught() {
    must_be_caught("VoteBlank", &["blank", "lost"], |seed| run(seed, Mutant::VoteBlank, RaftMutant::None));
    must_be_caught("AnswerChange", &["told"], |seed| run(seed, Mutant::None, RaftMutant::AnswerChange));
}
