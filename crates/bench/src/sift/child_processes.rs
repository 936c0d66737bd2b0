//! Stores whose memory nodes, coordinators and Raft nodes are separate processes, so that each can be killed or limited as a
//! machine would be.
//!
//! 1. Each process runs this same program. Its first line on standard input is its role in JSON ([`ProcessConfig`]). It ends
//!    when its parent ends.
//! 2. The process that coordinates or leads also runs the clients, as tasks. Their work arrives on its standard input, one
//!    [`ProcessTask`] per line. A standby begins this work once it serves.
//! 3. A process reports events on standard output, one [`ProcessMessage`] per line, with timestamps from the monotonic
//!    clock that all processes of the machine share. While clients work, a thread reports the number of their
//!    operations every [`COUNT_EVERY`]. So a killed process loses only the counts of about its last [`COUNT_EVERY`].

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::sync::Notify;
use base::rt::{self, CancellationToken};
use kv::KvStore as SiftStore;
use rma::Token;
use rustix::process::{Pid, setpriority_process};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sift::{SiftGroup, SiftTimeouts, Standby};
use tokio::sync::mpsc;

use super::load::{self, KvLoad, OperationMix, key, scattered};
use super::systems::{self, KvGeometry, KvSystem, SystemKind};
use crate::error::Error;
use crate::progress::MeasurementFuture;
use crate::random::Random;
use crate::zipf::Zipf;

/// How often a process reports the operations of its clients.
const COUNT_EVERY: Duration = Duration::from_millis(5);
/// Operations after which a client yields: few, so that heartbeats are not late.
const TURN: u64 = 16;
/// How often the parent checks the reports of its children.
const LOOK: Duration = Duration::from_millis(2);
/// How long a step of a measurement may take.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(300);
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

/// The role of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProcessRole {
    /// A memory node, with its number.
    Memory(u32),
    /// A CPU node, with its number.
    CpuNode(u64),
    /// A node of Raft, with its number.
    Raft(u64),
}

/// Times of a group, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupTimeouts {
    /// Between heartbeats, and between checks of them.
    pub heartbeat_ms: u64,
    /// How long a coordinator may serve after a heartbeat.
    pub lease_ms: u64,
    /// How long a CPU node waits for a heartbeat; randomly prolonged by up to a half.
    pub election_ms: u64,
    /// Bytes a second that are copied to a returning memory node.
    pub copy_bytes_per_second: u64,
}

impl GroupTimeouts {
    /// For busy machines, and a CPU node that no other replaces: it need not wait for another's heartbeat;
    /// before it serves, it only waits for the lease of a possible predecessor.
    pub fn relaxed() -> GroupTimeouts {
        GroupTimeouts {
            heartbeat_ms: 5,
            lease_ms: 5000,
            election_ms: 100,
            copy_bytes_per_second: SiftTimeouts::UNLIMITED,
        }
    }

    fn timing(self) -> SiftTimeouts {
        let ms = Duration::from_millis;
        SiftTimeouts {
            heartbeat: ms(self.heartbeat_ms),
            lease: ms(self.lease_ms),
            election_timeout: ms(self.election_ms),
            copy_bytes_per_second: self.copy_bytes_per_second,
            answer_max: Duration::from_secs(5),
            ..SiftTimeouts::default()
        }
    }
}

/// The configuration of a process.
#[derive(Serialize, Deserialize)]
struct ProcessConfig {
    role: ProcessRole,
    shape: KvGeometry,
    times: GroupTimeouts,
    addresses: Vec<String>,
    token: [u8; rma::TOKEN_BYTES],
    clients: u64,
    theta: f64,
    seed: u64,
}

/// A task of a process.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum ProcessTask {
    /// Put all keys once; answered by [`ProcessMessage::Done`].
    Fill,
    /// Load the store with this many puts of a hundred operations for this many seconds; answered by [`ProcessMessage::Rate`].
    Run {
        /// Puts of a hundred operations; the others are gets.
        puts_of_100: u64,
        /// How long.
        seconds: f64,
    },
    /// Load the store this way from now on, and report the operations.
    Load {
        /// Puts of a hundred operations; the others are gets.
        puts_of_100: u64,
    },
    /// Stop freeing space in the group's log, and put until that and the store's log are full; answered by [`ProcessMessage::Full`].
    FillLog,
}

/// A report of a process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ProcessMessage {
    /// It has started.
    Ready,
    /// It noticed that there is no coordinator.
    Detected {
        /// When, as [`now_ns`] counts.
        at_ns: u64,
    },
    /// It was elected.
    Elected {
        /// When, as [`now_ns`] counts.
        at_ns: u64,
    },
    /// It has taken over the memory.
    TakenOver {
        /// When, as [`now_ns`] counts.
        at_ns: u64,
    },
    /// It serves, or leads; it found this many entries in the store's log.
    Serves {
        /// When, as [`now_ns`] counts.
        at_ns: u64,
        /// Entries that it found in the store's log.
        recovered: u64,
    },
    /// It does not serve any more.
    Ended {
        /// The error's text.
        reason: String,
    },
    /// Operations of its clients since they started, and the number of live memory nodes.
    Count {
        /// When, as [`now_ns`] counts.
        at_ns: u64,
        /// Gets that were completed.
        reads: u64,
        /// Puts that were completed.
        writes: u64,
        /// Live memory nodes.
        live: u64,
    },
    /// It has completed its task.
    Done,
    /// Operations a second, and the process's time for each in microseconds.
    Rate {
        /// Operations a second.
        ops_per_second: f64,
        /// Processor time of each operation in microseconds.
        cpu_us: f64,
    },
    /// Bytes in use of its log, and of the group's.
    Full {
        /// Bytes in use of the store's log.
        used_bytes: u64,
        /// Bytes in use of the group's log.
        group_used_bytes: u64,
    },
    /// It cannot continue.
    Failed {
        /// The error's text.
        reason: String,
    },
}

/// The machine's monotonic clock, which all processes share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}

/// Operations that the clients of a process had completed at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationCount {
    /// The moment, as [`now_ns`] counts.
    pub at_ns: u64,
    /// Gets since the process started.
    pub reads: u64,
    /// Puts since the process started.
    pub writes: u64,
    /// Memory nodes that were live.
    pub live: u64,
}

/// The steps by which a child started to serve; times of the machine's clock.
#[derive(Clone, Copy, Default)]
pub struct TakeoverTimes {
    /// When it noticed that there is no coordinator.
    pub detected_ns: Option<u64>,
    /// When it was elected.
    pub elected_ns: Option<u64>,
    /// When it had taken over the memory.
    pub taken_over_ns: Option<u64>,
    /// When it began to serve.
    pub serves_ns: u64,
    /// Entries that it found in the store's log.
    pub recovered: u64,
}

/// The reports of a child.
#[derive(Default)]
pub struct ReceivedMessages {
    is_ready: bool,
    /// The steps of the takeover that is under way, or was last.
    takeover: TakeoverTimes,
    /// The takeover after which it serves, while it does.
    pub serves: Option<TakeoverTimes>,
    /// How often its store ended while the process ran.
    pub ended: u64,
    /// All counts, in the order in which they arrived.
    pub counts: Vec<OperationCount>,
    answers: VecDeque<ProcessMessage>,
    failed: Option<String>,
    is_gone: bool,
}

impl ReceivedMessages {
    /// Checks that it can continue.
    ///
    /// # Errors
    /// It reports that it cannot, or has ended.
    pub fn check(&self) -> Result<(), Error> {
        match &self.failed {
            Some(reason) => Err(failed(reason)),
            None if self.is_gone => Err(failed("it has ended")),
            None => Ok(()),
        }
    }

    fn receive(&mut self, said: ProcessMessage) {
        match said {
            ProcessMessage::Ready => self.is_ready = true,
            ProcessMessage::Detected { at_ns } => self.takeover.detected_ns = Some(at_ns),
            ProcessMessage::Elected { at_ns } => self.takeover.elected_ns = Some(at_ns),
            ProcessMessage::TakenOver { at_ns } => self.takeover.taken_over_ns = Some(at_ns),
            ProcessMessage::Serves { at_ns, recovered } => {
                self.serves = Some(TakeoverTimes { serves_ns: at_ns, recovered, ..self.takeover });
            }
            ProcessMessage::Ended { .. } => (self.serves, self.ended) = (None, self.ended + 1),
            ProcessMessage::Count { at_ns, reads, writes, live } => {
                self.counts.push(OperationCount { at_ns, reads, writes, live })
            }
            ProcessMessage::Failed { reason } => self.failed = Some(reason),
            answer @ (ProcessMessage::Done | ProcessMessage::Rate { .. } | ProcessMessage::Full { .. }) => {
                self.answers.push_back(answer)
            }
        }
    }
}

/// How processes are started, and the common settings of a store's processes.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program, and the arguments that make it one of these processes.
    pub path: PathBuf,
    /// The arguments that make the program one of these processes.
    pub arguments: Vec<&'static str>,
    /// Clients of each process that serves, with one operation in flight each.
    pub clients: u64,
    /// The exponent of Zipf's law by which clients choose keys; 0 is uniform.
    pub theta: f64,
    /// Fixes the choice of keys.
    pub seed: u64,
}

/// A store's processes: their addresses and their secret.
pub struct ProcessGroup {
    program: Program,
    shape: KvGeometry,
    times: GroupTimeouts,
    token: Token,
    addresses: Vec<String>,
    _folder: tempfile::TempDir,
}

fn failed(error: impl ToString) -> Error {
    Error::Part { what: "a store's process", reason: error.to_string() }
}

impl ProcessGroup {
    /// Prepares the processes of a store; none runs yet.
    ///
    /// # Errors
    /// No folder for their sockets.
    pub fn new(program: &Program, shape: KvGeometry, times: GroupTimeouts) -> Result<ProcessGroup, Error> {
        let folder = tempfile::Builder::new().prefix("heddle-bench-").tempdir().map_err(failed)?;
        let address = |node| folder.path().join(format!("node-{node}")).display().to_string();
        let addresses = (0..shape.nodes()).map(address).collect();
        let (program, token) = (program.clone(), Token::random());
        Ok(ProcessGroup { program, shape, times, token, addresses, _folder: folder })
    }

    /// Starts one, and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(&self, role: ProcessRole, stop: &CancellationToken) -> Result<ChildProcess, Error> {
        let told = ProcessConfig {
            role,
            shape: self.shape,
            times: self.times,
            addresses: self.addresses.clone(),
            token: *self.token.bytes(),
            clients: self.program.clients,
            theta: self.program.theta,
            seed: self.program.seed,
        };
        let mut command = Command::new(&self.program.path);
        command.args(&self.program.arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (stdin, stdout) = child.stdin.take().zip(child.stdout.take()).expect("both were asked for");
        let heard: Arc<Mutex<ReceivedMessages>> = Arc::default();
        let mut child = ChildProcess { child, stdin, received: Arc::clone(&heard) };
        child.write(&told)?;
        let hearing = move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // A line that a kill has cut short is ignored.
                if let Ok(said) = serde_json::from_str(&line) {
                    heard.lock().unwrap_or_else(PoisonError::into_inner).receive(said);
                }
            }
            heard.lock().unwrap_or_else(PoisonError::into_inner).is_gone = true;
        };
        std::thread::Builder::new().name("hearing".to_owned()).spawn(hearing).map_err(failed)?;
        child.until(stop, |heard| heard.is_ready.then_some(())).await?;
        Ok(child)
    }

    /// Starts empty memory nodes.
    ///
    /// # Errors
    /// As [`ProcessGroup::start`].
    pub async fn start_memory(&self, stop: &CancellationToken) -> Result<Vec<ChildProcess>, Error> {
        let mut memory = Vec::new();
        for node in 0..self.shape.nodes() {
            memory.push(self.start(ProcessRole::Memory(node), stop).await?);
        }
        let group = self.shape.group(&self.addresses, &self.token, self.times.timing())?;
        sift::format(&group).await.map_err(failed)?;
        Ok(memory)
    }
}

/// A process. Dropping it kills it.
pub struct ChildProcess {
    child: std::process::Child,
    stdin: ChildStdin,
    received: Arc<Mutex<ReceivedMessages>>,
}

impl ChildProcess {
    fn write(&mut self, what: &impl Serialize) -> Result<(), Error> {
        let line = serde_json::to_string(what).expect("it is plain data") + "\n";
        self.stdin.write_all(line.as_bytes()).and_then(|()| self.stdin.flush()).map_err(failed)
    }

    /// Gives it a task.
    ///
    /// # Errors
    /// It has ended.
    pub fn send_task(&mut self, task: ProcessTask) -> Result<(), Error> {
        self.write(&task)
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its reports so far.
    pub fn received(&self) -> MutexGuard<'_, ReceivedMessages> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `look` finds something in its reports.
    ///
    /// # Errors
    /// It reports a failure, or reports nothing for long; or the run was stopped.
    pub async fn until<T>(
        &self,
        stop: &CancellationToken,
        look: impl Fn(&mut ReceivedMessages) -> Option<T>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        loop {
            {
                let mut heard = self.received();
                if let Some(found) = look(&mut heard) {
                    return Ok(found);
                }
                heard.check()?;
            }
            if stop.is_cancelled() {
                return Err(Error::Interrupted);
            }
            if start.elapsed() > PROCESS_TIMEOUT {
                return Err(failed("it says nothing any more"));
            }
            rt::sleep(LOOK).await;
        }
    }

    /// Gives it a task, and waits for its answer.
    ///
    /// # Errors
    /// As [`ChildProcess::until`].
    pub async fn run_task_on_child(
        &mut self,
        task: ProcessTask,
        stop: &CancellationToken,
    ) -> Result<ProcessMessage, Error> {
        self.send_task(task)?;
        self.until(stop, |heard| heard.answers.pop_front()).await
    }

    /// Its answer, if it has answered.
    pub fn answer(&self) -> Option<ProcessMessage> {
        self.received().answers.pop_front()
    }

    /// Whether it serves.
    pub fn is_serving(&self) -> bool {
        self.received().serves.is_some()
    }

    /// Kills it (SIGKILL); returns the time.
    pub fn kill(&mut self) -> u64 {
        let at_ns = now_ns();
        // If this fails, it has ended already.
        let _ = self.child.kill();
        at_ns
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
