//! Balances proposals over the compute nodes of one peer, which the gateway sees as one endorser.
//!
//! 1. The peer's primary says which nodes there are, how loaded each is by its own measure, and how old each report is
//!    ([`NodeReport`]; [`replica::load`]). The gateway asks it every [`REPORT_PERIOD`] ([`BalancedEndorser::learn`]). It
//!    starts to use nodes that it did not know, and ceases to use those that are no longer among them and that it was not
//!    configured with.
//! 2. A proposal goes to the least loaded node. Let a node be busy by `b` percent with `q` proposals waiting: then a
//!    proposal is expected to take a time in proportion to `(q + 1) / (100 - b)`. The gateway adds to `q` what it has
//!    sent to the node since the report, less what was answered, and `q` is at least what it has outstanding itself. So
//!    a node that reports less load than it has gets only as much as it answers. Nodes that are equal take turns.
//!    A node that was just learned of is asked with restraint for [`SLOW_START`]: at its first report nothing waits there, so
//!    it would get all proposals at once, and while it takes them on it would be late to acknowledge blocks, which every
//!    commit waits for. One that was reported lately, before a failover, is not new.
//! 3. A report counts for [`REPORT_AGE_MAX`]. A node without one counts as half busy with what this gateway has
//!    outstanding there. Once some nodes have reports that count, the others come after them: they are likely to be gone,
//!    suspended or cut off. A node that drains comes last.
//! 4. If a node cannot answer (it is gone, or no longer follows its primary), the gateway skips it for a cool-down of
//!    [`COOL_DOWN`]. The proposal goes to the next node, and to each node at most once. A node at its proposal limit is
//!    skipped as well, but without a cool-down.
//! 5. If a node's report gets too old while a proposal is outstanding there, and other nodes have reports that count, the
//!    proposal goes to the next node: a suspended node delays it by about [`REPORT_AGE_MAX`].
//! 6. If all nodes are in cool-down, the gateway asks them nevertheless, since one may have recovered.
//!
//! A node that does not know a contract, its approval or its package may only be behind: a following node learns of a
//! definition after its primary has reported the block as committed. The gateway asks the other nodes, the primary among them,
//! and takes the error as final only if no node answers otherwise.
//!
//! Running a proposal changes nothing, so a proposal may run twice. If the contract, a policy or a time limit ends a
//! proposal with an error, the gateway asks no other node, since every node would answer the same.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::Instant;
use base::{ErrorKind, rt};
use bytes::Bytes;
use chain::endorse::{Endorse, EndorseError};
use chain::remote::messages::NodeReport;
use proto::discovery::Peer;
use proto::protos::{ProposalResponse, Response};

use crate::events::{NodesLearned, NodesPassedOver, ProposalsMoved};

/// How long a compute node that could not answer is skipped.
const COOL_DOWN: Duration = Duration::from_millis(100);
/// How often a gateway asks for the reports of a peer's nodes.
pub const REPORT_PERIOD: Duration = Duration::from_millis(50);
/// How old a report may be. A follower reports every ten milliseconds, and its lease ends after fifty.
pub const REPORT_AGE_MAX: Duration = Duration::from_millis(300);
/// How long a node that was just learned of is asked with restraint.
const SLOW_START: Duration = Duration::from_millis(500);
/// By how much longer than reported a proposal is taken to need at a node that was learned of this moment. The factor falls
/// to 1 within [`SLOW_START`].
const SLOW_START_FACTOR: u64 = 8;
/// For how long a node that is no longer reported is remembered: a new primary reports its followers as they join again.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);
/// The nodes of a peer that a gateway knows at a time.
const NODES_MAX: usize = 2 * replica::NODES_MAX;
/// The load of a node that has not reported it.
const UNKNOWN_PERCENT: u64 = replica::load::UNKNOWN_PERCENT as u64;
/// The least idle share that a node is taken to have.
const IDLE_PERCENT_MIN: u64 = 2;

/// The compute nodes of one peer.
pub struct BalancedEndorser {
    nodes: RwLock<Arc<Vec<Arc<BalancedNode>>>>,
    /// Nodes that were forgotten lately.
    past: Mutex<Vec<PastNode>>,
    turn: AtomicUsize,
}

/// A node that was reported, and is not any more.
struct PastNode {
    address: String,
    learned: Instant,
    forgotten: Instant,
}

struct BalancedNode {
    /// Where it answers; empty if it runs in this process.
    address: String,
    /// When it was learned of from a report, if it was; it is forgotten when there is none.
    learned: Option<Instant>,
    endorse: Arc<dyn Endorse>,
    outstanding: AtomicUsize,
    /// Nanoseconds of this process's clock.
    cools_down_until: AtomicU64,
    reported: Mutex<Option<ReportedLoad>>,
}

/// The load of a node, as it was reported.
#[derive(Clone, Copy)]
struct ReportedLoad {
    percent: u64,
    queued: u64,
    /// What this gateway had outstanding there when it learned of the report.
    outstanding: u64,
    at: Instant,
    is_draining: bool,
}

/// The position of a node among those that may get a proposal; the least is asked first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NodeRank {
    is_draining: bool,
    cools_down: bool,
    is_unreported: bool,
    /// The expected time of a proposal, in no unit.
    expected: u64,
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RetryAdvice {
    /// Return the error: every node would answer it.
    Final,
    /// Ask another node; this one is at its limit.
    NextNode,
    /// Ask another node; this one may be behind, or lack a package. Of several errors this is the least certain one.
    MayBeBehind,
    /// Ask another node, and put this one into cool-down.
    CoolDown,
}

fn advice(error: &EndorseError) -> RetryAdvice {
    match error {
        EndorseError::Overloaded => RetryAdvice::NextNode,
        EndorseError::UnknownChaincode { .. }
        | EndorseError::NotApproved { .. }
        | EndorseError::NotInstalled { .. } => RetryAdvice::MayBeBehind,
        EndorseError::State { kind: ErrorKind::Corrupt | ErrorKind::Rejected, .. } => RetryAdvice::Final,
        EndorseError::State { .. } | EndorseError::ChannelStopped { .. } | EndorseError::Stopped => {
            RetryAdvice::CoolDown
        }
        _ => RetryAdvice::Final,
    }
}

/// Counts one outstanding proposal of a node, until it is dropped, also if the caller goes away.
struct OutstandingProposal<'a>(&'a AtomicUsize);

impl<'a> OutstandingProposal<'a> {
    fn of(node: &'a BalancedNode) -> OutstandingProposal<'a> {
        node.outstanding.fetch_add(1, Ordering::Relaxed);
        OutstandingProposal(&node.outstanding)
    }
}

impl Drop for OutstandingProposal<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BalancedNode {
    fn new(address: &str, learned: Option<Instant>, endorse: Arc<dyn Endorse>) -> Arc<BalancedNode> {
        Arc::new(BalancedNode {
            address: address.to_owned(),
            learned,
            endorse,
            outstanding: AtomicUsize::new(0),
            cools_down_until: AtomicU64::new(0),
            reported: Mutex::default(),
        })
    }

    /// The newest report, while it counts.
    fn reported(&self, now: Instant) -> Option<ReportedLoad> {
        let reported = *self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let is_young = |reported: &ReportedLoad| {
            now.since(reported.at.min(now)) <= REPORT_AGE_MAX || rt::fault_point("gateway.balance.mutant.keeps_reports")
        };
        reported.filter(is_young)
    }

    fn learn(&self, report: &NodeReport, now: Instant) {
        let age = Duration::from_millis(report.age_ms.into());
        let at = Instant::from_nanos(now.nanos().saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
        let outstanding = self.outstanding.load(Ordering::Relaxed) as u64;
        let (percent, queued, is_draining) = (report.percent.min(100).into(), report.queued.into(), report.is_draining);
        *self.reported.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(ReportedLoad { percent, queued, outstanding, at, is_draining });
    }

    /// Steps 2 and 3.
    fn rank(&self, now: Instant) -> NodeRank {
        let outstanding = self.outstanding.load(Ordering::Relaxed) as u64;
        let reported = self.reported(now);
        let (percent, queued) = match &reported {
            None => (UNKNOWN_PERCENT, outstanding),
            Some(load) => {
                let queued = (load.queued + outstanding).saturating_sub(load.outstanding).max(outstanding);
                (load.percent, if rt::fault_point("gateway.balance.mutant.believes") { load.queued } else { queued })
            }
        };
        NodeRank {
            is_draining: reported.is_some_and(|reported| reported.is_draining),
            cools_down: self.cools_down_until.load(Ordering::Relaxed) > now.nanos(),
            is_unreported: reported.is_none(),
            // Fractions count: between idle nodes too the less busy one is chosen.
            expected: (queued + 1) * 10_000 / (100 - percent.min(100)).max(IDLE_PERCENT_MIN) * self.restraint(now)
                / 100,
        }
    }

    /// By how much less than other nodes it is asked, in percent: 100 is not at all.
    fn restraint(&self, now: Instant) -> u64 {
        let known = self.learned.map_or(SLOW_START, |learned| now.since(learned.min(now)));
        let left = SLOW_START.saturating_sub(known).as_millis() as u64;
        100 + 100 * (SLOW_START_FACTOR - 1) * left / SLOW_START.as_millis() as u64
    }
}

impl BalancedEndorser {
    /// Balances over nodes that do not report themselves under an address.
    ///
    /// # Panics
    /// If there is no node.
    pub fn new(nodes: Vec<Arc<dyn Endorse>>) -> BalancedEndorser {
        BalancedEndorser::at(nodes.into_iter().map(|endorse| (String::new(), endorse)).collect())
    }

    /// Balances over these nodes, with the addresses at which they answer, and those that it [learns](Self::learn) of.
    ///
    /// # Panics
    /// If there is no node.
    pub fn at(nodes: Vec<(String, Arc<dyn Endorse>)>) -> BalancedEndorser {
        assert!(!nodes.is_empty(), "a peer has a compute node");
        let nodes = nodes.into_iter().map(|(address, endorse)| BalancedNode::new(&address, None, endorse));
        let nodes = RwLock::new(Arc::new(nodes.collect()));
        BalancedEndorser { nodes, past: Mutex::default(), turn: AtomicUsize::new(0) }
    }

    /// Takes the reports of all nodes of the peer; `connect` reaches a node that is not known yet. Reports of a primary
    /// that says nothing are none: the nodes stay, and their reports grow old.
    pub fn learn(&self, reports: &[NodeReport], connect: impl Fn(&str) -> Arc<dyn Endorse>) {
        if reports.is_empty() {
            return;
        }
        let (now, known) = (rt::now(), self.nodes());
        for (node, report) in known.iter().filter_map(|node| Some((node, report_of(node, reports)?))) {
            node.learn(report, now);
        }
        let is_unknown = |report: &&NodeReport| known.iter().all(|node| node.address != report.address);
        let new: Vec<&NodeReport> = reports.iter().filter(is_unknown).collect();
        let is_gone = |node: &Arc<BalancedNode>| node.learned.is_some() && report_of(node, reports).is_none();
        if new.is_empty() && !known.iter().any(is_gone) {
            return;
        }
        let mut nodes: Vec<Arc<BalancedNode>> = known.iter().filter(|node| !is_gone(node)).cloned().collect();
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.retain(|past| now.since(past.forgotten.min(now)) < REMEMBERED_FOR);
        let gone = known.iter().filter(|node| is_gone(node));
        past.extend(gone.filter_map(|node| {
            Some(PastNode { address: node.address.clone(), learned: node.learned?, forgotten: now })
        }));
        let surplus = past.len().saturating_sub(NODES_MAX);
        past.drain(..surplus);
        for report in new {
            if nodes.len() >= NODES_MAX || nodes.iter().any(|node| node.address == report.address) {
                continue;
            }
            NodesLearned.add(1);
            // One that is back after a failover has its work already.
            let before = past.iter().find(|past| past.address == report.address).map(|past| past.learned);
            let node = BalancedNode::new(&report.address, Some(before.unwrap_or(now)), connect(&report.address));
            node.learn(report, now);
            nodes.push(node);
        }
        *self.nodes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(nodes);
    }

    /// The nodes now.
    fn nodes(&self) -> Arc<Vec<Arc<BalancedNode>>> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The node to ask next, of those that were not asked.
    fn choose<'a>(nodes: &'a [Arc<BalancedNode>], asked: &[bool], turn: usize) -> Option<(usize, &'a BalancedNode)> {
        let (now, count) = (rt::now(), nodes.len());
        let in_turn = (0..count).map(|offset| (turn + offset) % count).filter(|place| !asked[*place]);
        let place = in_turn.min_by_key(|place| nodes[*place].rank(now))?;
        Some((place, &nodes[place]))
    }

    async fn run<T, F>(&self, run: impl Fn(Arc<dyn Endorse>) -> F + Send) -> Result<T, EndorseError>
    where
        F: Future<Output = Result<T, EndorseError>> + Send,
    {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let nodes = self.nodes();
        let mut asked = vec![false; nodes.len()];
        let mut last = None;
        while let Some((place, node)) = BalancedEndorser::choose(&nodes, &asked, turn) {
            asked[place] = true;
            let outstanding = OutstandingProposal::of(node);
            let outcome = answer_of(&nodes, place, run(node.endorse.clone())).await;
            drop(outstanding);
            let error = match outcome {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let advice = advice(&error);
            match advice {
                RetryAdvice::Final => return Err(error),
                RetryAdvice::NextNode | RetryAdvice::MayBeBehind => {}
                RetryAdvice::CoolDown => {
                    node.cools_down_until.store((rt::now() + COOL_DOWN).nanos(), Ordering::Relaxed);
                    NodesPassedOver.add(1);
                }
            }
            ProposalsMoved.add(1);
            // If a node with the answer is only busy or gone, the client shall try again.
            if last.is_none() || advice != RetryAdvice::MayBeBehind {
                last = Some(error);
            }
        }
        Err(last.expect("there is a node, and it was asked"))
    }
}

fn report_of<'a>(node: &BalancedNode, reports: &'a [NodeReport]) -> Option<&'a NodeReport> {
    reports.iter().find(|report| report.address == node.address && !report.address.is_empty())
}

/// A node's answer, or an error once its reports have ended while others have not (step 5).
async fn answer_of<T>(
    nodes: &[Arc<BalancedNode>],
    place: usize,
    answer: impl Future<Output = Result<T, EndorseError>>,
) -> Result<T, EndorseError> {
    let (mut answer, had_report) = (pin!(answer), nodes[place].reported(rt::now()).is_some());
    loop {
        if let Ok(answer) = rt::timeout(REPORT_AGE_MAX, answer.as_mut()).await {
            return answer;
        }
        let now = rt::now();
        let is_silent = had_report && nodes[place].reported(now).is_none();
        if is_silent && nodes.iter().any(|node| node.reported(now).is_some()) {
            let message = "the compute node has ceased to report itself; another one is asked".to_owned();
            return Err(EndorseError::State { kind: ErrorKind::Retry, message });
        }
    }
}

#[async_trait]
impl Endorse for BalancedEndorser {
    async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        let run = |node: Arc<dyn Endorse>| {
            let proposal = signed_proposal.clone();
            async move { node.process(proposal).await }
        };
        self.run(run).await
    }

    async fn evaluate(&self, signed_proposal: Bytes) -> Result<Response, EndorseError> {
        let run = |node: Arc<dyn Endorse>| {
            let proposal = signed_proposal.clone();
            async move { node.evaluate(proposal).await }
        };
        self.run(run).await
    }

    async fn describe(&self, channel: &str) -> Result<Peer, EndorseError> {
        self.run(|node: Arc<dyn Endorse>| async move { node.describe(channel).await }).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use base::rt::simulation::Simulation;

    use super::*;

    /// Answers with its number, or with the scripted error; holds proposals back while it is told to.
    struct Scripted {
        number: i32,
        says: Mutex<Option<EndorseError>>,
        runs: AtomicUsize,
        held: rt::sync::Semaphore,
    }

    impl Scripted {
        fn new(number: i32) -> Arc<Scripted> {
            let held = rt::sync::Semaphore::new(1 << 10);
            Arc::new(Scripted { number, says: Mutex::default(), runs: AtomicUsize::new(0), held })
        }

        fn say(&self, error: Option<EndorseError>) {
            *self.says.lock().expect("nobody panics with it") = error;
        }

        fn runs(&self) -> usize {
            self.runs.load(Ordering::Relaxed)
        }
    }

    #[async_trait]
    impl Endorse for Scripted {
        async fn process(&self, _: Bytes) -> Result<ProposalResponse, EndorseError> {
            Ok(ProposalResponse { response: Some(self.evaluate(Bytes::new()).await?), ..Default::default() })
        }

        async fn describe(&self, _: &str) -> Result<Peer, EndorseError> {
            Err(EndorseError::Stopped)
        }

        async fn evaluate(&self, _: Bytes) -> Result<Response, EndorseError> {
            self.runs.fetch_add(1, Ordering::Relaxed);
            let _held = self.held.acquire().await;
            match self.says.lock().expect("nobody panics with it").clone() {
                Some(error) => Err(error),
                None => Ok(Response { status: self.number, ..Response::default() }),
            }
        }
    }

    fn no_lease() -> EndorseError {
        EndorseError::State { kind: ErrorKind::Retry, message: "no lease".to_owned() }
    }

    fn simulate<F>(test: impl FnOnce(Vec<Arc<Scripted>>, Arc<BalancedEndorser>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let run = Simulation::new(1).run(|_| async move {
            let nodes: Vec<Arc<Scripted>> = (0..3).map(Scripted::new).collect();
            let balanced = BalancedEndorser::new(nodes.iter().map(|node| node.clone() as Arc<dyn Endorse>).collect());
            test(nodes, Arc::new(balanced)).await;
        });
        run.unwrap_or_else(|failure| panic!("{failure}"));
    }

    #[test]
    fn idle_nodes_take_turns_and_a_busy_one_is_left_alone() {
        simulate(|nodes, balanced| async move {
            for _ in 0..6 {
                balanced.evaluate(Bytes::new()).await.expect("all answer");
            }
            assert_eq!(nodes.iter().map(|node| node.runs()).collect::<Vec<_>>(), [2, 2, 2]);
            let all = nodes[1].held.acquire_many(1 << 10).await;
            let stuck = rt::spawn({
                let balanced = balanced.clone();
                async move {
                    for _ in 0..3 {
                        // One of them goes to the node that does not answer.
                        let _ = balanced.evaluate(Bytes::new()).await;
                    }
                }
            });
            rt::sleep(Duration::from_millis(10)).await;
            assert_eq!(nodes[1].runs(), 3, "it has one outstanding");
            for _ in 0..10 {
                let answer = balanced.evaluate(Bytes::new()).await.expect("two answer");
                assert_ne!(answer.status, 1, "the others have fewer outstanding");
            }
            drop(all);
            stuck.await.expect("it ends");
        });
    }

    #[test]
    fn who_cannot_answer_is_passed_over_and_comes_back() {
        simulate(|nodes, balanced| async move {
            nodes[0].say(Some(no_lease()));
            for _ in 0..9 {
                balanced.evaluate(Bytes::new()).await.expect("the others answer");
            }
            assert_eq!(nodes[0].runs(), 1, "it rests");
            nodes[0].say(None);
            rt::sleep(COOL_DOWN).await;
            for _ in 0..9 {
                balanced.evaluate(Bytes::new()).await.expect("all answer");
            }
            assert_eq!(nodes[0].runs(), 4, "it takes its turn again");
        });
    }

    #[test]
    fn each_is_asked_once_and_the_last_error_told() {
        simulate(|nodes, balanced| async move {
            nodes.iter().for_each(|node| node.say(Some(no_lease())));
            let error = balanced.process(Bytes::new()).await.expect_err("nobody answers");
            assert_eq!(error.kind(), ErrorKind::Retry);
            assert_eq!(nodes.iter().map(|node| node.runs()).sum::<usize>(), 3);
            // During cool-down they are asked nevertheless.
            nodes[2].say(None);
            assert_eq!(balanced.evaluate(Bytes::new()).await.expect("one is back").status, 2);
        });
    }

    fn unknown() -> EndorseError {
        EndorseError::UnknownChaincode { name: "basic".to_owned(), channel: "ch".to_owned() }
    }

    /// The story: a client committed a definition and called the contract at once. A following node had not applied the block
    /// yet, and its answer, that there is no such contract, became the client's.
    #[test]
    fn a_contract_is_unknown_only_if_no_node_knows_it() {
        simulate(|nodes, balanced| async move {
            let not_approved =
                || EndorseError::NotApproved { contract: "basic".to_owned(), sequence: 2, channel: "ch".to_owned() };
            nodes[0].say(Some(unknown()));
            nodes[1].say(Some(not_approved()));
            for _ in 0..6 {
                assert_eq!(balanced.evaluate(Bytes::new()).await.expect("the primary knows it").status, 2);
            }
            let before = [0, 1, 2].map(|place: usize| nodes[place].runs());
            nodes[2].say(Some(unknown()));
            let error = balanced.process(Bytes::new()).await.expect_err("nobody knows it");
            assert!(
                matches!(error, EndorseError::UnknownChaincode { .. } | EndorseError::NotApproved { .. }),
                "{error}"
            );
            assert_eq!([0, 1, 2].map(|place: usize| nodes[place].runs()), before.map(|runs| runs + 1), "each once");
            // The node that knows it may be the one that cannot answer: the client shall try again.
            for says in [no_lease(), EndorseError::Overloaded] {
                for place in 0..3 {
                    nodes.iter().for_each(|node| node.say(Some(unknown())));
                    nodes[place].say(Some(says.clone()));
                    let error = balanced.evaluate(Bytes::new()).await.expect_err("nobody answers");
                    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
                }
            }
        });
    }

    #[test]
    fn what_is_final_is_not_asked_twice() {
        simulate(|nodes, balanced| async move {
            nodes.iter().for_each(|node| node.say(Some(EndorseError::Invalid("not signed".to_owned()))));
            balanced.evaluate(Bytes::new()).await.expect_err("it is refused");
            assert_eq!(nodes.iter().map(|node| node.runs()).sum::<usize>(), 1);
        });
    }

    fn report(number: usize, percent: u32, queued: u32) -> NodeReport {
        NodeReport { address: format!("tcp:{number}"), percent, queued, age_ms: 0, is_draining: false }
    }

    /// Nodes at addresses, of which the balancer was configured with the first two.
    fn simulate_reported<F>(test: impl FnOnce(Vec<Arc<Scripted>>, Arc<BalancedEndorser>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let run = Simulation::new(1).run(|_| async move {
            let nodes: Vec<Arc<Scripted>> = (0..4).map(Scripted::new).collect();
            let known = nodes.iter().take(2).enumerate();
            let known = known.map(|(number, node)| (format!("tcp:{number}"), node.clone() as Arc<dyn Endorse>));
            let balanced = BalancedEndorser::at(known.collect());
            // Reports may be older than the test.
            rt::sleep(2 * REPORT_AGE_MAX).await;
            test(nodes, Arc::new(balanced)).await;
        });
        run.unwrap_or_else(|failure| panic!("{failure}"));
    }

    fn learn(balanced: &BalancedEndorser, nodes: &[Arc<Scripted>], reports: &[NodeReport]) {
        balanced.learn(reports, |address| {
            let number: usize = address.trim_start_matches("tcp:").parse().expect("a node of the test");
            nodes[number].clone()
        });
    }

    async fn ask(balanced: &BalancedEndorser, times: usize) {
        for _ in 0..times {
            balanced.evaluate(Bytes::new()).await.expect("a node answers");
        }
    }

    fn runs(nodes: &[Arc<Scripted>]) -> Vec<usize> {
        nodes.iter().map(|node| node.runs()).collect()
    }

    #[test]
    fn proposals_go_to_the_node_that_reports_the_least_load() {
        simulate_reported(|nodes, balanced| async move {
            learn(&balanced, &nodes, &[report(0, 80, 0), report(1, 20, 0), report(2, 50, 3)]);
            ask(&balanced, 10).await;
            assert_eq!(runs(&nodes), [0, 10, 0, 0]);
            // By now the other is less busy, and then it has a queue.
            learn(&balanced, &nodes, &[report(0, 10, 0), report(1, 20, 0), report(2, 50, 3)]);
            ask(&balanced, 10).await;
            assert_eq!(runs(&nodes), [10, 10, 0, 0]);
            rt::sleep(SLOW_START).await;
            learn(&balanced, &nodes, &[report(0, 10, 9), report(1, 20, 9), report(2, 50, 3)]);
            ask(&balanced, 10).await;
            assert_eq!(runs(&nodes), [10, 10, 10, 0], "one that the gateway was not configured with");
            learn(&balanced, &nodes, &[report(0, 90, 0), report(1, 90, 0)]);
            ask(&balanced, 10).await;
            assert_eq!(runs(&nodes), [15, 15, 10, 0], "it has left");
            let leaving = NodeReport { is_draining: true, ..report(3, 0, 0) };
            learn(&balanced, &nodes, &[report(0, 90, 50), report(1, 90, 50), leaving]);
            ask(&balanced, 10).await;
            let runs = runs(&nodes);
            assert_eq!((runs[0] + runs[1], runs[2], runs[3]), (40, 10, 0), "a node that drains gets nothing");
        });
    }

    #[test]
    fn a_node_that_was_just_learned_of_is_not_asked_for_everything() {
        simulate_reported(|nodes, balanced| async move {
            // Of 18 proposals that nobody answers: how many the new node gets beside two busy ones.
            let sent = async |nodes: &[Arc<Scripted>]| {
                let before = nodes[2].runs();
                let mut held = Vec::new();
                for node in nodes {
                    held.push(node.held.acquire_many(1 << 10).await);
                }
                for _ in 0..18 {
                    let balanced = balanced.clone();
                    drop(rt::spawn(async move { balanced.evaluate(Bytes::new()).await }));
                    rt::sleep(Duration::from_millis(1)).await;
                }
                drop(held);
                rt::sleep(Duration::from_millis(1)).await;
                nodes[2].runs() - before
            };
            let reports = [report(0, 80, 9), report(1, 80, 9), report(2, 0, 0)];
            learn(&balanced, &nodes, &reports);
            let first = sent(&nodes).await;
            rt::sleep(SLOW_START).await;
            learn(&balanced, &nodes, &reports);
            let later = sent(&nodes).await;
            assert!((1..12).contains(&first) && later == 18, "{first}, then {later}");
            // A new primary does not report it at first.
            learn(&balanced, &nodes, &reports[..2]);
            rt::sleep(Duration::from_millis(1)).await;
            learn(&balanced, &nodes, &reports);
            assert_eq!(sent(&nodes).await, 18, "it is known already");
            learn(&balanced, &nodes, &reports[..2]);
            rt::sleep(REMEMBERED_FOR).await;
            learn(&balanced, &nodes, &reports);
            assert!(sent(&nodes).await < 12, "it is another process by now");
        });
    }

    #[test]
    fn a_report_that_is_old_counts_no_longer() {
        simulate_reported(|nodes, balanced| async move {
            let old = NodeReport { age_ms: 250, ..report(0, 0, 0) };
            learn(&balanced, &nodes, &[old, report(1, 90, 9)]);
            ask(&balanced, 4).await;
            assert_eq!(runs(&nodes), [4, 0, 0, 0], "it is just young enough");
            rt::sleep(Duration::from_millis(100)).await;
            ask(&balanced, 4).await;
            assert_eq!(runs(&nodes), [4, 4, 0, 0], "a node that reports comes first, however busy");
            rt::sleep(REPORT_AGE_MAX).await;
            ask(&balanced, 4).await;
            assert_eq!(runs(&nodes), [6, 6, 0, 0], "without reports they take turns");
        });
    }

    /// The number of proposals, of 40, that go to a node which says that it is idle and answers none.
    async fn sent_to_a_liar(nodes: &[Arc<Scripted>], balanced: &Arc<BalancedEndorser>) -> usize {
        let all = nodes[0].held.acquire_many(1 << 10).await;
        for _ in 0..40 {
            learn(balanced, nodes, &[report(0, 0, 0), report(1, 50, 0)]);
            let balanced = balanced.clone();
            drop(rt::spawn(async move { balanced.evaluate(Bytes::new()).await }));
            rt::sleep(Duration::from_millis(1)).await;
        }
        drop(all);
        nodes[0].runs()
    }

    #[test]
    fn a_node_that_denies_its_load_gets_no_more_than_it_answers() {
        simulate_reported(|nodes, balanced| async move {
            assert_eq!(sent_to_a_liar(&nodes, &balanced).await, 2, "one more than the honest one is expected to take");
        });
    }

    #[test]
    fn believing_reports_and_keeping_old_ones_is_noticed() {
        let planted = |mutant: &'static str| {
            let run = Simulation::new(1).run(move |sim| async move {
                sim.inject(mutant, 1.0);
                let nodes: Vec<Arc<Scripted>> = (0..2).map(Scripted::new).collect();
                let known = nodes.iter().enumerate();
                let known = known.map(|(number, node)| (format!("tcp:{number}"), node.clone() as Arc<dyn Endorse>));
                let balanced = Arc::new(BalancedEndorser::at(known.collect()));
                let sent = sent_to_a_liar(&nodes, &balanced).await;
                rt::sleep(2 * REPORT_AGE_MAX).await;
                let before = nodes[0].runs();
                learn(&balanced, &nodes, &[report(1, 90, 9)]);
                ask(&balanced, 4).await;
                (sent, nodes[0].runs() - before)
            });
            run.unwrap_or_else(|failure| panic!("{failure}")).value
        };
        assert_eq!(planted("gateway.balance.mutant.believes").0, 40, "all go to the liar");
        assert_eq!(planted("gateway.balance.mutant.keeps_reports").1, 4, "a node that is gone is asked first");
    }

    /// The story: a compute node was suspended with proposals in it. Its link stayed open, so its clients waited until
    /// their deadlines.
    #[test]
    fn a_proposal_leaves_a_node_that_stands_still() {
        simulate_reported(|nodes, balanced| async move {
            let _all = nodes[0].held.acquire_many(1 << 10).await;
            learn(&balanced, &nodes, &[report(0, 0, 0), report(1, 90, 0)]);
            let begun = rt::now();
            let asking = rt::spawn({
                let balanced = balanced.clone();
                async move { balanced.evaluate(Bytes::new()).await.expect("another node answers").status }
            });
            for _ in 0..20 {
                rt::sleep(REPORT_PERIOD).await;
                learn(&balanced, &nodes, &[report(1, 90, 0)]);
            }
            assert_eq!(asking.await.expect("it ends"), 1);
            assert!(begun.elapsed() < Duration::from_secs(2));
            assert_eq!(runs(&nodes), [1, 1, 0, 0]);
            ask(&balanced, 3).await;
            assert_eq!(runs(&nodes), [1, 4, 0, 0], "it is not asked again");
        });
    }
}
