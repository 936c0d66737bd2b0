//! Seeds: each draws modes, one after another, programs, delays and faults, and runs until all threads have ended or a side is lost.

use std::time::Duration;

use base::rt::simulation::Prng;
use page_coherence::{CoherenceMode, CoherenceSettings, Favour};

use crate::system::{Op, Side, Step, System, WORDS};

/// Seeds of a test run; `HEDDLE_COHERENCE_SEEDS` sets another number.
const SEEDS: u64 = 2000;
/// A seed that takes more steps makes no progress.
const STEPS_MAX: u64 = 60_000;

/// What a seed did.
#[derive(Debug, Default, PartialEq)]
pub struct Summary {
    pub steps: u64,
    pub ties: u64,
    pub calls: u64,
    pub accesses: u64,
    /// Discards outside of calls, and during calls.
    pub discards: [u64; 2],
    pub losses: u64,
    pub wrong: Option<String>,
}

/// A program of a side.
fn program(
    rng: &mut Prng,
    side: Side,
    mode: CoherenceMode,
    pages: u64,
    functions: &[usize],
    discards: bool,
) -> Vec<Op> {
    let count = if side == Side::Caller { 20 + rng.below(40) } else { rng.below(25) };
    let shares_writes = matches!(mode, CoherenceMode::WeakOrdering | CoherenceMode::Off);
    let mut ops = Vec::new();
    for _ in 0..count {
        let page = rng.below(pages);
        let mut place = rng.index(WORDS);
        match rng.below(100) {
            0..12 if side == Side::Caller => {
                let program = functions[rng.index(functions.len())];
                ops.push(if rng.one_in(4) { Op::CallAndCancel(program) } else { Op::Call(program) });
            }
            12..15 if side == Side::Caller && mode == CoherenceMode::Off => ops.push(Op::SyncBytes),
            12..17 if side == Side::Caller || mode != CoherenceMode::Off => ops.push(Op::Sync),
            17..20 if side == Side::Caller && mode == CoherenceMode::Off => ops.push(Op::Pull),
            17..20 if side == Side::Executor => ops.push(Op::Service),
            17..20 if mode == CoherenceMode::WeakOrdering => ops.push(Op::SyncBytes),
            20..60 => {
                if shares_writes {
                    // No data races: each side writes words of its own.
                    place = place % (WORDS / 2) + if side == Side::Caller { 0 } else { WORDS / 2 };
                }
                ops.push(Op::Add((page, place)));
            }
            60..66 if discards => ops.push(Op::Discard(page, 1 + rng.below(pages - page), None)),
            _ => ops.push(Op::Read((page, place), 0)),
        }
    }
    ops
}

fn mode_of(seed: u64) -> CoherenceMode {
    match seed % 8 {
        0..4 => CoherenceMode::Coherent,
        4 | 5 => CoherenceMode::Pso,
        6 => CoherenceMode::WeakOrdering,
        _ => CoherenceMode::Off,
    }
}

/// Lets everything arrive that is on its way when all threads have ended: storage for a killed function, answers to it, the last replies.
fn finish_messages(system: &mut System) {
    let kept = std::mem::take(&mut system.evictions);
    system.kills = 0;
    while let Some(step) = system.steps().first() {
        system.apply(*step);
    }
    system.evictions = kept;
}

/// Runs a seed.
pub fn run(seed: u64) -> Summary {
    let mut rng = Prng::new(seed);
    let mode = mode_of(seed);
    let settings = CoherenceSettings {
        favour: if rng.one_in(5) { Favour::Caller } else { Favour::Pool },
        retry_pause: Duration::from_micros(1 + rng.below(20)),
        retry_pause_max: Duration::from_micros(320),
        contexts_max: 1 + rng.below(3) as usize,
        queued_max: rng.below(3) as usize,
    };
    let pages = 1 + rng.below(4);
    let callers = 1 + rng.below(3) as usize;
    let functions: Vec<usize> = (callers..callers + 3).collect();
    let discards = !rng.one_in(3);
    let draw_programs = |rng: &mut Prng, mode: CoherenceMode| -> Vec<Vec<Op>> {
        let of_callers: Vec<Vec<Op>> =
            (0..callers).map(|_| program(rng, Side::Caller, mode, pages, &functions, discards)).collect();
        let of_functions = (0..3).map(|_| program(rng, Side::Executor, mode, pages, &[], false));
        of_callers.into_iter().chain(of_functions).collect()
    };
    let programs = draw_programs(&mut rng, mode);
    let mut system = System::new(mode, settings, programs, callers);
    system.follows_floors = true;
    system.pages = pages;
    system.drops_its_own = rng.one_in(3);
    if rng.one_in(4) {
        system.own_all(settings);
    }
    system.evictions = if rng.one_in(4) { 0 } else { rng.below(60) as u32 };
    system.kills = rng.below(3) as u32;
    let lost_at = if rng.one_in(7) { 20 + rng.below(300) } else { u64::MAX };
    // Only a favoured pool waits for an answer whatever the caller asks for meanwhile.
    if settings.favour == Favour::Pool && rng.one_in(3) {
        system.put_offs = rng.below(60) as u32;
    }
    let weights: [u64; 6] = std::array::from_fn(|_| 1 + rng.below(12));
    let mut summary = Summary::default();
    let mut modes_left = rng.below(3);
    while system.wrong.is_none() && summary.steps < lost_at {
        if system.is_done() {
            summary.calls += system.threads.len() as u64 - callers as u64;
            if modes_left == 0 {
                break;
            }
            modes_left -= 1;
            finish_messages(&mut system);
            let mode = mode_of(rng.below(8));
            system.go_on(mode, draw_programs(&mut rng, mode));
            continue;
        }
        let steps = system.steps();
        let weight = |step: &Step| match step {
            Step::Thread(_) => 2 * weights[0],
            Step::ToExecutor => weights[1],
            Step::ToCaller | Step::PutOff => weights[2],
            Step::Loaded(_) => weights[3],
            Step::TickCaller | Step::TickExecutor => weights[4],
            Step::HandlePutOff => weights[5],
            Step::EvictCaller(_) | Step::EvictPool(_) | Step::Kill(_) => 1,
        };
        let total: u64 = steps.iter().map(weight).sum();
        let mut at = rng.below(total);
        let chosen = steps.iter().find(|step| {
            let found = at < weight(step);
            at = at.saturating_sub(weight(step));
            found
        });
        let chosen = *chosen.expect("the weights add up");
        if let Step::Thread(index) = chosen {
            summary.accesses += 1;
            if matches!(system.next_op(&system.threads[index]), Some(Op::Discard(..))) {
                summary.discards[usize::from(system.executor.has_context())] += 1;
            }
        }
        system.apply(chosen);
        system.check();
        summary.steps += 1;
        if summary.steps > STEPS_MAX {
            system.fail("no progress".to_owned());
        }
    }
    if system.wrong.is_none() && !system.is_done() {
        summary.losses = 1;
        if rng.one_in(2) { system.lose_executor() } else { system.lose_caller() }
    } else if system.wrong.is_none() {
        finish_messages(&mut system);
        system.settle();
    }
    summary.ties = u64::from(system.ties);
    summary.wrong = system.wrong;
    summary
}

#[test]
fn every_read_sees_what_its_mode_promises() {
    let seeds = std::env::var("HEDDLE_COHERENCE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let mut all = Summary::default();
    for seed in 0..seeds {
        let summary = run(seed);
        assert_eq!(summary.wrong, None, "seed {seed}");
        all.steps += summary.steps;
        all.ties += summary.ties;
        all.calls += summary.calls;
        all.accesses += summary.accesses;
        all.discards = [0, 1].map(|during| all.discards[during] + summary.discards[during]);
        all.losses += summary.losses;
    }
    println!("{seeds} seeds: {all:?}");
    let enough =
        [(2 * all.ties, 1), (all.calls, 2), (all.accesses, 60), (all.discards[0], 1), (2 * all.discards[1], 1)];
    assert!(enough.iter().all(|(count, least)| *count > least * seeds) && all.losses * 20 > seeds, "{all:?}");
}

#[test]
fn a_seed_is_the_same_when_it_runs_again() {
    assert_eq!(run(11), run(11));
}
