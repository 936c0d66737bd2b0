use base::rt::channel::WatchReceiver;
use base::rt::simulation::Simulation;
use raft::{RaftMember, RaftTimeouts};

use super::*;

/// Bytes that every log store rejects.
const UNFIT: &[u8] = b"unfit";

/// A log store in memory. While its gate is closed, appending waits.
struct Gated {
    entries: Mutex<Vec<Bytes>>,
    open: WatchSender<bool>,
}

impl Gated {
    fn new() -> Arc<Gated> {
        Arc::new(Gated { entries: Mutex::new(vec![Bytes::from_static(b"first")]), open: watch(true).0 })
    }
}

#[async_trait]
impl LogStore for Gated {
    fn height(&self) -> u64 {
        lock(&self.entries).len() as u64
    }

    fn durable(&self) -> u64 {
        self.height()
    }

    fn read(&self, position: u64) -> Result<Option<Bytes>, Error> {
        Ok(lock(&self.entries).get(position as usize).cloned())
    }

    async fn append(&self, position: u64, entry: Bytes) -> Result<(), Error> {
        self.open.subscribe().wait_for(|open| *open).await.map_err(|_| Error::Closed)?;
        assert_eq!(position, self.height());
        if entry == UNFIT {
            return Err(Error::Invalid("it cannot follow".to_owned()));
        }
        lock(&self.entries).push(entry);
        Ok(())
    }

    async fn sync(&self) -> Result<u64, Error> {
        Ok(self.height())
    }

    async fn truncate(&self, _height: u64) -> Result<(), Error> {
        unreachable!("Raft's journals are never cut")
    }

    fn hard_state(&self) -> Result<Bytes, Error> {
        Ok(Bytes::new())
    }

    async fn set_hard_state(&self, _note: Bytes) -> Result<(), Error> {
        Ok(())
    }
}

const BOUNDS: AppendLimits = AppendLimits { bytes: 1000, entries: 4 };
const PATIENCE: Duration = Duration::from_secs(60);

async fn open(node: u64, nodes: u64, journal: &Arc<Gated>) -> Arc<RaftLog> {
    let member = |id| RaftMember { id, address: format!("node-{id}"), is_learner: false };
    let timing = RaftTimeouts { tick: Duration::from_millis(5), ..RaftTimeouts::default() };
    let options = RaftConfig { timing, ..RaftConfig::new(1, node, (1..=nodes).map(member).collect()) };
    Arc::new(RaftLog::open_within(BOUNDS, options, journal.clone()).await.expect("it starts"))
}

async fn leads(log: &RaftLog, after: Term) -> (Term, u64) {
    let mut role = log.leadership();
    let leading = role.wait_for(|role| role.term().is_some_and(|term| term > after));
    match rt::timeout(PATIENCE, leading).await.expect("it leads soon").expect("it runs") {
        Leadership::Leading { term, next } => (term, next),
        Leadership::Following { .. } => unreachable!("it has a term"),
    }
}

async fn is_safe(mut safe: WatchReceiver<u64>, height: u64) {
    let reached = rt::timeout(PATIENCE, safe.wait_for(|safe| *safe >= height)).await;
    reached.expect("it is safe soon").expect("the log runs");
}

fn entry(bytes: usize) -> Bytes {
    vec![7; bytes].into()
}

fn run<F: Future<Output = ()> + Send + 'static>(scenario: impl Fn() -> F + Send + Sync + 'static) {
    let outcome = Simulation::new(1).run(move |_| scenario());
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Capacity was released once an entry was committed, however many entries the log store had still to write.
#[test]
fn room_is_given_back_when_entries_are_safe_and_not_before() {
    for bytes in [10, 300] {
        run(move || async move {
            let journal = Gated::new();
            let log = open(1, 1, &journal).await;
            let (term, next) = leads(&log, Term(0)).await;
            journal.open.send(false);
            let fit = BOUNDS.entries.min(BOUNDS.bytes / bytes) as u64;
            let appending = log.clone();
            let task = rt::spawn(async move {
                for position in next..next + fit + 1 {
                    appending.append(term, position, entry(bytes)).await.expect("it leads");
                }
            });
            rt::sleep(Duration::from_secs(2)).await;
            let counted = lock(&log.shared.delivery).next;
            assert_eq!(counted, next + fit, "with {bytes} bytes an entry: those that fit are agreed on, and no more");
            journal.open.send(true);
            task.await.expect("there is room again");
            is_safe(log.deliverable(), next + fit + 1).await;
        });
    }
}

/// An append that was dropped between its position and its proposal left a hole, and no entry behind it ever became
/// deliverable.
#[test]
fn an_append_that_is_given_up_ends_the_term_and_leaves_no_hole() {
    run(|| async {
        let journal = Gated::new();
        let log = open(1, 1, &journal).await;
        let (term, next) = leads(&log, Term(0)).await;
        // The engine has as many proposals as it takes, and does not run meanwhile: the next proposal must wait.
        while log.raft.propose_in_term(term, entry(1)).now_or_never().is_some() {}
        assert!(log.append(term, next, entry(10)).now_or_never().is_none(), "it waits");
        assert_eq!(log.append(term, next + 1, entry(10)).await, Err(Error::Fenced(term)));
        let (later, next) = leads(&log, term).await;
        log.append(later, next, entry(10)).await.expect("it leads");
        is_safe(log.deliverable(), next + 1).await;
    });
}

/// The entries that a follower had counted and not written had no bound.
#[test]
fn a_node_that_follows_takes_no_more_than_its_journal() {
    run(|| async {
        let journals = [Gated::new(), Gated::new(), Gated::new()];
        let mut logs = Vec::new();
        for (node, journal) in (1..).zip(&journals) {
            logs.push(open(node, 3, journal).await);
        }
        let first = futures_util::future::select_all(logs.iter().map(|log| Box::pin(leads(log, Term(0)))));
        let ((term, next), leader, _) = first.await;
        let slow = (leader + 1) % 3;
        journals[slow].open.send(false);
        let (count, bytes) = (100, 100);
        for position in next..next + count {
            logs[leader].append(term, position, entry(bytes)).await.expect("it leads on");
            let held = {
                let counted = lock(&logs[slow].shared.delivery);
                counted.bytes + counted.writing
            };
            assert!(held <= 2 * BOUNDS.bytes + bytes, "{held} bytes wait for a journal that writes none");
        }
        is_safe(logs[leader].deliverable(), next + count).await;
        assert!(journals[slow].height() < next + count);
        journals[slow].open.send(true);
        is_safe(logs[slow].deliverable(), next + count).await;
    });
}

/// Three running nodes, and which of them leads.
async fn three() -> (Vec<Arc<RaftLog>>, usize, Term) {
    let mut logs = Vec::new();
    for node in 1..=3 {
        logs.push(open(node, 3, &Gated::new()).await);
    }
    let first = futures_util::future::select_all(logs.iter().map(|log| Box::pin(leads(log, Term(0)))));
    let ((term, _), leader, _) = first.await;
    (logs, leader, term)
}

#[test]
fn a_removed_node_leaves_a_majority_that_answers() {
    run(|| async {
        let (logs, leader, _) = three().await;
        let [gone, other] = [1, 2].map(|step| (leader + step) % 3);
        logs[gone].stop().await;
        rt::sleep(Duration::from_millis(500)).await;
        let raft = logs[leader].raft();
        let id = |which: usize| which as u64 + 1;
        assert_eq!(raft.remove(id(other)).await, Err(raft::Error::WouldStall { up: 1, left: 2, needed: 2 }));
        assert!(matches!(raft.remove(id(leader)).await, Err(raft::Error::Invalid(_))), "a leader removes itself");
        raft.remove(id(gone)).await.expect("the two that are left answer");
        raft.remove(id(other)).await.expect("a leader is a majority of itself");
        let report = raft.membership().await.expect("it runs");
        let standings = report.members.iter().map(|standing| (standing.member.id, standing.behind));
        assert_eq!(standings.collect::<Vec<_>>(), [(id(leader), Some(0))]);
    });
}

#[test]
fn a_leader_that_hands_over_lets_another_one_lead() {
    run(|| async {
        let (logs, leader, term) = three().await;
        logs[leader]
            .raft()
            .transfer_leadership(&RaftTimeouts { tick: Duration::from_millis(5), ..RaftTimeouts::default() });
        let next = futures_util::future::select_all(logs.iter().map(|log| Box::pin(leads(log, term))));
        let (_, next, _) = rt::timeout(PATIENCE, next).await.expect("somebody leads soon");
        assert_ne!(next, leader);
    });
}

/// Members' addresses were in the log alone: a group that was restarted at other addresses never connected.
#[test]
fn a_group_goes_on_where_it_has_moved_to() {
    run(|| async {
        let start = |place: &'static str, node: u64| async move {
            let address = |id: u64, place: &str| format!("{place}-{id}");
            let founder = |id| RaftMember { id, address: address(id, "before"), is_learner: false };
            let timing = RaftTimeouts { tick: Duration::from_millis(5), ..RaftTimeouts::default() };
            let options = RaftConfig {
                timing,
                directory: Some(format!("/raft-{node}").into()),
                listen: address(node, place),
                addresses: (1..=3).map(|id| (id, address(id, place))).collect(),
                ..RaftConfig::new(1, node, (1..=3).map(founder).collect())
            };
            Arc::new(RaftLog::open_within(BOUNDS, options, Gated::new()).await.expect("it starts"))
        };
        let mut next = 1;
        for place in ["before", "after"] {
            let logs = [start(place, 1).await, start(place, 2).await, start(place, 3).await];
            let first = futures_util::future::select_all(logs.iter().map(|log| Box::pin(leads(log, Term(0)))));
            let ((term, at), leader, _) = rt::timeout(PATIENCE, first).await.expect("they meet");
            assert_eq!(at, next, "what was agreed on before is there");
            logs[leader].append(term, at, entry(10)).await.expect("it leads");
            next += 1;
            for log in &logs {
                is_safe(log.deliverable(), next).await;
            }
            for log in &logs {
                log.stop().await;
            }
        }
    });
}

/// A machine of a node that only serves entries.
struct ServeOnly;

impl StateMachine for ServeOnly {
    type Output = ();

    fn apply(&mut self, entries: Vec<AppliedEntry>) -> Vec<()> {
        entries.iter().map(|_| ()).collect()
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, raft::Error>> {
        Box::pin(async { Ok(Bytes::new()) })
    }

    fn restore(&mut self, _index: u64, _snapshot: Bytes) -> Result<(), raft::Error> {
        Ok(())
    }
}

/// Serves entries as a node of the group does. The node waits to be added to the group.
async fn serve(node: u64, serve: impl Fn(u64) -> Option<Bytes> + Send + Sync + 'static) -> Raft<()> {
    let serve: Option<links::ServeEntry> = Some(Arc::new(serve));
    let options = RaftConfig { listen: format!("node-{node}"), ..RaftConfig::new(1, node, Vec::new()) };
    Raft::start_serving(options, ServeOnly, serve).await.expect("the address is free")
}

/// An entry of another member that could not follow ended the node that had asked for it.
#[test]
fn what_another_member_gives_wrongly_is_asked_of_the_next() {
    run(|| async {
        let log = open(1, 3, &Gated::new()).await;
        let wrong = serve(2, |position| (position < 3).then(|| Bytes::from_static(UNFIT))).await;
        let right = serve(3, |position| (position < 3).then(|| entry(10 + position as usize))).await;
        let journal = Gated::new();
        let (raft, lacking) = (log.raft(), journal.clone() as Arc<dyn LogStore>);
        let fetched = rt::timeout(PATIENCE, fetch(raft, &lacking, (1, 1), 3)).await;
        assert_eq!(fetched.expect("somebody has them"), Ok(()));
        assert_eq!(lock(&journal.entries)[1..], [entry(11), entry(12)]);
        wrong.stop().await;
        right.stop().await;
    });
}

/// The position with no successor was incremented. Each such link ended in a panic, and its slot was never released.
#[test]
fn a_request_for_entries_at_the_end_of_all_positions_gets_none() {
    run(|| async {
        let serving = serve(2, |position| (position < 3).then(|| entry(10))).await;
        for _ in 0..300 {
            let mut asked = links::fetch("node-2", (1, 1), 2, u64::MAX).await.expect("it listens");
            assert_eq!(asked.next().await, None);
        }
        let mut asked = links::fetch("node-2", (1, 1), 2, 2).await.expect("it listens");
        assert_eq!(asked.next().await, Some(entry(10)));
        serving.stop().await;
    });
}

/// The directory of an orderer's log was emptied and its blocks were left: it founded the group again and voted, without the
/// entries that it had confirmed to the others before.
#[test]
fn a_founder_that_has_entries_and_no_log_does_not_start() {
    async fn opening() -> Result<(), Error> {
        let journal = Gated::new();
        lock(&journal.entries).push(entry(10));
        let member = RaftMember { id: 1, address: "node-1".to_owned(), is_learner: false };
        let options = RaftConfig { directory: Some("/raft".into()), ..RaftConfig::new(1, 1, vec![member]) };
        RaftLog::open_within(BOUNDS, options, journal).await.map(drop)
    }
    let outcome = Simulation::new(1).run(move |sim| async move {
        let refused = sim.node("one").spawn(opening()).await.expect("it does not crash");
        assert!(matches!(&refused, Err(Error::Invalid(reason)) if reason.contains("log was lost")), "{refused:?}");
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
