//! Real processes, killed and paused under load: three memory nodes and three CPU nodes, each in its own process, over
//! shared memory. The answers to clients, in all processes together, must be linearizable.
//!
//! 1. The test starts itself again for each process. Each process reports the start and the end of each operation on
//!    its standard output, with times of the machine's monotonic clock, which all processes share.
//! 2. The test disturbs the processes: a CPU node is paused for longer than its lease and continues, or is killed; a
//!    memory node is paused or killed. Persistent memory nodes are killed at any time, also all of them. A volatile
//!    memory node is killed only while the other nodes have complete copies. If the coordinator keeps the store in
//!    tables, all volatile nodes may also be killed at once, and then the group is reformatted. Only one process at a
//!    time can have the tables open, so with tables a CPU node is always killed, not paused.
//! 3. In the end all processes continue. The history of each key must be linearizable, as that of a single register
//!    ([`check`]).
//!
//! `PROCESSES_SECONDS=300 cargo test --profile checks -p heddle-kv --test kv processes:: -- --nocapture` runs
//! longer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::production::run;
use base::rt::{self, CancellationToken};
use base::{Bytes, ErrorKind};
use kv::{Error, KvConfig, KvStore, PersistentTables, StoreGeometry};
use rma::shm::ShmProvider;
use rma::{HostConfig, NodeId, TOKEN_BYTES, Token};
use sift::{
    Coordinator, GroupId, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup, SiftTimeouts,
    Standby,
};
use storage::tables::{FjallConfig, FjallEngine, TablesEngine as _};

const MEMORY_NODES: usize = 3;
const CPU_NODES: usize = 3;
const CLIENTS: u64 = 4;
const KEYS: u64 = 8;
const SIZES: StoreGeometry = StoreGeometry { log_bytes: 64 << 10, buckets: 8, blocks: 1024, block_bytes: 128 };
const TOKEN: Token = Token::new([9; TOKEN_BYTES]);
/// How long the test runs unless the environment says otherwise.
const SECONDS: u64 = 8;
/// Within this time operations succeed again once the disturbances have ended.
const CALM_MAX: Duration = Duration::from_secs(60);

const ROLE: &str = "PROCESSES_ROLE";

/// The modes of the test: where data survives the end of all memory nodes, if anywhere.
const VOLATILE: &str = "volatile";
const PERSISTENT: &str = "persistent";
const IN_TABLES: &str = "tables";

/// Long enough time-outs for a busy machine.
fn timing() -> SiftTimeouts {
    SiftTimeouts {
        heartbeat: Duration::from_millis(20),
        lease: Duration::from_millis(200),
        election_timeout: Duration::from_millis(250),
        attempt_max: Duration::from_millis(300),
        answer_max: Duration::from_secs(2),
        grace: Duration::from_millis(20),
        reconnect: Duration::from_millis(100),
        copy_bytes_per_second: SiftTimeouts::UNLIMITED,
    }
}

fn group(folder: &Path) -> SiftGroup {
    let place = |slot| MemoryNodeAddress {
        address: folder.join(format!("memory-{slot}.socket")).display().to_string(),
        name: "kv".to_owned(),
        token: TOKEN,
    };
    SiftGroup {
        id: GroupId(1),
        layout: SIZES.group_layout(64 << 10).expect("good sizes"),
        nodes: (0..MEMORY_NODES).map(place).collect(),
        provider: Arc::new(ShmProvider::default()),
        timing: timing(),
    }
}

/// The main function of a child process; does nothing in the test itself.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.splitn(4, ' ');
    let mut word = || words.next().expect("the test says what it is").to_owned();
    let (what, number, more, folder) = (word(), word(), word(), word());
    let number: u64 = number.parse().expect("a number");
    run(async move {
        rt::spawn(async {
            // This process ends with the process that started it.
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
    // The socket of an earlier incarnation.
    let _ = std::fs::remove_file(address);
    let options = HostConfig { node: NodeId(slot as u32), tokens: Arc::new(|_| Some(TOKEN)) };
    let host = group.provider.host(address, options).await.expect("its socket can be made");
    let groups = vec![GroupMemory { id: group.id, layout: group.layout }];
    let options = LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() };
    let _node = match is_persistent {
        false => LogMemoryNode::start(options).await.expect("there is memory"),
        true => {
            let directory = Directory::open(folder.join(format!("memory-{slot}"))).await.expect("a folder can be made");
            LogMemoryNode::start_persistent(options, &directory).await.expect("no kill damages it")
        }
    };
    say("ready");
    std::future::pending::<()>().await;
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The reader may be gone, and then this process is about to end too.
    let _ = out.write_all(format!("\n{line}\n").as_bytes()).and_then(|()| out.flush());
}

async fn take_over_in_tables(coordinator: Coordinator, folder: &Path) -> Result<(KvStore, Arc<FjallEngine>), Error> {
    let failed = |error: storage::Error| Error::Disk { doing: "opening tables", reason: error.to_string() };
    // An earlier coordinator may have them open for a while.
    let engine = FjallEngine::open(&folder.join("tables"), FjallConfig::default()).await.map_err(failed)?;
    let tables = engine.tables("store").await.map_err(failed)?;
    let persistent = PersistentTables { tables, is_synchronous: true };
    Ok((KvStore::take_over_persistent(coordinator, SIZES, KvConfig { cache_bytes: 2000 }, persistent).await?, engine))
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
                KvStore::take_over(coordinator, SIZES, KvConfig { cache_bytes: 2000 }).await.map(|store| (store, None))
            }
            Err(error) => Err(error.into()),
        };
        let error = match outcome {
            Ok((store, _engine)) => serve(store, &values).await,
            Err(error) => error,
        };
        if is_in_tables && matches!(error, Error::Sift(sift::Error::MemoryLost { .. }) | Error::Disk { .. }) {
            // Until the group is reformatted, or another process has closed the tables.
            rt::sleep(Duration::from_millis(50)).await;
        } else if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) {
            say(&format!("fail {error}"));
        }
    }
}

async fn serve(store: KvStore, values: &Arc<Mutex<u64>>) -> Error {
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

/// Runs one operation, and reports it before and after.
async fn ask(store: &KvStore, values: &Mutex<u64>) -> Result<(), Error> {
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

/// A reported event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    is_put: bool,
    key: u64,
    value: u64,
    version: u64,
    from: u64,
    until: u64,
}

/// The reports of all processes.
#[derive(Default)]
struct History {
    told: Vec<Told>,
    /// When each put was started.
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
                // A line that a kill has cut short reports nothing.
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

/// Checks that the operations of each key have an order of versions that agrees with time: no operation returns an
/// older version than one that was returned before it started, a put gets a newer version, and no put is seen before it
/// was started.
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

/// A process and its role.
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
        // A process that was paused in the middle of a verb may have been killed by a memory node's fence.
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

/// Waits until a condition holds.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = rt::now();
    while !is_so() {
        assert!(start.elapsed() < CALM_MAX, "{what}: not within {CALM_MAX:?}");
        rt::sleep(Duration::from_millis(20)).await;
    }
}

async fn format(group: &SiftGroup) {
    let start = rt::now();
    let mut is_repeated = false;
    while let Err(error) = sift::format(group).await {
        // An attempt that failed may have formatted a majority, which elected a coordinator since. It re-admits the others.
        if is_repeated && matches!(error, sift::Error::AlreadyFormatted(_)) {
            break;
        }
        assert!(start.elapsed() < CALM_MAX, "the group is not formatted: {error}");
        is_repeated = true;
        rt::sleep(Duration::from_millis(50)).await;
    }
}

async fn disturb(kind: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let seconds = std::env::var("PROCESSES_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(SECONDS);
    let history = Arc::new(Mutex::new(History::default()));
    let memory_role = |slot: usize| format!("memory {slot} {kind} {}", folder.path().display());
    let mut lives = 0;
    // The values of each incarnation differ from all others.
    let mut processor_role = || {
        lives += 1;
        format!("processor {lives} {kind} {}", folder.path().display())
    };
    let mut memory: Vec<Process> = (0..MEMORY_NODES).map(|slot| Process::start(memory_role(slot), &history)).collect();
    let group = group(folder.path());
    format(&group).await;
    let mut processors: Vec<Process> = (0..CPU_NODES).map(|_| Process::start(processor_role(), &history)).collect();
    let begun = rt::now();
    let mut counts = BTreeMap::<&str, u32>::new();
    while begun.elapsed() < Duration::from_secs(seconds) {
        rt::sleep(Duration::from_millis(200 + rt::random_below(600))).await;
        let which = rt::random_below(CPU_NODES as u64) as usize;
        let what = match rt::random_below(6) {
            0 | 1 if kind != IN_TABLES => {
                // Longer than its lease: when it continues, it must know that it is not the coordinator any more.
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
                // All at once: otherwise the others would copy everything to the first one again.
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
fn answers_are_linearizable_while_processes_are_killed_and_paused() {
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
        // Stale: the answer of a coordinator that was paused.
        told(false, 11, 1, 31, 32),
        told(false, 0, 0, 11, 12),
        // From before the put was started.
        told(false, 13, 3, 35, 38),
        // Another value of the same version, and the same version twice.
        told(false, 12, 1, 31, 32),
        told(true, 12, 2, 60, 70),
        // A put that takes effect in the past.
        told(true, 13, 1, 60, 70),
        // Of a put that no client requested.
        told(false, 14, 4, 60, 70),
    ] {
        let mut history = good.clone();
        history.push(bad);
        assert!(check(&history, &begun).is_err(), "{bad:?} is not found out");
    }
}
