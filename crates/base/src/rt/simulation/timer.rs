//! Timers: wake-ups and other actions at a given time of the virtual clock.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::ids::{DRIVER, NodeId};
use super::net::NetEvent;
use super::trace::TraceEvent;
use super::world::{World, WorldCore};

/// A function that is called when a timer fires, once the lock is free.
pub(super) type TimerCallback = Box<dyn FnOnce() + Send>;

/// The action of a timer.
pub(super) enum TimerAction {
    /// Wakes a task that sleeps by a node's clock.
    Wake(NodeId, Waker),
    /// Calls a function.
    Call(TimerCallback),
    /// Triggers an event of the network.
    Net(NetEvent),
}

/// A timer's deadline, and its order of creation, which decides between equal deadlines.
pub(super) type TimerKey = (u64, u64);

#[derive(Default)]
pub(super) struct Timers {
    alarms: BTreeMap<TimerKey, TimerAction>,
    made: u64,
}

impl WorldCore {
    /// Sets a timer.
    pub(super) fn at(&mut self, deadline: u64, alarm: TimerAction) -> TimerKey {
        self.timers.made += 1;
        let key = (deadline, self.timers.made);
        self.timers.alarms.insert(key, alarm);
        key
    }

    /// Sets a timer that fires after `delay`.
    pub(super) fn after(&mut self, delay: Duration, alarm: TimerAction) -> TimerKey {
        let deadline = self.clock.saturating_add(nanos_of(delay));
        self.at(deadline, alarm)
    }

    /// The next deadline.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.timers.alarms.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    /// Wakes all tasks that sleep by a node's clock, so that they compute their deadlines again.
    pub(super) fn rouse(&mut self, node: NodeId) {
        let asleep = |alarm: &TimerAction| matches!(alarm, TimerAction::Wake(of, _) if *of == node);
        let keys: Vec<TimerKey> =
            self.timers.alarms.iter().filter(|(_, alarm)| asleep(alarm)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(TimerAction::Wake(_, waker)) = self.timers.alarms.remove(&key) {
                self.deferred.push(waker);
            }
        }
    }

    /// Removes all timers, which then never fire.
    pub(super) fn take_alarms(&mut self) -> Vec<TimerAction> {
        std::mem::take(&mut self.timers.alarms).into_values().collect()
    }

    /// Fires all timers that are due; their functions are left in `calls`. Returns false when there are none.
    pub(super) fn fire_due(&mut self) -> bool {
        let mut fired = false;
        while self.next_deadline().is_some_and(|deadline| deadline <= self.clock) {
            let ((_, order), alarm) = self.timers.alarms.pop_first().expect("the next deadline belongs to a timer");
            fired = true;
            self.record(TraceEvent::TimerFired { order });
            match alarm {
                TimerAction::Wake(_, waker) => self.deferred.push(waker),
                TimerAction::Call(call) => self.calls.push(call),
                TimerAction::Net(event) => self.net_event(event),
            }
        }
        fired
    }

    fn set_waker(&mut self, key: TimerKey, waker: &Waker) -> bool {
        match self.timers.alarms.get_mut(&key) {
            Some(TimerAction::Wake(_, current)) => {
                if !current.will_wake(waker) {
                    // The old waker is called rather than dropped here, since dropping it could run any code.
                    self.deferred.push(std::mem::replace(current, waker.clone()));
                }
                true
            }
            _ => false,
        }
    }
}

pub(super) fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Completes when the clock of a node reaches a point.
pub(in crate::rt) struct Sleep {
    world: Arc<World>,
    node: NodeId,
    deadline: u64,
    timer: Option<TimerKey>,
}

impl Sleep {
    /// By the clock of a node.
    pub(in crate::rt) fn until(world: Arc<World>, node: NodeId, deadline: u64) -> Sleep {
        Sleep { world, node, deadline, timer: None }
    }

    /// By the world's own clock.
    pub(super) fn until_true(world: Arc<World>, deadline: u64) -> Sleep {
        Sleep::until(world, DRIVER, deadline)
    }

    pub(super) fn for_duration(world: &Arc<World>, duration: Duration) -> Sleep {
        Sleep::until_true(Arc::clone(world), world.clock().saturating_add(nanos_of(duration)))
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Sleep { world, node, deadline, timer } = &mut *self;
        world.with(|core| {
            if core.clock_of(*node) >= *deadline {
                return Poll::Ready(());
            }
            let set = timer.is_some_and(|key| core.set_waker(key, cx.waker()));
            if !set {
                let deadline = core.true_time(*node, *deadline);
                *timer = Some(core.at(deadline, TimerAction::Wake(*node, cx.waker().clone())));
            }
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let timer = self.timer.take();
        // The waker is dropped outside the lock.
        let _alarm = timer.and_then(|key| self.world.with(|core| core.timers.alarms.remove(&key)));
    }
}
