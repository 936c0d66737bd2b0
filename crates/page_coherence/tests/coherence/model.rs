//! A small system in every order of its steps: the real state machines, with two pages, threads on both sides, evictions and ties.
//!
//! A step is one access or fault of a thread, the arrival of one message, an answer of storage, the end of a pause or an
//! eviction. Pauses are zero, so a retry may come at any time. The numbers of states that the tests name were counted by them; they change
//! with the protocol.

use std::time::Duration;

use page_coherence::fault::{Mutant, plant};
use page_coherence::{CoherenceMode, CoherenceSettings, Favour};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::system::{Op, Step, System};

/// A system that starts with these programs.
struct Small {
    mode: CoherenceMode,
    favour: Favour,
    programs: Vec<Vec<Op>>,
    callers: usize,
    evictions: u32,
    /// How many requests the caller's shim may put off.
    put_offs: u32,
    mutant: Mutant,
}

pub fn settings(favour: Favour) -> CoherenceSettings {
    CoherenceSettings {
        favour,
        retry_pause: Duration::ZERO,
        retry_pause_max: Duration::ZERO,
        contexts_max: 2,
        queued_max: 1,
    }
}

impl Model for Small {
    type State = System;
    type Action = Step;

    fn init_states(&self) -> Vec<System> {
        let mut system = System::new(self.mode, settings(self.favour), self.programs.clone(), self.callers);
        system.evictions = self.evictions;
        system.put_offs = self.put_offs;
        vec![system]
    }

    fn actions(&self, system: &System, steps: &mut Vec<Step>) {
        steps.extend(system.steps());
    }

    fn next_state(&self, before: &System, step: Step) -> Option<System> {
        // The checker's threads are its own, and a mistake is planted on a thread.
        plant(self.mutant);
        let mut system = before.clone();
        system.apply(step);
        system.check();
        if system.is_done() && system.to_executor.is_empty() && system.to_caller.is_empty() && system.wrong.is_none() {
            let mut settled = system.clone();
            settled.settle();
            system.wrong = settled.wrong;
        }
        plant(Mutant::None);
        Some(system)
    }

    fn properties(&self) -> Vec<Property<Small>> {
        vec![
            Property::always("nothing is wrong", |_, system: &System| system.wrong.is_none()),
            Property::sometimes("all threads end", |_, system: &System| system.is_done()),
        ]
    }
}

impl Small {
    /// Explores all states, and returns how many there are and the first that is wrong.
    fn explore(self) -> (usize, Option<String>) {
        let is_mutant = self.mutant != Mutant::None;
        let checker = self.checker();
        let checker = match is_mutant {
            true => checker.finish_when(HasDiscoveries::AnyFailures),
            false => checker,
        };
        let done = checker.spawn_bfs().join();
        let wrong = done.discovery("nothing is wrong").and_then(|path| path.last_state().wrong.clone());
        if wrong.is_none() {
            assert!(done.discovery("all threads end").is_some(), "no order of the steps ends all threads");
        }
        (done.unique_state_count(), wrong)
    }
}

/// A system with two threads of the caller, that favours the pool.
fn small(mode: CoherenceMode, programs: Vec<Vec<Op>>, evictions: u32) -> Small {
    Small { mode, favour: Favour::Pool, programs, callers: 2, evictions, put_offs: 0, mutant: Mutant::None }
}

/// Two threads of the caller and a function, all writing both pages, the one that calls before and after its call.
fn contended(favour: Favour, evictions: u32, mutant: Mutant) -> Small {
    let programs = vec![
        vec![Op::Write((0, 0), 1), Op::Call(2), Op::Write((1, 1), 6)],
        vec![Op::Write((1, 0), 2), Op::Read((0, 0), 0), Op::Write((0, 1), 3)],
        vec![Op::Read((1, 0), 0), Op::Write((0, 0), 4), Op::Write((1, 0), 5)],
    ];
    Small { mode: CoherenceMode::Coherent, favour, programs, callers: 2, evictions, put_offs: 0, mutant }
}

/// 2 pages, 2 sides, 3 threads, 2 evictions of either side: 89,770 states if the pool is favoured, 92,737 if the caller is.
#[test]
fn no_order_of_the_steps_breaks_coherence() {
    for favour in [Favour::Pool, Favour::Caller] {
        let (states, wrong) = contended(favour, 2, Mutant::None).explore();
        println!("{favour:?}: {states} states");
        assert_eq!(wrong, None);
    }
}

/// Two calls at the same time, in one context: the list of the second joins it. 3,881 states.
#[test]
fn no_order_of_the_steps_breaks_a_shared_context() {
    let programs = vec![
        vec![Op::Write((0, 0), 1), Op::Call(2), Op::Read((0, 1), 0)],
        vec![Op::Write((1, 0), 2), Op::CallAndCancel(3), Op::Write((1, 1), 3)],
        vec![Op::Write((0, 1), 4), Op::Read((1, 1), 0)],
        vec![Op::Read((0, 0), 0), Op::Write((1, 0), 5)],
    ];
    let mode = CoherenceMode::Coherent;
    let small = small(mode, programs, 0);
    let (states, wrong) = small.explore();
    println!("{states} states");
    assert_eq!(wrong, None);
}

/// 20,536 states with partial store order, 14,923 with weak ordering, 9,993 with coherence off.
#[test]
fn no_order_of_the_steps_breaks_the_weaker_modes() {
    for mode in [CoherenceMode::Pso, CoherenceMode::WeakOrdering, CoherenceMode::Off] {
        let programs = vec![
            vec![Op::Write((0, 0), 1), Op::Call(2)],
            vec![Op::Read((1, 2), 0), Op::Write((1, 0), 2), Op::Sync, Op::Write((1, 1), 3)],
            vec![Op::Write((1, 2), 4), Op::Sync, Op::Write((0, 3), 5)],
        ];
        let small = small(mode, programs, 1);
        let (states, wrong) = small.explore();
        println!("{mode:?}: {states} states");
        assert_eq!(wrong, None, "{mode:?}");
    }
}

/// Two threads of the caller and a function, all using both pages. One of the threads drops them while the others may be waiting for them.
fn discarding(mode: CoherenceMode, favour: Favour, evictions: u32, mutant: Mutant) -> Small {
    let programs = vec![
        vec![Op::Write((0, 0), 1), Op::Call(2), Op::Write((1, 1), 6)],
        vec![Op::Read((0, 2), 0), Op::Discard(0, 2, Some(3)), Op::Write((0, 1), 4), Op::Sync],
        vec![Op::Write((0, 2), 2), Op::Read((1, 0), 0), Op::Write((0, 3), 5)],
    ];
    Small { mode, favour, programs, callers: 2, evictions, put_offs: 0, mutant }
}

/// A discard while a call may run, and 1 eviction: 16,907 states in the default mode (17,200 if the caller is favoured), 15,887 with partial store
/// order, 12,264 with weak ordering and with coherence off.
#[test]
fn no_order_of_the_steps_brings_discarded_contents_back() {
    let modes = [CoherenceMode::Coherent, CoherenceMode::Pso, CoherenceMode::WeakOrdering, CoherenceMode::Off]
        .map(|mode| (mode, Favour::Pool));
    for (mode, favour) in modes.into_iter().chain([(CoherenceMode::Coherent, Favour::Caller)]) {
        let (states, wrong) = discarding(mode, favour, 1, Mutant::None).explore();
        println!("{mode:?}, {favour:?}: {states} states");
        assert_eq!(wrong, None, "{mode:?}, {favour:?}");
    }
}

/// The shim of the caller may put 2 requests off, and there is 1 eviction: 63,106 states of contended pages; 52,329 with a discard in the
/// default mode, 45,853 with partial store order, 30,839 with weak ordering and with coherence off.
#[test]
fn no_order_of_the_steps_breaks_coherence_when_requests_are_put_off() {
    let modes = [CoherenceMode::Coherent, CoherenceMode::Pso, CoherenceMode::WeakOrdering, CoherenceMode::Off];
    let discarding = modes.map(|mode| discarding(mode, Favour::Pool, 1, Mutant::None));
    for small in [contended(Favour::Pool, 1, Mutant::None)].into_iter().chain(discarding) {
        let mode = small.mode;
        let (states, wrong) = Small { put_offs: 2, ..small }.explore();
        println!("{mode:?}: {states} states");
        assert_eq!(wrong, None, "{mode:?}");
    }
}

/// The executor serves the caller's fetch and drops its request, so nobody waits for the answer.
#[test]
fn requests_cannot_be_put_off_if_the_caller_is_favoured() {
    let (states, wrong) = Small { put_offs: 1, ..contended(Favour::Caller, 0, Mutant::None) }.explore();
    println!("{states} states: {wrong:?}");
    assert!(wrong.is_some(), "nothing is wrong in {states} states");
}

#[test]
fn the_model_finds_planted_mistakes() {
    for mutant in
        [Mutant::KeepOnWrite, Mutant::OmitOutstanding, Mutant::ServeInTie, Mutant::LoadFromStorage, Mutant::ForgetMerge]
    {
        let (states, wrong) = contended(Favour::Pool, 0, mutant).explore();
        println!("{mutant:?}: {states} states: {wrong:?}");
        assert!(wrong.is_some(), "{mutant:?} is missed in {states} states");
    }
    for mutant in [Mutant::KeepDiscarded, Mutant::InstallDiscarded] {
        let (states, wrong) = discarding(CoherenceMode::Coherent, Favour::Pool, 0, mutant).explore();
        println!("{mutant:?}: {states} states: {wrong:?}");
        assert!(wrong.is_some(), "{mutant:?} is missed in {states} states");
    }
}
