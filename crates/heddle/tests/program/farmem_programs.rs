//! Real programs, unmodified, with a far heap of which a fraction is resident. They have to be installed (Debian's packages
//! redis-server, memcached, sqlite3 and python3-numpy), so these tests run by name: `cargo xtask nightly --only farmem-programs`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{heddle, text};

const START_TIMEOUT: Duration = Duration::from_secs(30);
const SAVE_TIMEOUT: Duration = Duration::from_secs(300);
const PACKAGES: &str = "install Debian's redis-server, memcached, sqlite3 and python3-numpy";

/// A server with a far heap, killed when dropped.
struct FarServer {
    command: Child,
    port: u16,
}

impl FarServer {
    fn start(budget: &str, program: &str, arguments: impl Fn(u16) -> Vec<String>) -> FarServer {
        let port = free_port();
        let mut command = heddle(&["farmem", "run", "--budget", budget, "--memory", "1G", "--", program]);
        command.args(arguments(port)).stdin(Stdio::null()).stdout(Stdio::null());
        let command = command.spawn().expect("it can be started");
        let mut server = FarServer { command, port };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = server.command.try_wait().expect("it is a child");
            assert!(
                ended.is_none() && start.elapsed() < START_TIMEOUT,
                "{program} does not start ({ended:?}): {PACKAGES}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }
}

impl Drop for FarServer {
    fn drop(&mut self) {
        // Its programs end with it.
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

fn output_of(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{:?}: {error}: {PACKAGES}", command.get_program()))
}

/// Runs a program to its end, with text for its standard input.
fn run_far(budget: &str, program: &[&str], input: &str) -> Output {
    let mut command = heddle(&["farmem", "run", "--budget", budget, "--memory", "1G", "--"]);
    command.args(program).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it can be started");
    child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it is a child");
    assert!(output.status.success(), "{}: {PACKAGES}", text(&output));
    output
}

fn redis(port: u16, input: &str) -> String {
    let mut command = Command::new("redis-cli");
    command.args(["-p", &port.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("redis-cli: {error}: {PACKAGES}"));
    child.stdin.take().expect("it is piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it is a child");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn redis_arguments(folder: &Path) -> impl Fn(u16) -> Vec<String> {
    let folder = folder.display().to_string();
    move |port| {
        let port = port.to_string();
        let options = ["--port", &port, "--save", "", "--enable-debug-command", "local", "--dir", &folder];
        options.map(str::to_owned).to_vec()
    }
}

fn wait_for_info(port: u16, line: &str) {
    let start = Instant::now();
    while !redis(port, "INFO persistence\n").lines().any(|one| one.trim() == line) {
        assert!(start.elapsed() < SAVE_TIMEOUT, "Redis does not say {line}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The last line that is a digest of all keys and values.
fn digest(answer: &str) -> String {
    let is_digest = |line: &&str| line.len() == 40 && line.chars().all(|digit| digit.is_ascii_hexdigit());
    answer.lines().rev().map(str::trim).find(is_digest).unwrap_or_else(|| panic!("no digest in {answer}")).to_owned()
}

/// The child that saves sees the heap as it was at the fork, while the parent overwrites it.
#[test]
#[ignore = "needs Redis; `cargo xtask nightly` runs it"]
fn redis_saves_what_it_had_at_the_fork_while_it_is_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let far = FarServer::start("32M", "redis-server", redis_arguments(folder.path()));
    assert!(redis(far.port, "DEBUG POPULATE 150000 key 600\n").contains("OK"));
    let at_fork = digest(&redis(far.port, "DEBUG DIGEST\n"));
    assert!(redis(far.port, "BGSAVE\n").contains("started"));
    let port = far.port.to_string();
    let load = ["-p", &port, "-q", "-n", "60000", "-r", "150000", "-t", "set", "-d", "600"];
    let mut load = Command::new("redis-benchmark").args(load).stdout(Stdio::null()).spawn().expect(PACKAGES);
    wait_for_info(far.port, "rdb_bgsave_in_progress:0");
    load.wait().expect("it is a child");
    assert!(redis(far.port, "INFO persistence\n").contains("rdb_last_bgsave_status:ok"));
    assert_ne!(digest(&redis(far.port, "DEBUG DIGEST\n")), at_fork, "it was overwritten meanwhile");
    drop(far);
    let loaded = FarServer::start("512M", "redis-server", redis_arguments(folder.path()));
    // It answers before it has loaded everything.
    wait_for_info(loaded.port, "loading:0");
    assert_eq!(digest(&redis(loaded.port, "DEBUG DIGEST\n")), at_fork);
}

#[test]
#[ignore = "needs memcached; `cargo xtask nightly` runs it"]
fn memcached_returns_each_value_that_it_was_given() {
    const VALUES: usize = 100_000;
    let value = |number: usize| format!("{number:010}").repeat(100);
    let far = FarServer::start("24M", "memcached", |port| {
        ["-u", "root", "-l", "127.0.0.1", "-m", "400", "-p", &port.to_string()].map(str::to_owned).to_vec()
    });
    let mut socket = TcpStream::connect(("127.0.0.1", far.port)).expect("it listens");
    let mut answers = BufReader::new(socket.try_clone().expect("a descriptor is free"));
    let mut line = String::new();
    for number in 0..VALUES {
        let set = format!("set k{number} 0 0 1000 noreply\r\n{}\r\n", value(number));
        socket.write_all(set.as_bytes()).expect("it reads");
    }
    for number in (0..VALUES).step_by(7) {
        let number = number * 12_347 % VALUES;
        socket.write_all(format!("get k{number}\r\n").as_bytes()).expect("it reads");
        line.clear();
        answers.read_line(&mut line).expect("it answers");
        assert!(line.starts_with(&format!("VALUE k{number} ")), "{line}");
        let mut rest = vec![0; 1000 + "\r\nEND\r\n".len()];
        answers.read_exact(&mut rest).expect("it answers");
        assert_eq!(&rest[..1000], value(number).as_bytes());
    }
}

#[test]
#[ignore = "needs SQLite; `cargo xtask nightly` runs it"]
fn sqlite_keeps_a_database_in_memory_that_passes_its_check() {
    let input = "
        create table t(a integer primary key, b text);
        with recursive c(x) as (select 1 union all select x + 1 from c where x < 300000)
            insert into t select x, printf('%0100d', x * 7919 % 1000003) from c;
        create index i on t(b);
        select count(*), sum(a), sum(length(b)) from t;
        pragma integrity_check;";
    let output = run_far("16M", &["sqlite3", ":memory:"], input);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "300000|45000150000|30000000\nok\n");
}

#[test]
#[ignore = "needs NumPy; `cargo xtask nightly` runs it"]
fn numpy_computes_with_arrays_larger_than_the_budget_and_forks() {
    let input = "
import numpy, os
a = numpy.arange(16 << 20, dtype=numpy.float64)
assert a.sum() == (16 << 20) * ((16 << 20) - 1) / 2
places = numpy.random.default_rng(1).integers(0, a.size, 30000)
assert (a[places] == places).all()
child = os.fork()
if child == 0:
    os._exit(0 if (a[::1000] == numpy.arange(0, a.size, 1000)).all() else 9)
a *= 2
assert os.waitpid(child, 0)[1] == 0
assert (a[::1000] == 2 * numpy.arange(0, a.size, 1000)).all()
print('done')
";
    let python = output_of(Command::new("sh").args(["-c", "command -v /usr/bin/python3 || command -v python3"]));
    let python = String::from_utf8_lossy(&python.stdout).trim().to_owned();
    assert_eq!(String::from_utf8_lossy(&run_far("24M", &[&python, "-"], input).stdout), "done\n");
}
