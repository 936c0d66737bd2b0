//! Litmus tests: which values can threads of both sides read, over all orders of the steps?
//!
//! Locations lie on different pages. Outcomes are the registers of the readers. In the default mode the outcomes must be exactly
//! those of sequential consistency, since accesses here are steps; in a weaker mode the tests name the others that occur.
//! Each test also checks that no state is a trap: from every reachable state all threads can still end.

use std::collections::{BTreeSet, VecDeque};

use base::Map;
use page_coherence::fault::{Mutant, plant};
use page_coherence::{CoherenceMode, Favour};

use crate::model::settings;
use crate::system::{Op, System, Word};

const X: Word = (0, 0);
/// In the second half of a page: with shared writes the executor's.
const Y: Word = (1, 2);

/// A system in every order of its steps: a breadth-first search that keeps the edges, to find traps.
struct Explored {
    states: usize,
    outcomes: BTreeSet<Vec<u32>>,
    /// States from which no order of the steps ends all threads.
    traps: usize,
}

fn explore(start: System, readers: &[(usize, usize)]) -> Explored {
    let mut numbers = Map::default();
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    let (mut ends, mut outcomes, mut queue) = (Vec::new(), BTreeSet::new(), VecDeque::from([start.clone()]));
    numbers.insert(start, 0);
    while let Some(system) = queue.pop_front() {
        let number = numbers[&system];
        if system.is_done() {
            ends.push(number);
            let register = |(program, register): &(usize, usize)| {
                let thread = system.threads.iter().find(|thread| thread.program == *program);
                thread.expect("the program ran").registers[*register]
            };
            outcomes.insert(readers.iter().map(register).collect());
            continue;
        }
        for step in system.steps() {
            let mut next = system.clone();
            next.apply(step);
            next.check();
            assert_eq!(next.wrong, None);
            let next_number = match numbers.get(&next) {
                Some(known) => *known,
                None => {
                    let new = before.len();
                    before.push(Vec::new());
                    numbers.insert(next.clone(), new);
                    queue.push_back(next);
                    new
                }
            };
            before[next_number].push(number);
        }
    }
    let mut can_end = vec![false; before.len()];
    while let Some(number) = ends.pop() {
        if !std::mem::replace(&mut can_end[number], true) {
            ends.extend(before[number].iter().copied().filter(|other| !can_end[*other]));
        }
    }
    Explored { states: before.len(), outcomes, traps: can_end.iter().filter(|can| !**can).count() }
}

/// All outcomes: the registers of the threads with these programs, one after another.
fn outcomes(
    mode: CoherenceMode,
    callers: usize,
    programs: Vec<Vec<Op>>,
    readers: &[(usize, usize)],
) -> BTreeSet<Vec<u32>> {
    let explored = explore(System::new(mode, settings(Favour::Pool), programs, callers), readers);
    println!("{mode:?}: {} states, outcomes {:?}", explored.states, explored.outcomes);
    assert_eq!(explored.traps, 0, "some states have no way to the end");
    explored.outcomes
}

fn set<const N: usize>(outcomes: &[[u32; N]]) -> BTreeSet<Vec<u32>> {
    outcomes.iter().map(|outcome| outcome.to_vec()).collect()
}

/// Each side writes a location and reads the other's.
fn store_buffering(mode: CoherenceMode) -> BTreeSet<Vec<u32>> {
    let programs = vec![
        vec![Op::Read(X, 0), Op::Read(Y, 0), Op::Call(2)],
        vec![Op::Write(X, 1), Op::Read(Y, 0)],
        vec![Op::Write(Y, 1), Op::Read(X, 0)],
    ];
    outcomes(mode, 2, programs, &[(1, 0), (2, 0)])
}

#[test]
fn store_buffering_is_seen_in_weaker_modes_only() {
    let sequential = set(&[[0, 1], [1, 0], [1, 1]]);
    assert_eq!(store_buffering(CoherenceMode::Coherent), sequential);
    for mode in [CoherenceMode::Pso, CoherenceMode::WeakOrdering, CoherenceMode::Off] {
        assert!(store_buffering(mode).contains(&vec![0, 0]), "{mode:?}");
    }
}

/// The caller writes a value and then a flag; the function reads the flag and then, maybe behind a synchronisation point, the value.
fn message_passing(mode: CoherenceMode, synchronises: bool) -> BTreeSet<Vec<u32>> {
    let (value, flag) = (X, (1, 0));
    let mut reader = vec![Op::Read(flag, 0), Op::Read(value, 1)];
    let mut writer = vec![Op::Write(value, 1), Op::Write(flag, 1)];
    if synchronises {
        reader.insert(1, Op::Sync);
        writer.insert(1, Op::Sync);
    }
    let programs = vec![vec![Op::Read(value, 0), Op::Write(flag, 0), Op::Call(2)], writer, reader];
    outcomes(mode, 2, programs, &[(2, 0), (2, 1)])
}

#[test]
fn message_passing_fails_in_weaker_modes_unless_both_sides_synchronise() {
    let sequential = set(&[[0, 0], [0, 1], [1, 1]]);
    assert_eq!(message_passing(CoherenceMode::Coherent, false), sequential);
    for mode in [CoherenceMode::Pso, CoherenceMode::WeakOrdering, CoherenceMode::Off] {
        assert!(message_passing(mode, false).contains(&vec![1, 0]), "{mode:?}");
        assert_eq!(message_passing(mode, true), sequential, "{mode:?}");
    }
}

/// The caller drops a page and then reads or writes a location; the function writes or reads that location and then reads the page.
fn discard_against(mode: CoherenceMode, caller: Op, executor: Op) -> BTreeSet<Vec<u32>> {
    let value = (0, 2);
    let programs = vec![
        vec![Op::Read(value, 0), Op::Read(Y, 0), Op::Call(2)],
        vec![Op::Discard(0, 1, Some(1)), caller],
        vec![executor, Op::Read(value, 1)],
    ];
    outcomes(mode, 2, programs, &[(1, 0), (2, 0), (2, 1)])
}

/// The executor hears of a discard before all that the caller did later. In the default mode a discard is therefore ordered as a write,
/// although the caller does not wait for anybody; in every mode what follows it is seen only behind it.
#[test]
fn a_discard_is_seen_in_the_order_of_the_callers_accesses() {
    let buffered = discard_against(CoherenceMode::Coherent, Op::Read(Y, 0), Op::Write(Y, 2));
    assert_eq!(buffered, set(&[[0, 0, 1], [2, 0, 0], [2, 0, 1]]));
    for mode in [CoherenceMode::Coherent, CoherenceMode::Pso, CoherenceMode::WeakOrdering, CoherenceMode::Off] {
        let passed = discard_against(mode, Op::Write((1, 0), 2), Op::Read((1, 0), 0));
        assert!(!passed.contains(&vec![0, 2, 0]), "{mode:?}");
        assert!(passed.contains(&vec![0, 2, 1]), "{mode:?}");
    }
}

/// Each side reads a location and then writes the other.
#[test]
fn load_buffering_is_seen_in_no_mode() {
    for mode in [CoherenceMode::Coherent, CoherenceMode::Pso, CoherenceMode::WeakOrdering, CoherenceMode::Off] {
        let programs = vec![
            vec![Op::Read(X, 0), Op::Read(Y, 0), Op::Call(2)],
            vec![Op::Read(Y, 0), Op::Write(X, 1)],
            vec![Op::Read(X, 0), Op::Write(Y, 1)],
        ];
        let found = outcomes(mode, 2, programs, &[(1, 0), (2, 0)]);
        assert!(!found.contains(&vec![1, 1]), "{mode:?}");
        if mode == CoherenceMode::Coherent {
            assert_eq!(found, set(&[[0, 0], [0, 1], [1, 0]]));
        }
    }
}

/// Independent reads of independent writes: a writer and a reader on each side.
fn independent_reads(mode: CoherenceMode) -> BTreeSet<Vec<u32>> {
    let programs = vec![
        vec![Op::Read(X, 0), Op::Read(Y, 0), Op::Call(4)],
        vec![Op::Call(5)],
        vec![Op::Write(X, 1)],
        vec![Op::Read(X, 0), Op::Read(Y, 1)],
        vec![Op::Write(Y, 1)],
        vec![Op::Read(Y, 0), Op::Read(X, 1)],
    ];
    outcomes(mode, 4, programs, &[(3, 0), (3, 1), (5, 0), (5, 1)])
}

#[test]
fn sides_disagree_on_the_order_of_writes_in_weaker_modes_only() {
    let split = vec![1, 0, 1, 0];
    let coherent = independent_reads(CoherenceMode::Coherent);
    let all = (0..16_u32).map(|bits| (0..4).map(|bit| bits >> bit & 1).collect::<Vec<u32>>());
    assert_eq!(coherent, all.filter(|outcome| *outcome != split).collect());
    assert!(independent_reads(CoherenceMode::Pso).contains(&split));
}

/// Both sides write both pages, in opposite orders, while pages come and go. Whatever has happened, all threads can still end.
#[test]
fn contention_has_no_traps_and_a_planted_one_is_noticed() {
    let trapped = |favour, evictions, mutant| {
        let programs = vec![
            vec![Op::Read(X, 0), Op::Read((1, 0), 0), Op::Call(2)],
            vec![Op::Write(X, 1), Op::Write((1, 0), 1)],
            vec![Op::Write((1, 0), 2), Op::Write(X, 2)],
        ];
        let mut start = System::new(CoherenceMode::Coherent, settings(favour), programs, 2);
        start.evictions = evictions;
        plant(mutant);
        let explored = explore(start, &[]);
        plant(Mutant::None);
        println!("{favour:?}, {mutant:?}: {} states, {} traps", explored.states, explored.traps);
        explored.traps
    };
    assert_eq!(trapped(Favour::Pool, 1, Mutant::None), 0);
    assert_eq!(trapped(Favour::Caller, 1, Mutant::None), 0);
    assert!(trapped(Favour::Pool, 0, Mutant::NeverRetry) > 0);
}
