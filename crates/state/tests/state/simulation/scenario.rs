//! What happens in the world of one seed, and which faults hit it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::rt::simulation::{Prng, Sim};
use base::rt::{self, CancellationToken};
use state::{ApplyWorkers, DisaggregatedConfig};
use storage::{MemoryStateStore, StateStore as _};

use super::followers::Followers;
use super::primary::run_primary;
use super::world::World;
use crate::support::Donors;

/// Fault points that must be hit in some seed.
pub const FAULT_POINTS: [&str; 53] = [
    "rma.sim.lose_completion",
    "rma.sim.lose_verb",
    "rma.sim.tear",
    "state.adopt.free",
    "state.adopt.read",
    "state.adopt.slow",
    "state.adopt.survey",
    "state.apply.caches",
    "state.apply.link",
    "state.apply.locate",
    "state.apply.mark",
    "state.apply.publish",
    "state.apply.slot",
    "state.apply.write",
    "state.drain.choose",
    "state.drain.directory",
    "state.drain.give_up",
    "state.drain.move",
    "state.drain.persist",
    "state.evict.begin",
    "state.evict.caches",
    "state.evict.mark",
    "state.evict.persist",
    "state.evict.slot",
    "state.evict.superseded",
    "state.fill.begin",
    "state.fill.slot",
    "state.fill.write",
    "state.grow",
    "state.loss",
    "state.migrate.copy",
    "state.migrate.grant",
    "state.migrate.return",
    "state.migrate.switch",
    "state.range.page",
    "state.read.bucket",
    "state.read.learn",
    "state.read.record",
    "state.read.storage",
    "state.followers.ack",
    "state.followers.done",
    "state.followers.fill",
    "state.followers.follow",
    "state.followers.grant",
    "state.followers.granted",
    "state.followers.join",
    "state.followers.leave",
    "state.followers.serve",
    "state.followers.share",
    "state.followers.tell",
    "state.followers.work",
    "state.split.directory",
    "state.verb.ambiguous",
];

pub async fn scenario(sim: Sim, focus: Focus) {
    let mut rng = sim.rng();
    // In some worlds records move in and out of memory all the time.
    let is_crowded = (rng.one_in(3) || focus.follows()) && focus.dies_in().is_none();
    // In some worlds one primary is replaced while it is still applying what the last one left behind.
    let is_restless = rng.one_in(3) || focus != Focus::Everything;
    let section_bytes = if focus.wants_index() { 16_384 } else { 8192 << rng.below(3) };
    let migrates = focus.migrates();
    let donors = if migrates { 2 } else { 1 } + rng.below(3) as u32;
    let donor_sections = rng.below(12)
        + if focus.wants_index() {
            16
        } else if migrates {
            8
        } else {
            1
        };
    let donors = Donors::start(&sim, donors, section_bytes, donor_sections * section_bytes).await;
    let cache_bytes = |rng: &mut Prng| [0, 700, 4_000, 100_000][rng.index(4)];
    let (evict_above_percent, evict_to_percent) = if is_crowded {
        (40, 5)
    } else if focus.wants_index() {
        (90, 85)
    } else {
        [(90, 85), (60, 40), (40, 5)][rng.index(3)]
    };
    let settings = DisaggregatedConfig {
        // Without a cache and with nothing in the delta, a follower depends on what it finds in memory.
        metadata_cache_bytes: match is_crowded {
            _ if focus.follows() => 0,
            true => 4_000,
            false => cache_bytes(&mut rng),
        },
        data_cache_bytes: if focus == Focus::Switches { 0 } else { cache_bytes(&mut rng) },
        delta_bytes_max: if focus == Focus::Switches { 1 } else { [4_000, 1 << 20][rng.index(2)] },
        view_lag_blocks_max: [5, 1_000][rng.index(2)],
        savepoint_lag_blocks_max: match focus {
            _ if focus.follows() => 1,
            _ => 1 + rng.below(if is_restless { 200 } else { 40 }),
        },
        apply_workers: ApplyWorkers { workers_max: [1, 2, 4][rng.index(3)], keys_per_worker: rng.index(3) },
        evict_above_percent,
        evict_to_percent,
    };
    let sections = match focus {
        _ if focus.wants_index() => 10,
        _ if focus == Focus::Numbers => 40,
        _ if is_crowded => rng.below(3) + if migrates { 3 } else { 1 },
        _ => rng.below(16) + if migrates { 3 } else { 1 },
    };
    let (keys, value_bytes_max) = match (focus.wants_index(), is_crowded) {
        (true, _) => (2_000, 20),
        _ if focus == Focus::Numbers => (700, 600),
        (_, true) => (40, 300),
        _ => ([6, 40, 700][rng.index(3)], [20, 300, 9_000][rng.index(3)]),
    };
    let world = Arc::new(World {
        donors,
        store: MemoryStateStore::new(),
        keys,
        value_bytes: value_bytes_max + 1,
        budget_bytes: sections * section_bytes,
        settings,
        ledger: Mutex::default(),
        epoch: AtomicU64::new(1),
        shown: AtomicU64::new(0),
        seats: Mutex::default(),
        readers: AtomicU64::new(0),
        reads: AtomicU64::new(0),
        shrinks: AtomicBool::new(false),
        // Where a primary dies, its successor shall find what it left.
        opens_one_in: if focus.dies_in().is_some() { 40 } else { 6 },
        is_followed: focus.follows(),
        is_resized: !focus.wants_index() && focus != Focus::Numbers,
        vacates_fullest: focus.wants_index() || focus == Focus::Switches,
        vacates_one_in: if migrates { 2 } else { 6 },
    });
    for name in FAULT_POINTS {
        let rate = match name {
            _ if name.starts_with("rma") => 0.000_5,
            "state.verb.ambiguous" => 0.000_3,
            "state.grow" | "state.loss" | "state.split.directory" => 0.3,
            "state.adopt.slow" => 0.8,
            "state.apply.mark" if matches!(focus, Focus::Replays | Focus::Numbers) => 0.4,
            "state.apply.mark" if is_restless => 0.1,
            _ if name.starts_with("state.adopt") => 0.3,
            "state.followers.join" | "state.followers.share" | "state.followers.fill" => 0.2,
            "state.followers.serve" | "state.followers.done" => 0.02,
            "state.followers.leave" if focus == Focus::Joins => 0.03,
            "state.followers.follow" if focus == Focus::Switches => 0.2,
            "state.followers.follow" if focus == Focus::Joins => [0.2, 0.7][rng.index(2)],
            "state.followers.leave" => 0.01,
            "state.followers.work" => 0.2,
            "state.drain.choose" => 0.8,
            _ if migrates && name.starts_with("state.migrate") => 0.9,
            _ if name.starts_with("state.drain") || name.starts_with("state.migrate") => 0.4,
            "state.followers.granted" => 0.6,
            "state.read.learn" => 0.3,
            "state.read.record" => 0.05,
            _ if is_crowded && name.starts_with("state.evict") => 0.05,
            _ => 0.01,
        };
        if rng.one_in(2) || (is_crowded && name == "state.read.learn") || focus.needs(name) {
            sim.inject(name, rate);
        }
    }
    let stop = CancellationToken::new();
    let mut primaries = Vec::new();
    let crew = Followers::start(&sim, &world, &mut rng, &stop);
    let mut begin = |epoch: u64, seat: String, rng: &mut Prng| {
        let node = sim.node(&seat);
        world.seats.lock().expect("nobody panics with it").insert(epoch, seat);
        node.set_clock_drift_ppm(rng.below(20_000) as i64 - 10_000);
        world.epoch.store(epoch, Ordering::Release);
        primaries.push(node.spawn(run_primary(Arc::clone(&world), epoch, Prng::new(rng.number()), stop.clone())));
    };
    begin(1, "compute1".to_owned(), &mut rng);
    let mut killed = 0;
    for _ in 0..rng.below(6) + if focus == Focus::Switches { 80 } else { 6 } {
        rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(150)))).await;
        let is_replaced = match focus {
            Focus::Switches => continue,
            Focus::Replays => true,
            _ => focus.dies_in().is_some() || rng.one_in(if is_restless { 2 } else { 5 }),
        };
        if is_replaced {
            let epoch = world.epoch.load(Ordering::Acquire) + 1;
            // The old primary is dead, or does not know; the new one runs on another node, or on that of a follower.
            let (last, donor) = (world.seat(), rng.pick(&world.donors.names).clone());
            let mut is_cut = false;
            let dies = match focus.dies_in() {
                Some(step) => {
                    world.shrinks.store(focus == Focus::Moves, Ordering::Release);
                    die_in(&sim, &world, step, if focus == Focus::Numbers { 0 } else { 4 }).await;
                    true
                }
                None => {
                    is_cut = is_restless && rng.one_in(2);
                    if is_cut {
                        // It loses a memory node, whose sections its successor finds.
                        sim.cut(&last, &donor);
                        sim.break_links(&last, &donor);
                        rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(100)))).await;
                    } else if is_restless && rng.one_in(2) {
                        world.shrinks.store(true, Ordering::Release);
                        rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(200)))).await;
                    }
                    is_cut || matches!(focus, Focus::Replays | Focus::Migrations)
                }
            };
            if dies || rng.one_in(if is_restless { 4 } else { 2 }) {
                sim.node(&last).crash();
                killed += 1;
            }
            if is_cut {
                sim.heal(&last, &donor);
            }
            let seat = match rng.one_in(2) {
                true => crew.promote(),
                false => None,
            };
            // Often there is nothing to apply again.
            if focus.dies_in().is_some() || rng.one_in(if is_restless { 4 } else { 2 }) {
                drop(world.store.materialize(u64::MAX).await);
            }
            let seat = seat.unwrap_or_else(|| format!("compute{epoch}"));
            if focus == Focus::Numbers {
                sim.node(&donor).crash();
            }
            begin(epoch, seat, &mut rng);
            if focus == Focus::Numbers {
                rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(300)))).await;
                sim.node(&donor).restart();
            }
        } else if rng.one_in(3) {
            crew.disturb(&sim, &world, &mut rng).await;
        } else {
            disturb(&sim, &world, &mut rng).await;
        }
    }
    for name in FAULT_POINTS {
        sim.inject(name, 0.0);
    }
    sim.heal_all();
    world.store.set_delay(Duration::ZERO);
    stop.cancel();
    let ended = futures_util::future::join_all(primaries).await.into_iter().filter(Result::is_err).count();
    assert!(ended <= killed, "nobody ends a primary");
    sim.note(format!("{} blocks, {} reads", world.ledger().blocks.len(), world.reads.load(Ordering::Relaxed)));
}

/// Waits, but not for long, until a step is delayed, and some blocks were applied meanwhile.
async fn die_in(sim: &Sim, world: &World, step: &'static str, blocks: u64) {
    let before = sim.fault_point(step).injected;
    let mut height = None;
    for _ in 0..600 {
        let shown = world.shown.load(Ordering::Acquire);
        if height.is_none() && sim.fault_point(step).injected > before {
            height = Some(shown);
        }
        if height.is_some_and(|height| shown >= height + blocks) {
            break;
        }
        rt::sleep(Duration::from_millis(1)).await;
    }
}

/// Injects a fault while primaries are running.
async fn disturb(sim: &Sim, world: &World, rng: &mut Prng) {
    let donor = rng.pick(&world.donors.names).clone();
    let primary = world.seat();
    match rng.below(6) {
        0 => {
            sim.node(&donor).crash();
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(300)))).await;
            sim.node(&donor).restart();
        }
        1 => {
            sim.cut(&primary, &donor);
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(400)))).await;
            sim.heal(&primary, &donor);
        }
        2 => {
            sim.break_links(&primary, &donor);
        }
        3 => {
            let primary = sim.node(&primary);
            primary.pause();
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(150)))).await;
            primary.resume();
        }
        4 => {
            let height = world.ledger().blocks.len() as u64;
            drop(world.store.materialize(rng.below(height + 1)).await);
        }
        _ => world.store.set_delay(rng.duration(&(Duration::ZERO..Duration::from_millis(3)))),
    }
}

/// What worlds are mostly about: a mistake that shows seldom is looked for where it shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    Everything,
    /// Primaries die while they move the index.
    Moves,
    /// Primaries die while they apply blocks again.
    Replays,
    /// Primaries die while sections migrate.
    Migrations,
    /// Primaries die when a section has been copied, and before it is switched to its copy.
    Copies,
    /// Primaries die when a section has migrated, and before its old location is returned.
    OldLocations,
    /// Followers leave, and join while sections migrate.
    Joins,
    /// Followers hear late that sections have migrated, and of records that come back into memory.
    Switches,
    /// Primaries die before the marks of a block are written, which may cover the number of a new section, and with
    /// them a memory node.
    Numbers,
}

impl Focus {
    /// The focus of a seed without a planted mistake.
    pub fn of_seed(seed: u64) -> Focus {
        let special = [
            Focus::Migrations,
            Focus::Joins,
            Focus::Moves,
            Focus::Replays,
            Focus::Copies,
            Focus::OldLocations,
            Focus::Switches,
            Focus::Numbers,
        ];
        special.get(seed as usize % 16).copied().unwrap_or(Focus::Everything)
    }

    /// Whether sections migrate most of the time.
    fn migrates(self) -> bool {
        matches!(
            self,
            Focus::Migrations | Focus::Copies | Focus::OldLocations | Focus::Joins | Focus::Switches | Focus::Numbers
        )
    }

    /// Whether it is about what followers read.
    fn follows(self) -> bool {
        matches!(self, Focus::Joins | Focus::Switches)
    }

    /// Whether the index takes much of the memory.
    fn wants_index(self) -> bool {
        matches!(self, Focus::Copies | Focus::OldLocations)
    }

    /// The delay during which primaries die.
    fn dies_in(self) -> Option<&'static str> {
        match self {
            Focus::Moves => Some("state.drain.give_up"),
            Focus::Copies => Some("state.migrate.grant"),
            Focus::OldLocations => Some("state.migrate.return"),
            Focus::Numbers => Some("state.apply.mark"),
            _ => None,
        }
    }

    /// Whether a fault point is always active.
    fn needs(self, name: &str) -> bool {
        match self {
            Focus::Everything => false,
            Focus::Moves => name.starts_with("state.drain"),
            Focus::Replays => name == "state.apply.mark",
            Focus::Migrations | Focus::Copies | Focus::OldLocations => name.starts_with("state.migrate"),
            Focus::Joins => {
                let names = ["state.followers.granted", "state.followers.leave", "state.followers.follow"];
                names.contains(&name) || name == "state.migrate.return"
            }
            Focus::Switches => ["state.followers.follow", "state.migrate.return"].contains(&name),
            Focus::Numbers => name == "state.apply.mark",
        }
    }
}
