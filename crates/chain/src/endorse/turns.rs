//! Turns: how many contracts run at the same time, and which proposal runs next.
//!
//! 1. A proposal takes a turn at once if one is free; in that case no proposal is waiting for one.
//! 2. Otherwise it waits in the queue of its creator's organisation. A turn that is given back goes to the next
//!    organisation, in rotation, that has a proposal waiting, and there to the proposal that has waited longest.
//! 3. A proposal whose future is dropped, at its deadline for example, leaves its queue.
//!
//! [`super::quota`] bounds the number and the bytes of waiting proposals.
//!
//! Invariant: between two turns of an organisation that has proposals waiting, each other organisation gets at most one
//! turn.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::MspId;
use base::rt::channel::{OneshotSender, oneshot};

use crate::events;

/// The turns of one endorser.
#[derive(Debug)]
pub struct ExecutionTurns {
    state: Mutex<TurnsState>,
}

#[derive(Debug)]
struct TurnsState {
    free: usize,
    /// By the order in which they came; no queue is empty.
    waiting: BTreeMap<MspId, BTreeMap<u64, OneshotSender<ExecutionTurn>>>,
    next: u64,
    /// The organisation of the last waiting proposal that got a turn.
    last: Option<MspId>,
}

/// The right to run, until it is dropped.
#[derive(Debug)]
pub struct ExecutionTurn {
    turns: Arc<ExecutionTurns>,
}

/// A position in a queue, left when it is dropped.
struct QueuedTurn<'a> {
    turns: &'a ExecutionTurns,
    organization: &'a MspId,
    number: u64,
}

impl ExecutionTurns {
    /// At most `running_max` contracts run at once.
    pub fn new(running_max: usize) -> Arc<ExecutionTurns> {
        let (waiting, last) = (BTreeMap::new(), None);
        Arc::new(ExecutionTurns { state: Mutex::new(TurnsState { free: running_max.max(1), waiting, next: 0, last }) })
    }

    /// Waits for a turn.
    ///
    /// Dropping the future gives up its position.
    pub async fn take(self: &Arc<Self>, organization: &MspId) -> ExecutionTurn {
        let (waiting, turn) = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return ExecutionTurn { turns: Arc::clone(self) };
            }
            let (sender, receiver) = oneshot();
            let number = state.next;
            state.next += 1;
            state.waiting.entry(organization.clone()).or_default().insert(number, sender);
            events::ProposalsWaiting.add(1);
            (QueuedTurn { turns: self, organization, number }, receiver)
        };
        let turn = turn.await.expect("a place is left by its own task alone");
        drop(waiting);
        turn
    }

    fn state(&self) -> MutexGuard<'_, TurnsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TurnsState {
    /// Removes the proposal whose turn is next from its queue.
    fn next_waiting(&mut self) -> Option<OneshotSender<ExecutionTurn>> {
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next =
            self.waiting.range::<MspId, _>((after, Bound::Unbounded)).next().or_else(|| self.waiting.iter().next());
        let organization = next?.0.clone();
        let queue = self.waiting.get_mut(&organization)?;
        let first = queue.pop_first().map(|(_, sender)| sender);
        if queue.is_empty() {
            self.waiting.remove(&organization);
        }
        self.last = Some(organization);
        first
    }
}

impl Drop for ExecutionTurn {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        match state.next_waiting() {
            None => state.free += 1,
            Some(next) => {
                drop(state);
                // A proposal that has just gone drops the turn, which then goes to the next one; the recursion is as
                // deep as there are such proposals.
                drop(next.send(ExecutionTurn { turns: Arc::clone(&self.turns) }));
            }
        }
    }
}

impl Drop for QueuedTurn<'_> {
    fn drop(&mut self) {
        events::ProposalsWaiting.add(-1);
        let mut state = self.turns.state();
        let Some(queue) = state.waiting.get_mut(self.organization) else { return };
        let left = queue.remove(&self.number);
        if queue.is_empty() {
            state.waiting.remove(self.organization);
        }
        drop(state);
        // After the lock is released: this wakes no task, but it may drop a waker.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::rt;
    use base::rt::simulation::Simulation;

    use super::*;

    /// Queues proposals of these organisations in this order behind one that runs, and returns the order in which they
    /// ran. A proposal with a lower-case name gives up before the first turn is given back.
    fn order(waiting: &'static str) -> String {
        let run = Simulation::new(1).run(move |_| async move {
            let turns = ExecutionTurns::new(1);
            let ran = Arc::new(Mutex::new(String::new()));
            let first = turns.take(&MspId::from("first")).await;
            let mut tasks = Vec::new();
            for name in waiting.chars() {
                let (turns, ran) = (turns.clone(), ran.clone());
                let organization = MspId::from(name.to_uppercase().to_string().as_str());
                let timeout = Duration::from_secs(if name.is_lowercase() { 1 } else { 60 });
                tasks.push(rt::spawn(async move {
                    if let Ok(turn) = rt::timeout(timeout, turns.take(&organization)).await {
                        ran.lock().expect("nobody panics with it").push(name);
                        rt::yield_now().await;
                        drop(turn);
                    }
                }));
                // One after the other.
                rt::sleep(Duration::from_millis(1)).await;
            }
            rt::sleep(Duration::from_secs(2)).await;
            drop(first);
            for task in tasks {
                task.await.expect("it ends");
            }
            let state = turns.state();
            assert!(state.free == 1 && state.waiting.is_empty(), "{state:?}");
            let ran = ran.lock().expect("nobody panics with it");
            assert_eq!(ran.len(), waiting.chars().filter(|name| name.is_uppercase()).count());
            ran.clone()
        });
        run.unwrap_or_else(|failure| panic!("{failure}")).value
    }

    #[test]
    fn organisations_take_turns_however_many_proposals_each_has_waiting() {
        for (waiting, expected) in [
            ("", ""),
            ("AAAA", "AAAA"),
            ("AAAAAB", "ABAAAA"),
            ("AAABBBC", "ABCABAB"),
            ("CCCBA", "ABCCC"),
            ("AaaAaBb", "ABA"),
        ] {
            assert_eq!(order(waiting), expected, "{waiting}");
        }
    }
}
