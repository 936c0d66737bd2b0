//! Stores whose parts are processes of their own, so that each can be killed, or limited, as a machine would be: memory nodes,
//! coordinators, nodes of Raft.
//!
//! 1. Each is this program again. Its first line on standard input is JSON that says what it is ([`Told`]); it ends with its parent.
//! 2. Whoever coordinates or leads has the clients too, as tasks. What it is to do comes on standard input, a line each ([`Task`]);
//!    a processor that stands by does it once it serves.
//! 3. What happens is said on standard output, a line each ([`Said`]), with times of the machine's one monotonic clock. While
//!    clients are at work a thread says every [`COUNT_EVERY`] what they have done, so that what is known of a process ends with it.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::sync::Notify;
use base::rt::{self, Stop};
use consensus::kv::Store as SiftStore;
use consensus::{Group, Standby, Timing};
use rma::Token;
use rustix::process::{Pid, setpriority_process};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::load::{self, Load, Mix, key, scattered};
use super::systems::{self, Kind, Shape, System};
use crate::error::Error;
use crate::progress::Measuring;
use crate::random::Random;
use crate::zipf::Zipf;

/// How often a process says what its clients have done.
const COUNT_EVERY: Duration = Duration::from_millis(5);
/// Operations after which a client lets others run: few, so that heartbeats are not late.
const TURN: u64 = 16;
/// How often the parent looks at what its children said.
const LOOK: Duration = Duration::from_millis(2);
/// How long a step of a measurement may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// The share of a log that is in use when it counts as full, in percent, and how long that may take.
const FULL_PERCENT: u64 = 95;
const FULL_MAX: Duration = Duration::from_secs(10);
/// Who puts to fill a log, beside the clients.
const FILLERS: u64 = 64;
/// How often somebody looks whether logs are full.
const FULL_LOOK: Duration = Duration::from_millis(1);
/// Memory nodes let others go first: a tenth of a processor is theirs where all are busy.
const MEMORY_NICENESS: i32 = 10;
const TASKS_MAX: usize = 64;
const SCHEME: &str = "bench-raft";
/// More than all puts of a hundred operations: clients do nothing.
const IDLE: u64 = u64::MAX;

/// What a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// A memory node, with its number.
    Memory(u32),
    /// A processor that may coordinate, with its number.
    Processor(u64),
    /// A node of Raft, with its number.
    Raft(u64),
}

/// Times of a group, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Times {
    /// Between heartbeats, and between looks.
    pub heartbeat_ms: u64,
    /// How long a coordinator may serve after a heartbeat.
    pub lease_ms: u64,
    /// How long a processor waits for a heartbeat; and up to half as long again, by chance.
    pub election_ms: u64,
    /// Bytes a second that a memory node that comes back is given.
    pub copy_bytes_per_second: u64,
}

impl Times {
    /// Of machines with much else to do, and a processor whose place nobody is to take: it need not wait for another's heartbeat,
    /// only, before it serves, for the lease of one that may have been before.
    pub fn patient() -> Times {
        Times { heartbeat_ms: 5, lease_ms: 5000, election_ms: 100, copy_bytes_per_second: Timing::UNLIMITED }
    }

    fn timing(self) -> Timing {
        let ms = Duration::from_millis;
        Timing {
            heartbeat: ms(self.heartbeat_ms),
            lease: ms(self.lease_ms),
            election_timeout: ms(self.election_ms),
            copy_bytes_per_second: self.copy_bytes_per_second,
            answer_max: Duration::from_secs(5),
            ..Timing::default()
        }
    }
}

/// What a process is told.
#[derive(Serialize, Deserialize)]
struct Told {
    role: Role,
    shape: Shape,
    times: Times,
    addresses: Vec<String>,
    token: [u8; rma::TOKEN_BYTES],
    clients: u64,
    theta: f64,
    seed: u64,
}

/// What a process is to do.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Task {
    /// To put all keys once; answered by [`Said::Done`].
    Fill,
    /// To load it with so many puts of a hundred operations for so many seconds; answered by [`Said::Rate`].
    Run { puts_of_100: u64, seconds: f64 },
    /// To load it so from now on, and say what is done.
    Load { puts_of_100: u64 },
    /// To have no room made in the group's log, and to put until that and the store's log are full; answered by [`Said::Full`].
    FillLog,
}

/// What a process says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Said {
    /// It is there.
    Ready,
    /// It noticed that nobody coordinates.
    Detected { at_ns: u64 },
    /// It was elected.
    Elected { at_ns: u64 },
    /// The memory is its own.
    TakenOver { at_ns: u64 },
    /// It serves, or leads; it found so many entries in the store's log.
    Serves { at_ns: u64, recovered: u64 },
    /// It does not serve any more.
    Ended { reason: String },
    /// What its clients have done since they began, and how many memory nodes are live.
    Count { at_ns: u64, reads: u64, writes: u64, live: u64 },
    /// It did what it was to do.
    Done,
    /// Operations a second, and the process's time for each in microseconds.
    Rate { ops_per_second: f64, cpu_us: f64 },
    /// So many bytes of its log are in use, and of the group's.
    Full { used_bytes: u64, group_used_bytes: u64 },
    /// It cannot go on.
    Failed { reason: String },
}

/// The machine's monotonic clock, which all processes share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or_default()
}

/// What clients of a process had done at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count {
    pub at_ns: u64,
    pub reads: u64,
    pub writes: u64,
    pub live: u64,
}

/// How a child became the one that serves; times of the machine's clock.
#[derive(Clone, Copy, Default)]
pub struct Takeover {
    /// When it noticed that nobody coordinates.
    pub detected_ns: Option<u64>,
    pub elected_ns: Option<u64>,
    pub taken_over_ns: Option<u64>,
    pub serves_ns: u64,
    /// Entries that it found in the store's log.
    pub recovered: u64,
}

/// What a child has said.
#[derive(Default)]
pub struct Heard {
    is_ready: bool,
    /// The steps of the takeover that is under way, or was last.
    takeover: Takeover,
    /// The takeover after which it serves, while it does.
    pub serves: Option<Takeover>,
    /// How often it ended while it lived.
    pub ended: u64,
    pub counts: Vec<Count>,
    answers: VecDeque<Said>,
    failed: Option<String>,
    is_gone: bool,
}

impl Heard {
    /// Whether it can go on.
    ///
    /// # Errors
    /// It says that it cannot, or has ended.
    pub fn check(&self) -> Result<(), Error> {
        match &self.failed {
            Some(reason) => Err(failed(reason)),
            None if self.is_gone => Err(failed("it has ended")),
            None => Ok(()),
        }
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Ready => self.is_ready = true,
            Said::Detected { at_ns } => self.takeover.detected_ns = Some(at_ns),
            Said::Elected { at_ns } => self.takeover.elected_ns = Some(at_ns),
            Said::TakenOver { at_ns } => self.takeover.taken_over_ns = Some(at_ns),
            Said::Serves { at_ns, recovered } => {
                self.serves = Some(Takeover { serves_ns: at_ns, recovered, ..self.takeover });
            }
            Said::Ended { .. } => (self.serves, self.ended) = (None, self.ended + 1),
            Said::Count { at_ns, reads, writes, live } => self.counts.push(Count { at_ns, reads, writes, live }),
            Said::Failed { reason } => self.failed = Some(reason),
            answer @ (Said::Done | Said::Rate { .. } | Said::Full { .. }) => self.answers.push_back(answer),
        }
    }
}

/// How processes are started, and what all of one store's have in common.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program, and what makes it one of these processes.
    pub path: PathBuf,
    pub arguments: Vec<&'static str>,
    pub clients: u64,
    pub theta: f64,
    pub seed: u64,
}

/// A store's processes: where they are, and their secret.
pub struct Family {
    program: Program,
    shape: Shape,
    times: Times,
    token: Token,
    addresses: Vec<String>,
    _folder: tempfile::TempDir,
}

fn failed(error: impl ToString) -> Error {
    Error::Part { what: "a store's process", reason: error.to_string() }
}

impl Family {
    /// None runs yet.
    ///
    /// # Errors
    /// No folder for their sockets.
    pub fn new(program: &Program, shape: Shape, times: Times) -> Result<Family, Error> {
        let folder = tempfile::Builder::new().prefix("heddle-bench-").tempdir().map_err(failed)?;
        let address = |node| folder.path().join(format!("node-{node}")).display().to_string();
        let addresses = (0..shape.nodes()).map(address).collect();
        let (program, token) = (program.clone(), Token::random());
        Ok(Family { program, shape, times, token, addresses, _folder: folder })
    }

    /// Starts one, and waits until it is there.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(&self, role: Role, stop: &Stop) -> Result<Child, Error> {
        let told = Told {
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
        let heard: Arc<Mutex<Heard>> = Arc::default();
        let mut child = Child { child, stdin, heard: Arc::clone(&heard) };
        child.write(&told)?;
        let hearing = move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // A line that a kill has cut short says nothing.
                if let Ok(said) = serde_json::from_str(&line) {
                    heard.lock().unwrap_or_else(PoisonError::into_inner).hear(said);
                }
            }
            heard.lock().unwrap_or_else(PoisonError::into_inner).is_gone = true;
        };
        std::thread::Builder::new().name("hearing".to_owned()).spawn(hearing).map_err(failed)?;
        child.until(stop, |heard| heard.is_ready.then_some(())).await?;
        Ok(child)
    }

    /// Starts memory nodes, with nothing in them.
    ///
    /// # Errors
    /// As [`Family::start`].
    pub async fn start_memory(&self, stop: &Stop) -> Result<Vec<Child>, Error> {
        let mut memory = Vec::new();
        for node in 0..self.shape.nodes() {
            memory.push(self.start(Role::Memory(node), stop).await?);
        }
        let group = self.shape.group(&self.addresses, &self.token, self.times.timing())?;
        consensus::format(&group).await.map_err(failed)?;
        Ok(memory)
    }
}

/// A process. Dropping it kills it.
pub struct Child {
    child: std::process::Child,
    stdin: ChildStdin,
    heard: Arc<Mutex<Heard>>,
}

impl Child {
    fn write(&mut self, what: &impl Serialize) -> Result<(), Error> {
        let line = serde_json::to_string(what).expect("it is plain data") + "\n";
        self.stdin.write_all(line.as_bytes()).and_then(|()| self.stdin.flush()).map_err(failed)
    }

    /// Gives it something to do.
    ///
    /// # Errors
    /// It has ended.
    pub fn tell(&mut self, task: Task) -> Result<(), Error> {
        self.write(&task)
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has said so far.
    pub fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has said something.
    ///
    /// # Errors
    /// It says that it cannot, or says nothing for long; or somebody stopped the run.
    pub async fn until<T>(&self, stop: &Stop, look: impl Fn(&mut Heard) -> Option<T>) -> Result<T, Error> {
        let start = Instant::now();
        loop {
            {
                let mut heard = self.heard();
                if let Some(found) = look(&mut heard) {
                    return Ok(found);
                }
                heard.check()?;
            }
            if stop.is_stopped() {
                return Err(Error::Interrupted);
            }
            if start.elapsed() > PATIENCE {
                return Err(failed("it says nothing any more"));
            }
            rt::sleep(LOOK).await;
        }
    }

    /// Has it do something, and waits for its answer.
    ///
    /// # Errors
    /// As [`Child::until`].
    pub async fn ask(&mut self, task: Task, stop: &Stop) -> Result<Said, Error> {
        self.tell(task)?;
        self.until(stop, |heard| heard.answers.pop_front()).await
    }

    /// What it has answered, if it has.
    pub fn answer(&self) -> Option<Said> {
        self.heard().answers.pop_front()
    }

    /// Whether it serves.
    pub fn is_serving(&self) -> bool {
        self.heard().serves.is_some()
    }

    /// Kills it (SIGKILL); gives when.
    pub fn kill(&mut self) -> u64 {
        let at_ns = now_ns();
        // It has ended already where this fails.
        let _ = self.child.kill();
        at_ns
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(said: &Said) {
    let line = serde_json::to_string(said).expect("it is plain data") + "\n";
    let mut out = std::io::stdout().lock();
    // Whoever reads may be gone, and then this process is about to be.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// What clients share.
struct Shared {
    /// The store that serves, if one does; its number is another for each.
    system: Mutex<Option<System>>,
    reign: AtomicU64,
    puts_of_100: AtomicU64,
    /// Another store serves, or clients have something else to do.
    changed: Notify,
    is_counting: AtomicBool,
    reads: AtomicU64,
    writes: AtomicU64,
    load: Load,
}

impl Shared {
    fn system(&self) -> Option<System> {
        self.system.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, system: Option<System>) {
        *self.system.lock().unwrap_or_else(PoisonError::into_inner) = system;
        self.reign.fetch_add(1, Ordering::Release);
        self.changed.notify_waiters();
    }

    async fn serving(&self) -> System {
        loop {
            let changed = self.changed.notified();
            match self.system() {
                Some(system) => return system,
                None => changed.await,
            }
        }
    }

    /// Has clients put so many of a hundred times from now on.
    fn set_puts(&self, puts_of_100: u64) {
        self.puts_of_100.store(puts_of_100, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// A client: one operation after the other, at whichever store serves, while there is something to do.
    async fn operate(&self, number: u64) {
        let mut random = Random::new(self.load.seed ^ (number + 1) << 32);
        let value = Bytes::from(vec![b'w'; self.load.value_bytes]);
        loop {
            let reign = self.reign.load(Ordering::Acquire);
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
                if self.reign.load(Ordering::Acquire) != reign {
                    break;
                }
            }
        }
    }

    fn count(&self) {
        let live = match self.system() {
            Some(System::Sift(store, _)) => store.coordinator().status().live as u64,
            _ => 0,
        };
        let (reads, writes) = (self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed));
        say(&Said::Count { at_ns: now_ns(), reads, writes, live });
    }

    async fn obey(self: Arc<Self>, task: Task) -> Result<(), Error> {
        let (system, never) = (self.serving().await, Stop::new());
        match task {
            Task::Fill => {
                // Each at whichever store serves then: a coordinator may lose its lease meanwhile.
                let serving = Arc::clone(&self);
                load::fill(move || serving.system(), &self.load, &never).await?;
                say(&Said::Done);
            }
            Task::Run { puts_of_100, seconds } => {
                let mix = Mix { name: "", puts_of_100 };
                let outcome = load::run(&system, &self.load, mix, seconds, &never).await?;
                say(&Said::Rate { ops_per_second: outcome.rate, cpu_us: outcome.cpu_us });
            }
            Task::Load { puts_of_100 } => {
                self.is_counting.store(true, Ordering::Release);
                self.set_puts(puts_of_100);
            }
            Task::FillLog => {
                self.set_puts(100);
                let start = Instant::now();
                // One that ends meanwhile is followed by another, perhaps here.
                while start.elapsed() < FULL_MAX {
                    let System::Sift(store, _) = self.serving().await else { break };
                    if let Some(full) = self.fill_logs(&store, start).await {
                        say(&full);
                        return Ok(());
                    }
                }
                return Err(failed("logs that do not become full"));
            }
        }
        Ok(())
    }

    /// Puts any keys until both logs are full; nothing when the store ended first, or after long.
    async fn fill_logs(&self, store: &SiftStore, start: Instant) -> Option<Said> {
        let coordinator = store.coordinator();
        let layout = *coordinator.layout();
        coordinator.make_no_room();
        for filler in 0..FILLERS {
            let (store, keys, mut random) = (store.clone(), self.load.keys, Random::new(self.load.seed ^ filler << 40));
            let value = Bytes::from(vec![b'w'; self.load.value_bytes]);
            rt::spawn(async move {
                // The last one waits for room until the store ends.
                while store.put(key(random.below(keys)), value.clone()).await.is_ok() {
                    rt::yield_now().await;
                }
            });
        }
        while coordinator.is_serving() && start.elapsed() < FULL_MAX {
            let (used_bytes, group_used_bytes) = (store.status().log_used_bytes, coordinator.status().log_used_bytes);
            let is_full = |used: u64, all: u64| used >= all * FULL_PERCENT / 100;
            // The store's log is the group's direct area.
            if is_full(used_bytes, layout.direct_bytes) && is_full(group_used_bytes, layout.log_bytes) {
                return Some(Said::Full { used_bytes, group_used_bytes });
            }
            rt::sleep(FULL_LOOK).await;
        }
        None
    }
}

/// The child's side: is what it is told to be, until it is killed.
///
/// # Errors
/// What it needs cannot be had.
pub fn serve() -> Measuring<'static, ()> {
    Box::pin(serve_until_told())
}

async fn serve_until_told() -> Result<(), Error> {
    let outcome = be().await;
    if let Err(error) = &outcome {
        say(&Said::Failed { reason: error.to_string() });
    }
    outcome
}

async fn be() -> Result<(), Error> {
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
    let told: Told = serde_json::from_str(&told).map_err(failed)?;
    let (token, shape) = (Token::new(told.token), told.shape);
    let group = || shape.group(&told.addresses, &token, told.times.timing());

    if let Role::Memory(number) = told.role {
        // It stands for another machine: taking its memory from the system, all that it does, is not to slow the processor down.
        let_others_go_first().map_err(failed)?;
        // That of a life before.
        let _ = std::fs::remove_file(&told.addresses[number as usize]);
        let _node = shape.memory(&group()?, number, &Stop::new()).await?;
        say(&Said::Ready);
        std::future::pending::<()>().await;
    }

    let zipf = Zipf::new(shape.keys, told.theta);
    let Told { clients, seed, .. } = told;
    let load = Load { clients, value_bytes: shape.value_bytes, zipf, keys: shape.keys, pace: None, seed };
    let shared = Arc::new(Shared {
        system: Mutex::default(),
        reign: AtomicU64::new(0),
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
                Ok(task) => Arc::clone(&obeying).obey(task).await,
                Err(error) => Err(failed(error)),
            };
            if let Err(error) = outcome {
                say(&Said::Failed { reason: error.to_string() });
            }
        }
    });
    match told.role {
        Role::Memory(_) => unreachable!("it was one above"),
        Role::Processor(number) => coordinate(&shared, &shape, group()?, number).await,
        Role::Raft(id) => {
            assert!(shape.kind == Kind::Raft, "whoever starts a node of Raft has a store on it");
            systems::register_links(SCHEME, &token);
            let members = systems::raft_members(SCHEME, &told.addresses);
            let store = systems::raft_node(1, id, &members).await?;
            say(&Said::Ready);
            while !systems::leads(&store).await {
                rt::sleep(Duration::from_millis(20)).await;
            }
            shared.set(Some(System::Raft(store, Arc::default())));
            say(&Said::Serves { at_ns: now_ns(), recovered: 0 });
            std::future::pending().await
        }
    }
}

/// Gives all threads of this process a low priority; those that they start have it too.
fn let_others_go_first() -> std::io::Result<()> {
    for thread in std::fs::read_dir("/proc/self/task")?.flatten() {
        let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(thread) = number.and_then(Pid::from_raw) {
            setpriority_process(Some(thread), MEMORY_NICENESS)?;
        }
    }
    Ok(())
}

/// Stands by, serves, and stands by again.
async fn coordinate(shared: &Shared, shape: &Shape, group: Group, number: u64) -> Result<(), Error> {
    let mut standby = Standby::new(group, number).map_err(failed)?;
    say(&Said::Ready);
    loop {
        standby.watch().await;
        say(&Said::Detected { at_ns: now_ns() });
        let taken = async {
            let elected = standby.elect().await?;
            say(&Said::Elected { at_ns: now_ns() });
            let unopened = elected.recover_unopened().await?;
            say(&Said::TakenOver { at_ns: now_ns() });
            shape.serve(unopened).await
        };
        match taken.await {
            Ok(store) => {
                shared.set(Some(System::Sift(store.clone(), None)));
                say(&Said::Serves { at_ns: now_ns(), recovered: store.status().recovered as u64 });
                let reason = store.ended().await.to_string();
                shared.set(None);
                say(&Said::Ended { reason });
            }
            Err(error @ (consensus::Error::MemoryLost { .. } | consensus::Error::Corrupt(_))) => {
                return Err(failed(error));
            }
            Err(_) => standby.back_off().await,
        }
    }
}
