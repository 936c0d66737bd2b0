//! Both directions of a session between two simulated hosts: what arrives is a prefix of what was sent, in the groups in which it was sent, and a
//! session whose link breaks ends at both hosts. Mistakes that are planted are found.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::Bytes;
use base::rt::simulation::{Prng, Sim, Simulation};
use base::rt::sync::Notify;
use base::rt::{self, net};
use pushdown::{Frame, RingError};

use crate::fault::{Mutant, plant};
use crate::message::RelayMessage;
use crate::pump::{RingEnd, SessionEnd, pump};

const SEEDS: u64 = 200;
/// Groups of frames that each side sends.
const GROUPS: u32 = 40;
/// Groups for which an area has room.
const ROOM: usize = 3;
/// A session that goes on for so long after its link broke has not noticed.
const END_MAX: Duration = Duration::from_secs(600);

/// An area: what its user has sent, and what has come for it.
#[derive(Default)]
struct SimulatedArea {
    outgoing: Mutex<VecDeque<Vec<Frame>>>,
    incoming: Mutex<VecDeque<Vec<Frame>>>,
    arrived: Notify,
    is_gone: AtomicBool,
}

impl RingEnd for SimulatedArea {
    fn take(&self) -> Result<Vec<Frame>, RingError> {
        Ok(self.outgoing.lock().expect("nobody panics").drain(..).flatten().collect())
    }

    fn put(&self, frames: &[Frame]) -> bool {
        let mut incoming = self.incoming.lock().expect("nobody panics");
        let has_room = incoming.len() < ROOM;
        if has_room {
            incoming.push_back(frames.to_vec());
        }
        has_room
    }

    async fn arrival(&self) -> Result<(), RingError> {
        self.arrived.notified().await;
        if self.is_gone.load(Ordering::Relaxed) { Err(RingError) } else { Ok(()) }
    }

    fn aside(&self) -> Option<RelayMessage> {
        None
    }

    fn notice(&self, _: RelayMessage) -> Result<(), SessionEnd> {
        Err(SessionEnd::Broken("nobody sends one"))
    }
}

/// A group of frames that says, in each, its number and how many frames it has.
fn group(number: u32, rng: &mut Prng) -> Vec<Frame> {
    let count = 1 + rng.below(4) as u32;
    let frame = |at: u32| {
        let mut bytes = [number, at, count].map(u32::to_le_bytes).concat();
        bytes.resize(12 + (number as usize * 997) % 5000, at as u8);
        Frame { kind: number, bytes: Bytes::from(bytes) }
    };
    (0..count).map(frame).collect()
}

/// Sends all groups, at its leisure.
async fn send_all(area: Arc<SimulatedArea>, mut rng: Prng) {
    for number in 0..GROUPS {
        area.outgoing.lock().expect("nobody panics").push_back(group(number, &mut rng));
        area.arrived.notify_one();
        if rng.below(3) == 0 {
            rt::sleep(Duration::from_micros(rng.below(3000))).await;
        }
    }
}

/// Takes what comes, slowly, and checks it. Returns how many groups have come.
async fn take_all(area: Arc<SimulatedArea>, mut rng: Prng, ended: Arc<Notify>) -> u32 {
    let (mut next, mut has_ended) = (0, false);
    while next < GROUPS {
        let frames = area.incoming.lock().expect("nobody panics").pop_front();
        let Some(mut frames) = frames.map(VecDeque::from) else {
            // What was put before the end was taken.
            if has_ended {
                break;
            }
            has_ended = rt::timeout(Duration::from_micros(500), ended.notified()).await.is_ok();
            continue;
        };
        while let Some(first) = frames.front() {
            let count = u32::from_le_bytes(first.bytes[8..12].try_into().expect("four bytes"));
            for at in 0..count {
                let frame = frames.pop_front().expect("a group arrives whole");
                let head = [next, at, count].map(u32::to_le_bytes).concat();
                assert_eq!((frame.kind, &frame.bytes[..12]), (next, &head[..]), "in order, once, without a gap");
                assert!(frame.bytes[12..].iter().all(|byte| *byte == at as u8), "unchanged");
            }
            next += 1;
        }
        rt::sleep(Duration::from_micros(rng.below(4000))).await;
    }
    next
}

/// One host's half of a session: its pump, and the user of its area. Returns how many groups have come.
async fn host(link: net::Link, seed: u64, leaves_after: Option<Duration>) -> u32 {
    let area = Arc::new(SimulatedArea::default());
    let ended = Arc::new(Notify::default());
    let sending = rt::spawn(send_all(Arc::clone(&area), Prng::new(seed))).abort_on_drop();
    let taking = rt::spawn(take_all(Arc::clone(&area), Prng::new(!seed), Arc::clone(&ended)));
    let user = Arc::clone(&area);
    let leaving = rt::spawn(async move {
        if let Some(after) = leaves_after {
            rt::sleep(after).await;
            user.is_gone.store(true, Ordering::Relaxed);
            user.arrived.notify_one();
        }
    });
    // The session goes on until the user leaves or the link breaks, one of which the driver has happen in the end.
    let (sender, mut receiver) = link.split();
    let end = pump(&*area, &sender, &mut receiver).await;
    let expected = if leaves_after.is_some() { SessionEnd::AreaLost } else { SessionEnd::LinkLost };
    assert_eq!(end, expected, "nothing else happens");
    drop((sender, receiver));
    ended.notify_one();
    drop((sending, leaving));
    taking.await.expect("it does not panic")
}

async fn session(sim: Sim, seed: u64) {
    let (program, executor) = (sim.node("program"), sim.node("executor"));
    let mut chance = Prng::new(seed);
    // Early, but behind the time in which both hosts connect.
    let early = Duration::from_micros(10_000 + chance.below(60_000));
    let (breaks_after, leaves_after) = match seed % 3 {
        0 => (END_MAX, None),
        1 => (early, None),
        _ => (END_MAX, Some(early)),
    };
    let serving = executor.spawn(async move {
        let mut listener = net::listen("executors").await.expect("nobody else listens");
        let link = listener.accept().await.expect("it is up");
        host(link, 2 * seed + 1, None).await
    });
    let calling = program.spawn(async move {
        rt::sleep(Duration::from_millis(1)).await;
        let link = net::connect("executors").await.expect("it listens");
        host(link, 2 * seed, leaves_after).await
    });
    let breaking = sim.clone();
    sim.call_after(breaks_after, move || breaking.break_links("program", "executor"));
    let both = futures_util::future::join(serving, calling);
    let (served, called) = rt::timeout(END_MAX + early, both).await.expect("the session ends at both hosts");
    let taken = [served, called].map(|taken| taken.expect("nobody panics"));
    assert!(!seed.is_multiple_of(3) || taken == [GROUPS; 2], "without a fault all of it comes: {taken:?}");
}

/// Runs a seed. `Err` has what a checker says.
fn run(seed: u64, mutant: Mutant) -> Result<(), String> {
    plant(mutant);
    let report = Simulation::new(seed).run(|sim| session(sim, seed));
    plant(Mutant::None);
    report.map(|_| ()).map_err(|failure| failure.to_string())
}

#[test]
fn what_arrives_is_a_prefix_of_what_was_sent() {
    for seed in 0..SEEDS {
        run(seed, Mutant::None).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

#[test]
fn mistakes_are_found() {
    for mutant in [Mutant::DropWithoutRoom, Mutant::PutOneByOne, Mutant::GoOnInOneDirection, Mutant::Repeat] {
        let found = (0..SEEDS).find(|seed| run(*seed, mutant).is_err());
        assert!(found.is_some(), "{mutant:?} was not found in {SEEDS} seeds");
    }
}
