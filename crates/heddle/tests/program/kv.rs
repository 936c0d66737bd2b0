//! A key-value store from the command line and over gRPC: start, operations, and rejected requests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use base::Bytes;
use futures_util::FutureExt as _;
use gateway::client::{GrpcCode, GrpcConnection};
use node::kv::{KvClient, KvEndpoint};
use proto::heddle::kv::compare_and_set_request::Expected;

use crate::support::{heddle, run, text};

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// A store in a process of its own, killed when dropped.
struct Store {
    child: Child,
    dir: PathBuf,
    endpoint: KvEndpoint,
}

impl Store {
    fn start(dir: &Path) -> Store {
        Store::start_with(dir, &[])
    }

    fn start_with(dir: &Path, more: &[&str]) -> Store {
        let mut command = heddle(&["kv", "up", "--bound", "--listen", "127.0.0.1:0", "--keys", "2000", "--dir"]);
        // The folder of faults that tests request from its processes.
        command.env("HEDDLE_FAULTS", dir.with_extension("faults"));
        let child = command.arg(dir).args(more).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut child = child.expect("the program can be started");
        let start = Instant::now();
        loop {
            match KvEndpoint::load(dir) {
                Ok(Some(endpoint)) if endpoint.process == child.id() => {
                    return Store { child, dir: dir.to_path_buf(), endpoint };
                }
                _ => {}
            }
            let ended = child.try_wait().expect("it is a child");
            if ended.is_some() || start.elapsed() > READY_TIMEOUT {
                let _ = child.kill();
                panic!("the store did not start ({ended:?})");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    async fn client(&self) -> KvClient {
        let target = self.endpoint.target(&self.dir).expect("its authority is there");
        KvClient::new(GrpcConnection::connect(&target).await.expect("it listens"))
    }

    /// Ends the store as Ctrl-C does.
    fn down(mut self) {
        let process = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("it runs");
        self.child.wait().expect("it is a child");
    }

    fn ask(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let dir = self.dir.display().to_string();
        let output = run(&[&["kv"], arguments, &["--dir", &dir]].concat());
        (output.status.code(), text(&output))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_store_is_used_from_the_command_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::start(&folder.path().join("kv"));
    let done = |arguments: &[&str]| {
        let (code, said) = store.ask(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
        said
    };
    let first: u64 = done(&["put", "name", "Ada"]).trim().parse().expect("a version");
    assert_eq!(done(&["get", "name"]), "Ada\n");
    let json: serde_json::Value = serde_json::from_str(&done(&["get", "name", "--json"])).expect("JSON");
    assert_eq!((json["value"].as_str(), json["version"].as_u64()), (Some("Ada"), Some(first)));

    let version = first.to_string();
    let second: u64 = done(&["cas", "name", "Grace", "--if-version", &version]).trim().parse().expect("a version");
    assert!(second > first);
    let (code, said) = store.ask(&["cas", "name", "Mary", "--if-version", &version]);
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("Grace") && said.contains("nothing was changed"), "{said}");
    done(&["cas", "lock", "me", "--if-absent"]);
    assert_eq!(store.ask(&["cas", "lock", "you", "--if-absent"]).0, Some(5));
    done(&["cas", "lock", "--if-value", "me"]);
    assert_eq!(store.ask(&["get", "lock"]).0, Some(5));
    done(&["delete", "name"]);
    let (code, said) = store.ask(&["delete", "name"]);
    assert!(code == Some(5) && said.contains("name has no value"), "{said}");

    let told = done(&["watch", "na", "--from", "1", "--count", "3"]);
    let lines: Vec<&str> = told.lines().map(|line| line.split_once(' ').expect("a version first").1).collect();
    assert_eq!(lines, ["put name Ada", "put name Grace", "delete name"]);
    let status: serde_json::Value = serde_json::from_str(&done(&["status", "--json"])).expect("JSON");
    assert_eq!((status["memoryNodesLive"].as_u64(), status["version"].as_u64()), (Some(3), Some(second + 3)));

    let (code, said) = store.ask(&["put", &"k".repeat(2000), "value"]);
    assert!(code == Some(1) && said.contains("at most 1024"), "{said}");
    let dir = store.dir.clone();
    drop(store);
    let output = run(&["kv", "get", "name", "--dir", &dir.display().to_string()]);
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output).contains("heddle kv up"), "{}", text(&output));
}

/// Regression: watches had no bound, and those of two connections left no room for any other request.
#[tokio::test(flavor = "multi_thread")]
async fn three_thousand_watches_leave_gets_working() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::start(&folder.path().join("kv"));
    let mut watches = Vec::new();
    let mut refused = 0;
    for _ in 0..2 {
        let client = store.client().await;
        let begun = (0..1500).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.watch(Bytes::new(), None).await })
        });
        for watch in begun.collect::<Vec<_>>() {
            match watch.await.expect("no panic") {
                Ok(watch) => watches.push(watch),
                Err(status) => {
                    assert_eq!(status.code, GrpcCode::ResourceExhausted, "{status}");
                    refused += 1;
                }
            }
        }
    }
    assert_eq!(watches.len() + refused, 3000);
    // Those that go on. A new coordinator, as a busy machine may have one, ends watches, and others take their places.
    let within_the_bound = async {
        while watches.len() > 1024 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            watches.retain_mut(|watch| watch.next().now_or_never().is_none());
        }
    };
    let is_within = tokio::time::timeout(Duration::from_secs(60), within_the_bound).await.is_ok();
    assert!(is_within, "{} watches go on", watches.len());
    let client = store.client().await;
    let got = tokio::time::timeout(Duration::from_secs(10), client.get(Bytes::from_static(b"key"))).await;
    assert_eq!(got.expect("an answer").map(|found| found.is_some()), Ok(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_a_token_serves_who_bears_it_and_nobody_else() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (token, dir) = (folder.path().join("token"), folder.path().join("kv"));
    std::fs::write(&token, "0123456789abcdef\n").expect("a file");
    let path = token.display().to_string();
    let store = Store::start_with(&dir, &["--token-file", &path]);
    assert_eq!(store.ask(&["put", "name", "Ada"]).0, Some(0));
    assert_eq!(store.ask(&["get", "name", "--token-file", &path]).1, "Ada\n");
    let status = store.client().await.get(Bytes::from_static(b"name")).await.expect_err("no token");
    assert_eq!(status.code, GrpcCode::Unauthenticated, "{status}");
    std::fs::write(&token, "another-0123456789").expect("a file");
    let (code, said) = store.ask(&["get", "name"]);
    assert!(code == Some(1) && said.contains("token"), "{said}");
}

#[test]
fn a_store_without_a_token_listens_on_the_loopback_address_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("kv").display().to_string();
    for more in [&[][..], &["--isolate"]] {
        let output = run(&[&["kv", "up", "--listen", "0.0.0.0:0", "--keys", "2000", "--dir", &dir], more].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output).contains("--token-file FILE"), "{}", text(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_over_grpc_see_one_store() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::start(&folder.path().join("kv"));
    let client = store.client().await;
    let mut watch = client.watch(Bytes::from_static(b"counter"), None).await.expect("it begins");
    let counting = (0..8).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..25 {
                loop {
                    let key = Bytes::from_static(b"counter");
                    let found = client.get(key.clone()).await.expect("it serves");
                    let (count, expected) = match found {
                        None => (0, Expected::Absent(true)),
                        Some(found) => (found.value.len(), Expected::Version(found.version)),
                    };
                    let next = Some(Bytes::from(vec![b'x'; count + 1]));
                    let answer = client.compare_and_set(key, expected, next).await.expect("it serves");
                    if answer.version > 0 {
                        break;
                    }
                }
            }
        })
    });
    for count in counting.collect::<Vec<_>>() {
        count.await.expect("no check fails");
    }
    let other = store.client().await;
    let found = other.get(Bytes::from_static(b"counter")).await.expect("it serves").expect("it is there");
    assert_eq!(found.value.len(), 200);
    for count in 1..=200 {
        let change = watch.next().await.expect("it goes on").expect("it goes on");
        assert_eq!(change.value.map(|value| value.len()), Some(count));
    }
    let exchange = other.exchange().await.expect("it serves");
    let putting = (0..500_u32).map(|number| {
        let exchange = exchange.clone();
        tokio::spawn(async move {
            let key = Bytes::from(format!("number-{number}"));
            let value = Bytes::from(number.to_string());
            let version = exchange.put(key.clone(), value.clone()).await.expect("it serves");
            let found = exchange.get(key).await.expect("it serves").expect("it is there");
            assert_eq!((found.value, found.version), (value, version));
        })
    });
    for put in putting.collect::<Vec<_>>() {
        put.await.expect("no check fails");
    }
    let refused = exchange.put(Bytes::new(), Bytes::new()).await.expect_err("it has no key");
    assert_eq!(refused.code, GrpcCode::InvalidArgument, "{}", refused.message);

    let long = Bytes::from(vec![1; 20_000]);
    let refused = other.put(Bytes::from_static(b"key"), long).await.expect_err("it is too long");
    assert_eq!(refused.code, GrpcCode::InvalidArgument, "{}", refused.message);
    let refused = other.watch(Bytes::new(), Some(u64::MAX)).await.map(drop);
    assert!(refused.is_ok(), "a version that is to come: {refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_told_outlives_kills_of_everything_with_persistent_memory_nodes() {
    outlives_kills("nodes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_told_outlives_kills_of_everything_with_tables_of_the_coordinator() {
    outlives_kills("coordinator").await;
}

/// Kills everything three times while clients write, and starts it again.
async fn outlives_kills(persistence: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("kv");
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    for round in 0..3 {
        let store = Store::start_with(&dir, &["--persistence", persistence]);
        let client = store.client().await;
        let before: u64 = told.values().copied().max().unwrap_or_default();
        for (key, version) in &told {
            let found = client.get(Bytes::from(key.clone())).await.expect("it serves");
            let found = found.unwrap_or_else(|| panic!("{key} was told in an earlier round"));
            assert_eq!((&found.value[..], found.version), (key.as_bytes(), *version), "as it was told");
        }
        let writers = (0..4).map(|writer| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut done = Vec::new();
                for number in 0.. {
                    let key = format!("{round}-{writer}-{number}");
                    match client.put(Bytes::from(key.clone()), Bytes::from(key.clone())).await {
                        Ok(version) => done.push((key, version)),
                        Err(_) => break,
                    }
                }
                done
            })
        });
        let writers: Vec<_> = writers.collect();
        // Until some writes are acknowledged, and then while others are in flight.
        while client.status().await.expect("it serves").version < before + 100 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let second =
            run(&["kv", "up", "--listen", "127.0.0.1:0", "--keys", "2000", "--dir", &dir.display().to_string()]);
        assert!(text(&second).contains("another process"), "{}", text(&second));
        drop(store);
        for writer in writers {
            told.extend(writer.await.expect("it does not panic"));
        }
        assert!(told.len() >= 50 * (round + 1), "{} were told", told.len());
    }
    if persistence != "nodes" {
        return;
    }
    let other = run(&[
        "kv",
        "up",
        "--listen",
        "127.0.0.1:0",
        "--keys",
        "4000",
        "--persistence",
        "nodes",
        "--dir",
        &dir.display().to_string(),
    ]);
    assert!(other.status.code() == Some(1) && text(&other).contains("original sizes"), "{}", text(&other));
}

/// Flips a bit at the beginning of every redo log of a stopped memory node.
fn damage(dir: &Path, memory_node: &str) {
    let group = dir.join(memory_node).join("group-1");
    let mut damaged = 0;
    for entry in std::fs::read_dir(&group).expect("it kept its group").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.strip_prefix("journal-").is_some_and(|number| number.parse::<u64>().is_ok()) {
            let mut bytes = std::fs::read(entry.path()).expect("it can be read");
            bytes[20] ^= 1;
            std::fs::write(entry.path(), bytes).expect("it can be written");
            damaged += 1;
        }
    }
    assert!(damaged > 0, "there is a journal in {}", group.display());
}

/// Regression: the folder of one memory node of three was damaged, and nothing started any more; no message gave the
/// remedy.
#[test]
fn a_store_starts_without_a_damaged_memory_node_and_makes_it_again() {
    for more in [&[][..], &["--isolate"]] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir = folder.path().join("kv");
        let options = [&["--persistence", "nodes"], more].concat();
        let store = Store::start_with(&dir, &options);
        assert_eq!(store.ask(&["put", "name", "Ada"]).0, Some(0));
        store.down();
        damage(&dir, "memory-1");
        let store = Store::start_with(&dir, &options);
        assert_eq!(store.ask(&["get", "name"]), (Some(0), "Ada\n".to_owned()), "{more:?}");
        let (_, said) = store.ask(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(status["memoryNodesLive"].as_u64(), Some(2), "{more:?}: {said}");
        store.down();

        std::fs::rename(dir.join("memory-1"), folder.path().join("damaged")).expect("as the remedy says");
        let store = Store::start_with(&dir, &options);
        let start = Instant::now();
        // Asks the CPU node that serves.
        let live = || {
            let status: Option<serde_json::Value> = serde_json::from_str(&store.ask(&["status", "--json"]).1).ok();
            status.and_then(|status| status["memoryNodesLive"].as_u64())
        };
        while live() != Some(3) {
            assert!(start.elapsed() < READY_TIMEOUT, "{more:?}: memory-1 is not made again");
            std::thread::sleep(Duration::from_millis(20));
        }
        store.down();

        damage(&dir, "memory-0");
        damage(&dir, "memory-2");
        let shown = dir.display().to_string();
        let up = [&["kv", "up", "--listen", "127.0.0.1:0", "--keys", "2000", "--dir", &shown], &options[..]].concat();
        let output = run(&up);
        assert_eq!(output.status.code(), Some(1), "{more:?}: two of three are damaged: {}", text(&output));
    }
}

#[test]
fn stores_share_memory_nodes_and_backups() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::start_with(&folder.path().join("kv"), &["--stores", "3", "--backups", "2"]);
    for number in ["1", "2", "3"] {
        assert_eq!(store.ask(&["put", "name", number, "--store", number]).0, Some(0));
    }
    for number in ["1", "2", "3"] {
        assert_eq!(store.ask(&["get", "name", "--store", number]), (Some(0), format!("{number}\n")));
    }
    let (_, said) = store.ask(&["status", "--store", "2", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let words = ["stores", "backups", "storesWaiting", "version"].map(|name| status[name].as_u64());
    assert_eq!(words, [Some(3), Some(2), Some(0), Some(1)], "{said}");
    let (code, said) = store.ask(&["get", "name", "--store", "4"]);
    assert!(code == Some(1) && said.contains("3 run"), "{said}");
}

#[test]
fn a_store_of_processes_outlives_the_kill_of_its_coordinator_and_of_a_memory_node() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::start_with(&folder.path().join("kv"), &["--isolate"]);
    let names: Vec<&str> = store.endpoint.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["memory-0", "memory-1", "memory-2", "cpu-node-0", "cpu-node-1"]);
    assert_eq!(store.ask(&["put", "name", "Ada"]).0, Some(0));
    let status = || -> serde_json::Value {
        let (code, said) = store.ask(&["status", "--json"]);
        if code == Some(0) { serde_json::from_str(&said).expect("JSON") } else { serde_json::Value::Null }
    };
    let kill = |name: &str| {
        let endpoint = KvEndpoint::load(&store.dir).expect("a file").expect("it runs");
        let part = endpoint.parts.into_iter().find(|part| part.name == name).expect("it runs");
        let process = rustix::process::Pid::from_raw(part.process as i32).expect("a process");
        rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("it runs");
        part.process
    };
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < READY_TIMEOUT, "{what}: not within {READY_TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let runs_again = |name: &str, killed: u32| {
        until(&format!("{name} runs again"), &|| {
            let endpoint = KvEndpoint::load(&store.dir).ok().flatten();
            endpoint.is_some_and(|it| it.parts.iter().any(|part| part.name == name && part.process != killed))
        });
    };
    // On a busy machine a CPU node may have lost its lease to the other before it is killed.
    let before = status();
    let serving = before["cpuNode"].as_str().expect("one of them serves");
    let killed = kill(serving);
    until("another processor serves", &|| status()["term"].as_u64() > before["term"].as_u64());
    // Regression: every CPU node but the first was reported as a backup, and the first as having no backup.
    until("the one that serves is named", &|| {
        let (name, (_, said)) = (status()["cpuNode"].clone(), store.ask(&["status"]));
        let is_named = name.as_str().is_some_and(|name| said.contains(&format!(", of {name}\n")));
        is_named && !said.contains("backup")
    });
    assert_eq!(store.ask(&["get", "name"]), (Some(0), "Ada\n".to_owned()));
    assert_eq!(store.ask(&["put", "name", "Grace"]).0, Some(0));
    runs_again(serving, killed);

    let killed = kill("memory-1");
    assert_eq!(store.ask(&["put", "other", "Mary"]).0, Some(0));
    runs_again("memory-1", killed);
    until("all memory nodes are back", &|| status()["memoryNodesLive"] == 3);

    // The task behind its port panics when a CPU node reconnects: the process must not live on without it.
    let faults = store.dir.with_extension("faults");
    std::fs::create_dir(&faults).expect("it is not there");
    std::fs::write(faults.join("new"), "rma.host.panics").expect("there is room");
    std::fs::rename(faults.join("new"), faults.join("memory-2")).expect("it is there");
    until("memory-2 looks for faults", &|| !faults.join("memory-2").exists());
    let endpoint = KvEndpoint::load(&store.dir).expect("a file").expect("it runs");
    let doomed = endpoint.parts.into_iter().find(|part| part.name == "memory-2").expect("it runs").process;
    let killed = kill("cpu-node-1");
    runs_again("cpu-node-1", killed);
    runs_again("memory-2", doomed);
    let log = std::fs::read_to_string(store.dir.join("memory-2.log")).expect("it has a log");
    assert!(log.contains("this memory node has failed: the memory of this node is not served any more"), "{log}");
    until("all memory nodes are back", &|| status()["memoryNodesLive"] == 3);
    for (key, value) in [("name", "Grace\n"), ("other", "Mary\n")] {
        assert_eq!(store.ask(&["get", key]), (Some(0), value.to_owned()));
    }
}

#[test]
fn ports_beyond_the_last_one_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("kv").display().to_string();
    let up = ["kv", "up", "--dir", &dir, "--listen", "127.0.0.1:65534"];
    // Regression: port numbers wrapped around. With two CPU nodes of two stores each, the last port was 1; with three
    // stores in one process, it was 0.
    for more in [&["--isolate", "--stores", "2", "--backups", "1"][..], &["--stores", "3"]] {
        let output = run(&[&up[..], more].concat());
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).contains("the port of --listen is 65534"), "{}", text(&output));
    }
}

#[test]
fn a_store_in_tables_is_one_process() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("kv").display().to_string();
    let output = run(&["kv", "up", "--isolate", "--persistence", "coordinator", "--dir", &dir]);
    assert!(output.status.code() == Some(1) && text(&output).contains("tables"), "{}", text(&output));
}
