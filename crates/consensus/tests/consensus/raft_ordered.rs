//! The ordered log on the Raft engine under faults: three nodes with journals, whoever leads appends.
//!
//! 1. A seed decides delays and faults: nodes crash and lose what was not synced, are paused and cut off. Snapshots are taken often, so
//!    that a node which was away gets entries from the journals of others.
//! 2. What is below `safe` is read at every node as `safe` moves, and again at each start: one entry a position, each of them appended by
//!    a leader in its term at that position; one leader a term.
//! 3. All is healed: every node's journal comes to have everything, and more is appended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt;
use base::rt::disk::{Directory, File};
use base::rt::simulation::{Bounds, CLOCK_DRIFT_PPM_MAX, FaultKind, Plan, Sim};
use base::{Bytes, ErrorKind};
use consensus::ordered::{Journal, OrderedLog as _, Role};
use consensus::raft::{Member, Options, RaftLog, Timing};
use consensus::{Error, Term};
use futures_util::FutureExt as _;

use crate::support::campaign::{Campaign, endure, plans_of};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const TROUBLE: Duration = Duration::from_millis(2500);
/// Before a node that has crashed starts again.
const REVIVE: Duration = Duration::from_millis(300);
const CALM_MAX: Duration = Duration::from_secs(30);
const ENTRIES_MIN: u64 = 200;
const CRASH_POINTS: &[&str] = &["consensus.raft.synced", "consensus.raft.syncing"];

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A journal in one file: length, sum and bytes of each entry. What is not whole at its end is cut off.
struct FileJournal {
    file: File,
    inner: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    entries: Vec<(u64, usize)>,
    end: u64,
    durable: u64,
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn failed(error: std::io::Error) -> Error {
    Error::Journal(error.to_string())
}

impl FileJournal {
    async fn open() -> Result<FileJournal, Error> {
        let directory = Directory::open("/journal").await.map_err(failed)?;
        let file = directory.open_file("entries", true).map_err(failed)?;
        directory.sync().await.map_err(failed)?;
        let bytes = file.read_at(0, file.len().map_err(failed)? as usize).map_err(failed)?;
        let (mut places, mut at) = (Places::default(), 0);
        while let Some(head) = bytes.get(at..at + 8) {
            let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
            let expected = u32::from_le_bytes(head[4..].try_into().expect("four bytes"));
            let Some(body) = bytes.get(at + 8..at + 8 + length).filter(|body| sum(body) == expected) else { break };
            if body.is_empty() {
                break;
            }
            places.entries.push((at as u64 + 8, length));
            at += 8 + length;
        }
        places.end = at as u64;
        file.truncate(places.end).map_err(failed)?;
        let journal = FileJournal { file, inner: Mutex::new(places) };
        if journal.height() == 0 {
            journal.append(0, Bytes::from_static(b"genesis")).await?;
        }
        journal.sync().await?;
        Ok(journal)
    }
}

#[async_trait]
impl Journal for FileJournal {
    fn height(&self) -> u64 {
        lock(&self.inner).entries.len() as u64
    }

    fn durable(&self) -> u64 {
        lock(&self.inner).durable
    }

    fn read(&self, position: u64) -> Result<Option<Bytes>, Error> {
        let Some((at, length)) = lock(&self.inner).entries.get(position as usize).copied() else { return Ok(None) };
        self.file.read_exact_at(at, length).map(Some).map_err(failed)
    }

    async fn append(&self, position: u64, entry: Bytes) -> Result<(), Error> {
        let mut inner = lock(&self.inner);
        assert!(position == inner.entries.len() as u64, "journal: {position} is not the next position");
        let mut bytes = (entry.len() as u32).to_le_bytes().to_vec();
        bytes.extend(sum(&entry).to_le_bytes());
        bytes.extend(&entry[..]);
        self.file.write_at(inner.end, &bytes).map_err(failed)?;
        let at = inner.end + 8;
        inner.entries.push((at, entry.len()));
        inner.end += bytes.len() as u64;
        Ok(())
    }

    async fn sync(&self) -> Result<u64, Error> {
        let height = self.height();
        self.file.sync().await.map_err(failed)?;
        lock(&self.inner).durable = height;
        Ok(height)
    }

    async fn cut(&self, _height: u64) -> Result<(), Error> {
        panic!("journal: Raft's is never cut");
    }

    fn note(&self) -> Result<Bytes, Error> {
        Ok(Bytes::new())
    }

    async fn set_note(&self, _note: Bytes) -> Result<(), Error> {
        Ok(())
    }
}

#[derive(Default)]
struct Truth {
    /// By position.
    safe: BTreeMap<u64, Bytes>,
    leaders: BTreeMap<Term, u64>,
    /// How many entries may be shown at each node.
    reached: BTreeMap<u64, u64>,
    failed: Option<String>,
}

#[derive(Clone, Default)]
struct World {
    truth: Arc<Mutex<Truth>>,
}

fn options(node: u64) -> Options {
    let member = |id: u64| Member { id, address: NODES[id as usize - 1].to_owned(), learns: false };
    Options {
        directory: Some("/raft".into()),
        timing: Timing {
            tick: Duration::from_millis(5),
            heartbeat_ticks: 3,
            election_ticks: 12,
            drift_ppm_max: CLOCK_DRIFT_PPM_MAX as u32,
        },
        log_bytes: 1000,
        snapshot_after_bytes: 6000,
        segment_bytes: Some(4096),
        ..Options::new(3, node, (1..=3).map(member).collect())
    }
}

/// An entry tells of its term, position and node.
fn entry(term: Term, position: u64, node: u64) -> Bytes {
    let words = [term.0, position, node, rt::random_u64()];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.repeat(1 + rt::random_below(6) as usize).into()
}

impl World {
    async fn run(self, node: u64) {
        loop {
            let outcome = async {
                let journal = Arc::new(FileJournal::open().await?);
                let log = RaftLog::open(options(node), Arc::clone(&journal) as Arc<dyn Journal>).await?;
                Ok::<_, Error>((log, journal))
            };
            let error = match outcome.await {
                Ok((log, journal)) => {
                    let log = Arc::new(log);
                    let (world, leading) = (self.clone(), Arc::clone(&log));
                    let _leads = rt::spawn(async move { world.lead(&leading, node).await }).abort_on_drop();
                    let (world, watched) = (self.clone(), Arc::clone(&log));
                    let _watches =
                        rt::spawn(async move { world.watch(&watched, &journal, node).await }).abort_on_drop();
                    let error = log.ended().await;
                    log.stop().await;
                    error
                }
                Err(error) => error,
            };
            let is_disk = matches!(error, Error::Journal(_));
            if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) && !is_disk {
                lock(&self.truth).failed.get_or_insert(format!("report: node {node}: {error}"));
            }
            rt::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Appends while it leads.
    async fn lead(&self, log: &RaftLog, node: u64) {
        let mut role = log.role();
        loop {
            let now = *role.borrow_and_update();
            if let Role::Leading { term, next } = now {
                let other = *lock(&self.truth).leaders.entry(term).or_insert(node);
                assert!(other == node, "leaders: {other} and {node} lead in term {term}");
                let mut position = next;
                while log.append(term, position, entry(term, position, node)).await.is_ok() {
                    position += 1;
                    rt::sleep(Duration::from_micros(rt::random_below(8000))).await;
                    if *role.borrow() != now {
                        break;
                    }
                }
            }
            if role.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reads what may be shown.
    async fn watch(&self, log: &RaftLog, journal: &FileJournal, node: u64) {
        let (mut safe, mut next) = (log.safe(), 0);
        loop {
            let until = *safe.borrow_and_update();
            while next < until {
                let found = journal.read(next);
                let Ok(found) = found else { break };
                let found = found.unwrap_or_else(|| panic!("safe: {next} is safe and not in the journal"));
                if next > 0 {
                    let position = u64::from_le_bytes(found[8..16].try_into().expect("a word"));
                    assert!(position == next, "made up: {next} has the entry of {position}");
                }
                let mut truth = lock(&self.truth);
                let before = truth.safe.entry(next).or_insert_with(|| found.clone());
                assert!(*before == found, "changed: two entries at {next}");
                next += 1;
                truth.reached.insert(node, next);
            }
            if safe.changed().await.is_err() {
                return;
            }
        }
    }

    fn check(&self) {
        if let Some(reason) = &lock(&self.truth).failed {
            panic!("{reason}");
        }
    }
}

fn plans(seed: u64) -> [Plan; 2] {
    let bounds = Bounds {
        nodes: NODES.iter().map(|name| (*name).to_owned()).collect(),
        kinds: vec![FaultKind::Pause, FaultKind::Cut, FaultKind::Cut, FaultKind::Break, FaultKind::Drift],
        faults: 8,
        within: Duration::from_millis(300)..TROUBLE,
        lasting: Duration::from_millis(5)..Duration::from_millis(700),
        down_max: 2,
    };
    plans_of(seed, bounds, &NODES, 5)
}

async fn scenario(sim: Sim) -> u64 {
    let world = World::default();
    for (which, name) in NODES.iter().enumerate() {
        let world = world.clone();
        sim.node(name).start(move || world.clone().run(which as u64 + 1));
    }
    CRASH_POINTS.iter().for_each(|point| sim.inject(point, 0.002));
    endure(&sim, plans(sim.seed()), &NODES, REVIVE, CRASH_POINTS.iter()).await;
    let before = lock(&world.truth).safe.len() as u64;
    let wanted = (before + 20).max(ENTRIES_MIN);
    let start = rt::now();
    loop {
        world.check();
        let slowest = {
            let truth = lock(&world.truth);
            NODES
                .iter()
                .enumerate()
                .map(|(which, _)| truth.reached.get(&(which as u64 + 1)).copied().unwrap_or(0))
                .min()
        };
        if slowest >= Some(wanted) {
            return wanted;
        }
        assert!(start.elapsed() < CALM_MAX, "progress: {slowest:?} of {wanted}");
        rt::sleep(Duration::from_millis(50)).await;
    }
}

fn campaign() -> Campaign<()> {
    Campaign {
        name: "RAFT_ORDERED",
        tests: "raft_ordered::",
        steps_max: 4_000_000,
        scenario: |sim, ()| scenario(sim).boxed(),
        plans,
        points: CRASH_POINTS.to_vec(),
        enough: 75,
        plant: |()| {},
        sound: (),
        mistakes: &[],
    }
}

#[test]
fn seeds_0_to_99() {
    campaign().run(0..100);
}

#[test]
fn chosen_seeds() {
    campaign().run_chosen();
}

#[test]
fn one_seed() {
    campaign().run_one();
}

#[test]
fn a_seed_decides_everything() {
    campaign().run_twice();
}
