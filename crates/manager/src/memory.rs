//! The memory loop: the next budget of one peer, by the cost of its misses and the price of memory.
//!
//! 1. Over each period the misses are counted; each costs the time by which storage is slower than remote memory. So
//!    misses have a cost in microseconds of waiting each second, and a step of memory a price in the same unit.
//! 2. Memory grows by a step if it is full and its misses cost several times the price of a step. A full memory whose
//!    misses are cheap stays as it is: the least useful records give way.
//! 3. After a growth the next whole period shows what it saved. If that is less than a share of its price (keys that are
//!    read once miss in any memory), growth is put off, for twice as long after each growth in vain.
//! 4. Memory that the peer has taken shrinks by a step if its contents fit in the rest, or if its misses cost far less than a
//!    step. If the misses cost more than that afterwards, shrinking is put off, for twice as long each time.
//!
//! Invariant: a step down comes [`MemoryPolicy::pause`](crate::MemoryPolicy::pause) after the last change, or later.

use std::time::Duration;

use crate::action::Action;
use crate::compute::Decision;
use crate::fault::{Mutant, mutant};
use crate::settings::ManagerSettings;
use crate::view::MemoryView;

/// The last change, and what the misses cost before it.
#[derive(Clone, Copy, Debug)]
struct LastChange {
    is_growth: bool,
    cost_before: u64,
    is_judged: bool,
}

/// The memory of the loop between two looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryLoop {
    /// When misses were last counted, and how many.
    counted: Option<(Duration, u64)>,
    last: Option<LastChange>,
    /// Not before these does memory grow and shrink.
    grow_from: Duration,
    shrink_from: Duration,
    pause: Duration,
}

impl MemoryLoop {
    /// The loop of a manager that starts: what happened before is unknown.
    pub fn new(settings: &ManagerSettings, now: Duration) -> MemoryLoop {
        let pause = settings.memory.pause;
        MemoryLoop { counted: None, last: None, grow_from: now, shrink_from: now + pause, pause }
    }

    /// A change has ended: misses are counted from now on.
    pub fn changed(&mut self) {
        self.counted = None;
    }

    /// A change was rejected: it is not tried again at once.
    pub fn rejected(&mut self, now: Duration) {
        (self.last, self.counted) = (None, None);
        self.grow_from = self.grow_from.max(now + self.pause);
        self.shrink_from = self.shrink_from.max(now + self.pause);
    }

    /// The next step, if a period has ended and calls for one.
    pub fn step(&mut self, view: &MemoryView, settings: &ManagerSettings, now: Duration) -> Option<Decision> {
        let (limits, policy) = (&settings.limits, &settings.memory);
        let max = if mutant(Mutant::GrowBeyondLimit) { u64::MAX } else { limits.memory_max_bytes };
        let max = max.min(view.available_bytes.max(view.budget_bytes));
        let budget = view.budget_bytes;
        let bounded = budget.clamp(limits.memory_min_bytes, limits.memory_max_bytes);
        if budget != bounded && self.grow_from <= now && (bounded < budget || view.available_bytes >= bounded) {
            let seen = format!("a budget of {} MiB", budget >> 20);
            let why = "the budget is outside of the peer's limits".to_owned();
            return Some(Decision { action: Some(Action::SetMemory { bytes: bounded }), seen, why });
        }
        let cost = self.cost(view.misses, settings, now)?;
        let price = settings.step_price();
        self.judge(cost, price, settings, now);
        let seen = format!(
            "{} of {} MiB taken, misses cost {cost} us/s, a step {price} us/s",
            view.used_bytes >> 20,
            budget >> 20
        );
        let full_at = |bytes: u64| bytes / 100 * u64::from(policy.full_percent);
        let is_full = view.used_bytes >= full_at(budget);
        let dear = cost >= price.saturating_mul(policy.grow_factor) || mutant(Mutant::GrowWhenFull);
        if is_full && dear && budget < max && now >= self.grow_from {
            let bytes = budget.saturating_add(policy.step_bytes).min(max);
            let why = format!("it is full, and its misses cost {} times a step or more", policy.grow_factor);
            return Some(self.change(true, bytes, cost, seen, why, now));
        }
        let lower = budget.saturating_sub(policy.step_bytes).max(limits.memory_min_bytes);
        // A budget that the peer does not use costs nobody anything.
        if lower >= budget || view.leased_bytes <= lower || now < self.shrink_from {
            return None;
        }
        let why = if view.used_bytes < full_at(lower) && cost < price {
            "what it holds fits in less"
        } else if cost.saturating_mul(policy.grow_factor) <= price {
            "its misses cost far less than a step"
        } else {
            return None;
        };
        Some(self.change(false, lower, cost, seen, why.to_owned(), now))
    }

    fn change(&mut self, is_growth: bool, bytes: u64, cost: u64, seen: String, why: String, now: Duration) -> Decision {
        self.last = Some(LastChange { is_growth, cost_before: cost, is_judged: false });
        self.shrink_from = self.shrink_from.max(now + self.pause);
        Decision { action: Some(Action::SetMemory { bytes }), seen, why }
    }

    /// What misses cost in the period that has just ended, in microseconds each second.
    fn cost(&mut self, misses: u64, settings: &ManagerSettings, now: Duration) -> Option<u64> {
        let policy = &settings.memory;
        let (at, before) = match self.counted {
            // A new primary counts from zero.
            Some((at, before)) if before <= misses => (at, before),
            _ => {
                self.counted = Some((now, misses));
                return None;
            }
        };
        let passed = now.saturating_sub(at);
        if passed < policy.period {
            return None;
        }
        self.counted = Some((now, misses));
        let cost = u128::from(misses - before) * u128::from(policy.miss_us) * 1000 / passed.as_millis().max(1);
        Some(u64::try_from(cost).unwrap_or(u64::MAX))
    }

    /// Judges the last change by the first period after it.
    fn judge(&mut self, cost: u64, price: u64, settings: &ManagerSettings, now: Duration) {
        let policy = &settings.memory;
        let Some(last) = self.last.as_mut().filter(|last| !last.is_judged) else { return };
        last.is_judged = true;
        let was_right = match last.is_growth {
            true => last.cost_before.saturating_sub(cost) >= price.saturating_mul(policy.worth_percent) / 100,
            false => cost.saturating_sub(last.cost_before) <= price,
        };
        if was_right || mutant(Mutant::GrowInVain) {
            self.pause = policy.pause;
            return;
        }
        match last.is_growth {
            true => self.grow_from = self.grow_from.max(now + self.pause),
            false => self.shrink_from = self.shrink_from.max(now + self.pause * 2),
        }
        self.pause = (self.pause * 2).min(policy.pause_max);
    }
}
