//! Real processes, killed and paused under load: three memory nodes and three processors, each a process of its own, over shared
//! memory. What clients are told, in whichever process, must be linearizable.
//!
//! 1. The test starts itself again for each process, and is told on their standard output what is begun and what has ended, with
//!    the times of the machine's one monotonic clock.
//! 2. It disturbs them: a processor is paused for longer than its lease and goes on, or is killed; a memory node is paused, or
//!    killed. Persistent memory nodes are killed at any time, also all of them. Volatile ones one at a time, when the others
//!    hold everything; where the store is kept in tables by whoever coordinates, also all of them, and then the group is formatted
//!    anew. Tables are open in one process at a time, so that a processor is killed and not paused there.
//! 3. In the end all go on. The history of each key must be that of one register ([`check`]).
//!
//! `PROCESSES_SECONDS=300 cargo test --release -p heddle-consensus --test consensus processes:: -- --nocapture` goes on for longer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::production::run;
use base::rt::{self, Stop};
use base::{Bytes, ErrorKind};
use consensus::kv::{Options, Persistent, Sizes, Store};
use consensus::{
    Coordinator, Error, Group, GroupId, GroupMemory, MemoryNode, MemoryNodeOptions, Place, Standby, Timing,
};
use rma::shm::Shm;
use rma::{HostOptions, NodeId, TOKEN_BYTES, Token};
use storage::tables::{FjallEngine, FjallOptions, TablesEngine as _};

const MEMORY_NODES: usize = 3;
const PROCESSORS: usize = 3;
const CLIENTS: u64 = 4;
const KEYS: u64 = 8;
const SIZES: Sizes = Sizes { log_bytes: 64 << 10, buckets: 8, blocks: 1024, block_bytes: 128 };
const TOKEN: Token = Token::new([9; TOKEN_BYTES]);
/// How long it goes on unless the environment says otherwise.
const SECONDS: u64 = 8;
/// Within this something is told again once nothing is disturbed.
const CALM_MAX: Duration = Duration::from_secs(60);

const ROLE: &str = "PROCESSES_ROLE";

/// What outlives memory nodes.
const VOLATILE: &str = "volatile";
const PERSISTENT: &str = "persistent";
const IN_TABLES: &str = "tables";

/// Wide enough for a machine with much else to do.
fn timing() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(20),
        lease: Duration::from_millis(200),
        election_timeout: Duration::from_millis(250),
        attempt_max: Duration::from_millis(300),
        answer_max: Duration::from_secs(2),
        grace: Duration::from_millis(20),
        reconnect: Duration::from_millis(100),
        copy_bytes_per_second: Timing::UNLIMITED,
    }
}

fn group(folder: &Path) -> Group {
    let place = |slot| Place {
        address: folder.join(format!("memory-{slot}.socket")).display().to_string(),
        name: "kv".to_owned(),
        token: TOKEN,
    };
    Group {
        id: GroupId(1),
        layout: SIZES.group_layout(64 << 10).expect("good sizes"),
        nodes: (0..MEMORY_NODES).map(place).collect(),
        fabric: Arc::new(Shm::default()),
        timing: timing(),
    }
}

/// What one of the processes is; nothing in the test itself.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.splitn(4, ' ');
    let mut word = || words.next().expect("the test says what it is").to_owned();
    let (what, number, more, folder) = (word(), word(), word(), word());
    let number: u64 = number.parse().expect("a number");
    run(async move {
        rt::spawn(async {
            // It ends with whoever started it.
            rt::blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await.expect("a pipe can be read");
            std::process::exit(0);
        });
        let folder = PathBuf::from(folder);
        match what.as_str() {
            "memory" => remember(&folder, number as usize, more == PERSISTENT).await,
            _ => process(&folder, number, more == IN_TABLES).await,
        }
    });
}

async fn remember(folder: &Path, slot: usize, is_persistent: bool) {
    let group = group(folder);
    let address = &group.nodes[slot].address;
    // That of a life before.
    let _ = std::fs::remove_file(address);
    let options = HostOptions { node: NodeId(slot as u32), tokens: Arc::new(|_| Some(TOKEN)) };
    let host = group.fabric.host(address, options).await.expect("its socket can be made");
    let groups = vec![GroupMemory { id: group.id, layout: group.layout }];
    let options = MemoryNodeOptions { host, groups, stop: Stop::new() };
    let _node = match is_persistent {
        false => MemoryNode::start(options).await.expect("there is memory"),
        true => {
            let directory = Directory::open(folder.join(format!("memory-{slot}"))).await.expect("a folder can be made");
            MemoryNode::start_persistent(options, &directory).await.expect("no kill damages it")
        }
    };
    say("ready");
    std::future::pending::<()>().await;
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Whoever reads may be gone, and then this process is about to be.
    let _ = out.write_all(format!("\n{line}\n").as_bytes()).and_then(|()| out.flush());
}

async fn take_over_in_tables(coordinator: Coordinator, folder: &Path) -> Result<(Store, Arc<FjallEngine>), Error> {
    let failed = |error: storage::Error| Error::Disk { doing: "opening tables", reason: error.to_string() };
    // One that coordinated before may have them open for a while.
    let engine = FjallEngine::open(&folder.join("tables"), FjallOptions::default()).await.map_err(failed)?;
    let tables = engine.tables("store").await.map_err(failed)?;
    let persistent = Persistent { tables, is_synchronous: true };
    Ok((Store::take_over_persistent(coordinator, SIZES, Options { cache_bytes: 2000 }, persistent).await?, engine))
}

async fn process(folder: &Path, number: u64, is_in_tables: bool) {
    let mut standby = Standby::new(group(folder), number).expect("a good group");
    let values = Arc::new(Mutex::new(number << 32));
    loop {
        let outcome = match standby.take_over().await {
            Ok(coordinator) if is_in_tables => {
                take_over_in_tables(coordinator, folder).await.map(|(store, engine)| (store, Some(engine)))
            }
            Ok(coordinator) => {
                Store::take_over(coordinator, SIZES, Options { cache_bytes: 2000 }).await.map(|store| (store, None))
            }
            Err(error) => Err(error),
        };
        let error = match outcome {
            Ok((store, _engine)) => serve(store, &values).await,
            Err(error) => error,
        };
        if is_in_tables && matches!(error, Error::MemoryLost { .. } | Error::Disk { .. }) {
            // Until the group is formatted anew, or another has closed the tables.
            rt::sleep(Duration::from_millis(50)).await;
        } else if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) {
            say(&format!("fail {error}"));
        }
    }
}

async fn serve(store: Store, values: &Arc<Mutex<u64>>) -> Error {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (store, values) = (store.clone(), Arc::clone(values));
        clients.push(rt::spawn(async move { while ask(&store, &values).await.is_ok() {} }).abort_on_drop());
    }
    let watched = store.clone();
    let telling = rt::spawn(async move {
        loop {
            let status = watched.coordinator().status();
            say(&format!("live {}", status.live));
            rt::sleep(Duration::from_millis(100)).await;
        }
    });
    let _telling = telling.abort_on_drop();
    store.ended().await
}

/// One operation, told before and after.
async fn ask(store: &Store, values: &Mutex<u64>) -> Result<(), Error> {
    let key = rt::random_below(KEYS);
    let name = Bytes::from(format!("key-{key}"));
    if rt::random_below(2) == 0 {
        let from = rt::now().nanos();
        let found = store.get(&name).await?;
        let until = rt::now().nanos();
        let (value, version) = match &found {
            Some(found) => (u64::from_le_bytes(found.value[..8].try_into().expect("torn: no word")), found.version),
            None => (0, 0),
        };
        say(&format!("got {key} {value} {version} {from} {until}"));
    } else {
        let value = {
            let mut next = values.lock().unwrap_or_else(PoisonError::into_inner);
            *next += 1;
            *next
        };
        let from = rt::now().nanos();
        say(&format!("puts {key} {value} 0 {from} 0"));
        let bytes = Bytes::from(value.to_le_bytes().repeat(1 + (value % 30) as usize));
        let version = store.put(name, bytes).await?;
        say(&format!("put {key} {value} {version} {from} {}", rt::now().nanos()));
    }
    rt::sleep(Duration::from_micros(rt::random_below(3000))).await;
    Ok(())
}

/// Something that was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    is_put: bool,
    key: u64,
    value: u64,
    version: u64,
    from: u64,
    until: u64,
}

/// What all processes have told.
#[derive(Default)]
struct History {
    told: Vec<Told>,
    /// When each put was begun.
    begun: BTreeMap<u64, u64>,
    live: usize,
    failed: Option<String>,
}

impl History {
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["live", live] => self.live = live.parse().unwrap_or_default(),
            ["fail", ..] => self.failed = Some(line.to_owned()),
            [what @ ("got" | "put" | "puts"), ..] => {
                let numbers: Vec<u64> = words[1..].iter().filter_map(|word| word.parse().ok()).collect();
                // A line that a kill has cut short tells nothing.
                let [key, value, version, from, until] = numbers[..] else { return };
                match what {
                    "puts" => drop(self.begun.insert(value, from)),
                    _ => self.told.push(Told { is_put: what == "put", key, value, version, from, until }),
                }
            }
            _ => {}
        }
    }
}

/// Whether the operations of each key have an order of their versions, which is one of time too: nobody is told of an older version
/// than somebody was told before the question, a put gets a newer one, and nobody is told of a put before it was begun.
fn check(told: &[Told], begun: &BTreeMap<u64, u64>) -> Result<(), String> {
    let mut values: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for one in told.iter().filter(|one| one.version > 0) {
        let known = *values.entry(one.version).or_insert((one.key, one.value));
        if known != (one.key, one.value) {
            return Err(format!("version {} is {known:?} and {one:?}", one.version));
        }
        match begun.get(&one.value) {
            Some(begun) if *begun <= one.until => {}
            other => return Err(format!("{one:?} tells of a put that was begun at {other:?}")),
        }
    }
    let puts: Vec<u64> = told.iter().filter(|one| one.is_put).map(|one| one.version).collect();
    if puts.iter().collect::<BTreeSet<_>>().len() != puts.len() {
        return Err("two puts have one version".to_owned());
    }
    for key in told.iter().map(|one| one.key).collect::<BTreeSet<_>>() {
        let mut begins: Vec<&Told> = told.iter().filter(|one| one.key == key).collect();
        let mut ends = begins.clone();
        begins.sort_by_key(|one| one.from);
        ends.sort_by_key(|one| one.until);
        let (mut ended, mut floor) = (ends.into_iter().peekable(), None::<&Told>);
        for one in begins {
            while let Some(before) = ended.next_if(|before| before.until < one.from) {
                if floor.is_none_or(|floor| floor.version <= before.version) {
                    floor = Some(before);
                }
            }
            if let Some(floor) = floor
                && (one.version < floor.version || one.is_put && one.version == floor.version)
            {
                return Err(format!("{one:?} comes after {floor:?}"));
            }
        }
    }
    Ok(())
}

/// A process and what it is.
struct Process {
    role: String,
    child: Child,
    _stdin: ChildStdin,
}

impl Process {
    fn start(role: String, history: &Arc<Mutex<History>>) -> Process {
        let program = std::env::current_exe().expect("this is a program");
        let mut command = Command::new(program);
        command.args(["--exact", "processes::child", "--nocapture"]).env(ROLE, &role);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program can be started");
        let (stdin, stdout) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let history = Arc::clone(history);
        rt::spawn(rt::blocking(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                history.lock().unwrap_or_else(PoisonError::into_inner).hear(&line);
            }
        }));
        Process { role, child, _stdin: stdin }
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{} is there", self.role);
    }

    fn kill(&mut self) {
        // One that was paused in the midst of a verb may have been killed by a memory node's fence.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn restart(&mut self, history: &Arc<Mutex<History>>, role: String) {
        self.kill();
        *self = Process::start(role, history);
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is a child").is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn look<T>(history: &Mutex<History>, look: impl FnOnce(&mut History) -> T) -> T {
    look(&mut history.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Waits until something is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = rt::now();
    while !is_so() {
        assert!(start.elapsed() < CALM_MAX, "{what}: not within {CALM_MAX:?}");
        rt::sleep(Duration::from_millis(20)).await;
    }
}

async fn format(group: &Group) {
    let start = rt::now();
    while let Err(error) = consensus::format(group).await {
        assert!(start.elapsed() < CALM_MAX, "the group is not formatted: {error}");
        rt::sleep(Duration::from_millis(50)).await;
    }
}

async fn disturb(kind: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let seconds = std::env::var("PROCESSES_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(SECONDS);
    let history = Arc::new(Mutex::new(History::default()));
    let memory_role = |slot: usize| format!("memory {slot} {kind} {}", folder.path().display());
    let mut lives = 0;
    // Values of each life differ from all others.
    let mut processor_role = || {
        lives += 1;
        format!("processor {lives} {kind} {}", folder.path().display())
    };
    let mut memory: Vec<Process> = (0..MEMORY_NODES).map(|slot| Process::start(memory_role(slot), &history)).collect();
    let group = group(folder.path());
    format(&group).await;
    let mut processors: Vec<Process> = (0..PROCESSORS).map(|_| Process::start(processor_role(), &history)).collect();
    let begun = rt::now();
    let mut counts = BTreeMap::<&str, u32>::new();
    while begun.elapsed() < Duration::from_secs(seconds) {
        rt::sleep(Duration::from_millis(200 + rt::random_below(600))).await;
        let which = rt::random_below(PROCESSORS as u64) as usize;
        let what = match rt::random_below(6) {
            0 | 1 if kind != IN_TABLES => {
                // Longer than its lease: whoever goes on must know that it coordinates no more.
                processors[which].signal("-STOP");
                rt::sleep(Duration::from_millis(100 + rt::random_below(900))).await;
                processors[which].signal("-CONT");
                "processor paused"
            }
            0..=2 => {
                processors[which].restart(&history, processor_role());
                "processor killed"
            }
            3 => {
                let which = rt::random_below(MEMORY_NODES as u64) as usize;
                memory[which].signal("-STOP");
                rt::sleep(Duration::from_millis(rt::random_below(800))).await;
                memory[which].signal("-CONT");
                "memory node paused"
            }
            4 if kind != VOLATILE => {
                // At once: the first would else be given everything again by the others.
                memory.iter_mut().for_each(Process::kill);
                for (slot, process) in memory.iter_mut().enumerate() {
                    process.restart(&history, memory_role(slot));
                }
                if kind == IN_TABLES {
                    format(&group).await;
                }
                "all memory nodes killed"
            }
            _ => {
                look(&history, |history| history.live = 0);
                rt::sleep(Duration::from_millis(300)).await;
                if kind != PERSISTENT && look(&history, |history| history.live) < MEMORY_NODES {
                    continue;
                }
                let which = rt::random_below(MEMORY_NODES as u64) as usize;
                memory[which].restart(&history, memory_role(which));
                look(&history, |history| history.live = 0);
                "memory node killed"
            }
        };
        *counts.entry(what).or_default() += 1;
        for process in &mut processors {
            if process.has_ended() {
                *counts.entry("processor killed by a fence").or_default() += 1;
                process.restart(&history, processor_role());
            }
        }
        assert!(!memory.iter_mut().any(Process::has_ended), "no memory node ends by itself");
    }
    let told = look(&history, |history| history.told.len());
    until("something is told again", || look(&history, |history| history.told.len()) > told + 50).await;
    until("every memory node holds everything", || look(&history, |history| history.live) == MEMORY_NODES).await;
    processors.iter_mut().chain(&mut memory).for_each(Process::kill);
    rt::sleep(Duration::from_millis(200)).await;
    let (told, begun, failed) =
        look(&history, |history| (history.told.clone(), history.begun.clone(), history.failed.clone()));
    println!("{kind}: {} operations were told of in {seconds} s, {counts:?}", told.len());
    assert_eq!(failed, None);
    if let Err(reason) = check(&told, &begun) {
        panic!("linearizable: {reason}");
    }
}

#[test]
fn what_is_told_is_linearizable_whoever_is_killed_or_paused() {
    if std::env::var(ROLE).is_err() {
        run(disturb(VOLATILE));
    }
}

#[test]
fn what_is_told_is_linearizable_though_all_persistent_memory_nodes_are_killed() {
    if std::env::var(ROLE).is_err() {
        run(disturb(PERSISTENT));
    }
}

#[test]
fn what_is_told_is_linearizable_though_all_memory_is_lost_of_a_store_in_tables() {
    if std::env::var(ROLE).is_err() {
        run(disturb(IN_TABLES));
    }
}

#[test]
fn histories_that_no_register_has_are_found_out() {
    let told = |is_put, value, version, from, until| Told { is_put, key: 1, value, version, from, until };
    let begun = BTreeMap::from([(11, 0), (12, 20), (13, 40)]);
    let good = vec![
        told(true, 11, 1, 0, 10),
        told(false, 11, 1, 5, 6),
        told(true, 12, 2, 20, 30),
        told(false, 11, 1, 21, 50),
        told(false, 12, 2, 22, 25),
        told(false, 13, 3, 41, 45),
        told(false, 0, 0, 0, 3),
    ];
    assert_eq!(check(&good, &begun), Ok(()));
    for bad in [
        // Stale: what a coordinator that was paused would tell.
        told(false, 11, 1, 31, 32),
        told(false, 0, 0, 11, 12),
        // From before the put was begun.
        told(false, 13, 3, 35, 38),
        // Another value of the same version, and the same version twice.
        told(false, 12, 1, 31, 32),
        told(true, 12, 2, 60, 70),
        // A put that takes effect in the past.
        told(true, 13, 1, 60, 70),
        // Of a put that nobody asked for.
        told(false, 14, 4, 60, 70),
    ] {
        let mut history = good.clone();
        history.push(bad);
        assert!(check(&history, &begun).is_err(), "{bad:?} is not found out");
    }
}
