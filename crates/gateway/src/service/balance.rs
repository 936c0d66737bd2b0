//! Balances proposals over the compute nodes of one peer, which the gateway sees as one endorser.
//!
//! 1. A proposal goes to the compute node with the fewest outstanding proposals of this gateway; nodes with equal
//!    numbers take turns.
//! 2. If a node cannot answer (it is gone, or no longer follows its primary), the gateway skips it for a cool-down of
//!    [`COOL_DOWN`]. The proposal goes to the next node, and to each node at most once. A node at its proposal limit is
//!    skipped as well, but without a cool-down.
//! 3. If all nodes are in cool-down, the gateway asks them nevertheless, since one may have recovered.
//!
//! A node that does not know a contract, its approval or its package may only be behind: a following node learns of a
//! definition after its primary has reported the block as committed. The gateway asks the other nodes, the primary among them,
//! and takes the error as final only if no node answers otherwise.
//!
//! Running a proposal changes nothing, so a proposal may run twice. If the contract, a policy or a time limit ends a
//! proposal with an error, the gateway asks no other node, since every node would answer the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base::{ErrorKind, rt};
use bytes::Bytes;
use chain::endorse::{Endorse, EndorseError};
use proto::discovery::Peer;
use proto::protos::{ProposalResponse, Response};

use crate::events::{NodesPassedOver, ProposalsMoved};

/// How long a compute node that could not answer is skipped.
const COOL_DOWN: Duration = Duration::from_millis(100);

/// The compute nodes of one peer.
pub struct BalancedEndorser {
    nodes: Vec<BalancedNode>,
    turn: AtomicUsize,
}

struct BalancedNode {
    endorse: Arc<dyn Endorse>,
    outstanding: AtomicUsize,
    /// Nanoseconds of this process's clock.
    cools_down_until: AtomicU64,
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

impl BalancedEndorser {
    /// # Panics
    /// If there is no node.
    pub fn new(nodes: Vec<Arc<dyn Endorse>>) -> BalancedEndorser {
        assert!(!nodes.is_empty(), "a peer has a compute node");
        let node =
            |endorse| BalancedNode { endorse, outstanding: AtomicUsize::new(0), cools_down_until: AtomicU64::new(0) };
        BalancedEndorser { nodes: nodes.into_iter().map(node).collect(), turn: AtomicUsize::new(0) }
    }

    /// The node to ask next, of those that were not asked.
    fn choose(&self, asked: &[bool], turn: usize) -> Option<usize> {
        let now = rt::now().nanos();
        let count = self.nodes.len();
        let in_turn = (0..count).map(|offset| (turn + offset) % count).filter(|place| !asked[*place]);
        in_turn.min_by_key(|place| {
            let node = &self.nodes[*place];
            let rests = node.cools_down_until.load(Ordering::Relaxed) > now;
            (rests, node.outstanding.load(Ordering::Relaxed))
        })
    }

    async fn run<T, F>(&self, run: impl Fn(Arc<dyn Endorse>) -> F + Send) -> Result<T, EndorseError>
    where
        F: Future<Output = Result<T, EndorseError>> + Send,
    {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut asked = vec![false; self.nodes.len()];
        let mut last = None;
        while let Some(place) = self.choose(&asked, turn) {
            asked[place] = true;
            let node = &self.nodes[place];
            let outstanding = OutstandingProposal::of(node);
            let outcome = run(node.endorse.clone()).await;
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
}
