//! The child's side: a memory node, or a node that serves the store and runs its clients.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use base::rt::sync::Notify;
use base::{Bytes, rt};
use kv::KvStore as SiftStore;
use rma::Token;
use rustix::process::{Pid, setpriority_process};
use sift::{SiftGroup, Standby};
use tokio::sync::mpsc;

use super::messages::{ProcessConfig, ProcessMessage, ProcessRole, ProcessTask, failed, now_ns};
use crate::sift::load::{KvLoad, OperationMix, key, scattered};
use crate::sift::systems::{KvGeometry, KvSystem, SystemKind};
use crate::sift::{load, systems};
use measurement::error::Error;
use measurement::progress::MeasurementFuture;
use measurement::random::Random;
use measurement::zipf::Zipf;

/// How often a process reports the operations of its clients.
pub(super) const COUNT_EVERY: Duration = Duration::from_millis(5);
/// Operations after which a client yields: few, so that heartbeats are not late.
const TURN: u64 = 16;

/// The percentage of a log in use at which it counts as full, and how long filling may take.
const FULL_PERCENT: u64 = 95;
const FULL_MAX: Duration = Duration::from_secs(10);
/// Tasks that put to fill a log, beside the clients.
const FILLERS: u64 = 64;
/// How often the logs are checked for being full.
const FULL_LOOK: Duration = Duration::from_millis(1);
/// Memory nodes have a low priority: they get a tenth of a core if all cores are busy.
const MEMORY_NICENESS: i32 = 10;
const TASKS_MAX: usize = 64;
const SCHEME: &str = "bench-raft";
/// More than all puts of a hundred operations: clients do nothing.
const IDLE: u64 = u64::MAX;

fn send_message(said: &ProcessMessage) {
    let line = serde_json::to_string(said).expect("it is plain data") + "\n";
    let mut out = std::io::stdout().lock();
    // If the parent has gone, this process is about to end too.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// The shared state of clients.
struct ProcessesCore {
    /// The store that serves, if one does; each has another number.
    system: Mutex<Option<KvSystem>>,
    generation: AtomicU64,
    puts_of_100: AtomicU64,
    /// Signals that another store serves, or that clients have another task.
    changed: Notify,
    is_counting: AtomicBool,
    reads: AtomicU64,
    writes: AtomicU64,
    load: KvLoad,
}

impl ProcessesCore {
    fn system(&self) -> Option<KvSystem> {
        self.system.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, system: Option<KvSystem>) {
        *self.system.lock().unwrap_or_else(PoisonError::into_inner) = system;
        self.generation.fetch_add(1, Ordering::Release);
        self.changed.notify_waiters();
    }

    async fn serving(&self) -> KvSystem {
        loop {
            let changed = self.changed.notified();
            match self.system() {
                Some(system) => return system,
                None => changed.await,
            }
        }
    }

    /// Sets how many of a hundred operations of clients are puts from now on.
    fn set_puts(&self, puts_of_100: u64) {
        self.puts_of_100.store(puts_of_100, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// A client: one operation after the other, at the store that serves at the moment, while there is a task.
    async fn operate(&self, number: u64) {
        let mut random = Random::new(self.load.seed ^ (number + 1) << 32);
        let value = Bytes::from(vec![b'w'; self.load.value_bytes]);
        loop {
            let generation = self.generation.load(Ordering::Acquire);
            let system = self.serving().await;
            for operation in 1_u64.. {
                let puts = self.puts_of_100.load(Ordering::Acquire);
                if puts == IDLE {
                    let changed = self.changed.notified();
                    if self.puts_of_100.load(Ordering::Acquire) == IDLE {
                        changed.await;
                    }
                    break;
                }
                let key = key(scattered(self.load.zipf.draw(&mut random), self.load.keys));
                let is_put = random.below(100) < puts;
                let outcome = match is_put {
                    true => system.put(&key, &value).await,
                    false => system.get(&key).await.map(drop),
                };
                if outcome.is_err() {
                    rt::sleep(Duration::from_millis(1)).await;
                } else {
                    let done = if is_put { &self.writes } else { &self.reads };
                    done.fetch_add(1, Ordering::Relaxed);
                }
                if operation % TURN == 0 {
                    rt::yield_now().await;
                }
                if self.generation.load(Ordering::Acquire) != generation {
                    break;
                }
            }
        }
    }

    fn count(&self) {
        let live = match self.system() {
            Some(KvSystem::Sift(store, _)) => store.coordinator().status().live as u64,
            _ => 0,
        };
        let (reads, writes) = (self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed));
        send_message(&ProcessMessage::Count { at_ns: now_ns(), reads, writes, live });
    }

    async fn run_task(self: Arc<Self>, task: ProcessTask) -> Result<(), Error> {
        let (system, never) = (self.serving().await, CancellationToken::new());
        match task {
            ProcessTask::Fill => {
                // Each at the store that serves at the moment: a coordinator may lose its lease meanwhile.
                let serving = Arc::clone(&self);
                load::fill(move || serving.system(), &self.load, &never).await?;
                send_message(&ProcessMessage::Done);
            }
            ProcessTask::Run { puts_of_100, seconds } => {
                let mix = OperationMix { name: "", puts_of_100 };
                let outcome = load::run(&system, &self.load, mix, seconds, &never).await?;
                send_message(&ProcessMessage::Rate { ops_per_second: outcome.rate, cpu_us: outcome.cpu_us });
            }
            ProcessTask::Load { puts_of_100 } => {
                self.is_counting.store(true, Ordering::Release);
                self.set_puts(puts_of_100);
            }
            ProcessTask::FillLog => {
                self.set_puts(100);
                let start = Instant::now();
                // A store that ends meanwhile is followed by another, perhaps in this process.
                while start.elapsed() < FULL_MAX {
                    let KvSystem::Sift(store, _) = self.serving().await else { break };
                    if let Some(full) = self.fill_logs(&store, start).await {
                        send_message(&full);
                        return Ok(());
                    }
                }
                return Err(failed("logs that do not become full"));
            }
        }
        Ok(())
    }

    /// Puts any keys until both logs are full; `None` if the store ended first, or on time-out.
    async fn fill_logs(&self, store: &SiftStore, start: Instant) -> Option<ProcessMessage> {
        let coordinator = store.coordinator();
        let layout = *coordinator.layout();
        coordinator.stop_reclaiming();
        for filler in 0..FILLERS {
            let (store, keys, mut random) = (store.clone(), self.load.keys, Random::new(self.load.seed ^ filler << 40));
            let value = Bytes::from(vec![b'w'; self.load.value_bytes]);
            rt::spawn(async move {
                // The last put waits for free space until the store ends.
                while store.put(key(random.below(keys)), value.clone()).await.is_ok() {
                    rt::yield_now().await;
                }
            });
        }
        while coordinator.is_serving() && start.elapsed() < FULL_MAX {
            let (used_bytes, group_used_bytes) = (store.status().log_used_bytes, coordinator.status().log_used_bytes);
            let is_full = |used: u64, all: u64| used >= all * FULL_PERCENT / 100;
            // The store's log is the group's unlogged region.
            if is_full(used_bytes, layout.unlogged_bytes) && is_full(group_used_bytes, layout.log_bytes) {
                return Some(ProcessMessage::Full { used_bytes, group_used_bytes });
            }
            rt::sleep(FULL_LOOK).await;
        }
        None
    }
}

/// The child's side: performs its role until it is killed.
///
/// # Errors
/// A resource is missing.
pub fn serve() -> MeasurementFuture<'static, ()> {
    Box::pin(serve_until_shut_down())
}

async fn serve_until_shut_down() -> Result<(), Error> {
    let outcome = run_process().await;
    if let Err(error) = &outcome {
        send_message(&ProcessMessage::Failed { reason: error.to_string() });
    }
    outcome
}

async fn run_process() -> Result<(), Error> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(failed)?;
    let (lines, mut tasks) = mpsc::channel(TASKS_MAX);
    let reading = move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if lines.blocking_send(line).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("told".to_owned()).spawn(reading).map_err(failed)?;
    let told = tasks.recv().await.ok_or_else(|| failed("nobody said what it is"))?;
    let config: ProcessConfig = serde_json::from_str(&told).map_err(failed)?;
    let (token, shape) = (Token::new(config.token), config.shape);
    let group = || shape.group(&config.addresses, &token, config.times.timing());

    if let ProcessRole::Memory(number) = config.role {
        // It stands for another machine: its only work, taking memory from the system, must not slow down the CPU node.
        lower_priority().map_err(failed)?;
        // The socket of an earlier incarnation.
        let _ = std::fs::remove_file(&config.addresses[number as usize]);
        let _node = shape.memory(&group()?, number, &CancellationToken::new()).await?;
        send_message(&ProcessMessage::Ready);
        std::future::pending::<()>().await;
    }

    let zipf = Zipf::new(shape.keys, config.theta);
    let ProcessConfig { clients, seed, .. } = config;
    let load = KvLoad { clients, value_bytes: shape.value_bytes, zipf, keys: shape.keys, pace: None, seed };
    let shared = Arc::new(ProcessesCore {
        system: Mutex::default(),
        generation: AtomicU64::new(0),
        puts_of_100: AtomicU64::new(IDLE),
        changed: Notify::new(),
        is_counting: AtomicBool::new(false),
        reads: AtomicU64::new(0),
        writes: AtomicU64::new(0),
        load,
    });
    let counted = Arc::clone(&shared);
    let counting = move || {
        loop {
            std::thread::sleep(COUNT_EVERY);
            if counted.is_counting.load(Ordering::Acquire) {
                counted.count();
            }
        }
    };
    std::thread::Builder::new().name("counting".to_owned()).spawn(counting).map_err(failed)?;
    for client in 0..clients {
        let shared = Arc::clone(&shared);
        rt::spawn(async move { shared.operate(client).await });
    }
    let obeying = Arc::clone(&shared);
    rt::spawn(async move {
        while let Some(line) = tasks.recv().await {
            let outcome = match serde_json::from_str(&line) {
                Ok(task) => Arc::clone(&obeying).run_task(task).await,
                Err(error) => Err(failed(error)),
            };
            if let Err(error) = outcome {
                send_message(&ProcessMessage::Failed { reason: error.to_string() });
            }
        }
    });
    match config.role {
        ProcessRole::Memory(_) => unreachable!("it was one above"),
        ProcessRole::CpuNode(number) => coordinate(&shared, &shape, group()?, number).await,
        ProcessRole::Raft(id) => {
            assert!(shape.kind == SystemKind::Raft, "a node of Raft is started with a store");
            systems::register_links(SCHEME, &token);
            let members = systems::raft_members(SCHEME, &config.addresses);
            let store = systems::raft_node(1, id, &members).await?;
            send_message(&ProcessMessage::Ready);
            while !systems::is_leader(&store).await {
                rt::sleep(Duration::from_millis(20)).await;
            }
            shared.set(Some(KvSystem::Raft(store, Arc::default())));
            send_message(&ProcessMessage::Serves { at_ns: now_ns(), recovered: 0 });
            std::future::pending().await
        }
    }
}

/// Gives all threads of this process a low priority; threads that they start inherit it.
fn lower_priority() -> std::io::Result<()> {
    for thread in std::fs::read_dir("/proc/self/task")?.flatten() {
        let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(thread) = number.and_then(Pid::from_raw) {
            setpriority_process(Some(thread), MEMORY_NICENESS)?;
        }
    }
    Ok(())
}

/// Stands by, serves, and stands by again.
async fn coordinate(shared: &ProcessesCore, shape: &KvGeometry, group: SiftGroup, number: u64) -> Result<(), Error> {
    let mut standby = Standby::new(group, number).map_err(failed)?;
    send_message(&ProcessMessage::Ready);
    loop {
        standby.watch().await;
        send_message(&ProcessMessage::Detected { at_ns: now_ns() });
        let taken = async {
            let elected = standby.elect().await?;
            send_message(&ProcessMessage::Elected { at_ns: now_ns() });
            let recovered = elected.recover_without_waiting().await?;
            send_message(&ProcessMessage::TakenOver { at_ns: now_ns() });
            shape.serve(recovered).await
        };
        match taken.await {
            Ok(store) => {
                shared.set(Some(KvSystem::Sift(store.clone(), None)));
                send_message(&ProcessMessage::Serves { at_ns: now_ns(), recovered: store.status().recovered as u64 });
                let reason = store.ended().await.to_string();
                shared.set(None);
                send_message(&ProcessMessage::Ended { reason });
            }
            Err(error @ (kv::Error::Sift(sift::Error::MemoryLost { .. }) | kv::Error::Corrupt(_))) => {
                return Err(failed(error));
            }
            Err(_) => standby.back_off().await,
        }
    }
}
