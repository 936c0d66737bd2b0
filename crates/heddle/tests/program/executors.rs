//! `heddle farmem executors` and `heddle farmem top`, and the role beside a memory node. What executors do is tested with their library, in
//! `pushdown_caller`; here they are another program, and the role needs no rights.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::processes::send;
use crate::support::{heddle, run, text};

const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a command, and returns the line by which it says that it is ready.
fn start(arguments: &[&str]) -> (Child, String) {
    let mut child = heddle(arguments).stdout(Stdio::piped()).spawn().expect("the program can be started");
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().expect("it is a pipe"));
    output.read_line(&mut line).expect("it writes text");
    child.stdout = Some(output.into_inner());
    (child, line)
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("the folder has a name in UTF-8").to_owned()
}

fn page(address: &str, name: &str) -> String {
    let mut socket = TcpStream::connect(address).expect("the page is served");
    write!(socket, "GET /{name} HTTP/1.1\r\n\r\n").expect("there is room");
    let mut page = String::new();
    socket.read_to_string(&mut page).expect("it is text");
    page
}

#[test]
fn the_role_shows_its_executors_and_its_metrics_and_stops_on_a_signal() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = path(folder.path(), "executors");
    let plain = ["--executor", "/bin/true", "--without-namespaces", "--without-limits", "--metrics", "127.0.0.1:0"];
    let (mut role, ready) = start(&[&["farmem", "executors", "--socket", &socket][..], &plain].concat());
    let address = ready.trim_end().rsplit_once("metrics at http://").map(|(_, rest)| rest.trim_end_matches("/metrics"));
    let address = address.unwrap_or_else(|| panic!("it names its metrics: {ready}"));

    let shown = run(&["farmem", "top", "--socket", &socket, "--once"]);
    assert!(shown.status.success() && text(&shown).contains("0 of 16"), "{}", text(&shown));
    let json = run(&["farmem", "top", "--socket", &socket, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
    assert_eq!((json["executorsMax"].as_u64(), json["stopping"].as_bool()), (Some(16), Some(false)));
    let metrics = page(address, "metrics");
    for name in ["heddle_executors_serving 0", "heddle_executors_refused_full_total 0", "heddle_executors_owner_open"] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
    assert!(page(address, "healthz").ends_with("ok\n"));

    send(role.id(), Signal::TERM);
    assert!(role.wait().expect("it is a child").success());
    let gone = run(&["farmem", "top", "--socket", &socket, "--once"]);
    assert!(!gone.status.success() && text(&gone).contains(&socket), "{}", text(&gone));
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = path(folder.path(), "executors");
    for (arguments, named) in [
        (&["--executor", "/nonexistent/heddle-executor"][..], "/nonexistent/heddle-executor"),
        (&["--executor", "/bin/true", "--contexts", "99"], "99 contexts"),
        (&["--executor", "/bin/true", "--processor", "0.01"], "processor"),
        (&["--executor", "/bin/true", "--owner-memory", "64M"], "--owner-memory"),
        (&["--executor", "/bin/true", "--storage", "/nonexistent/storage"], "/nonexistent/storage"),
        (&["--executor", "/bin/true", "--storage-bytes", "1G"], "--storage <DIR>"),
        (&["--executor", "/bin/true", "--storage", "/", "--without-limits"], "--without-limits"),
        (&["--executor", "/bin/true", "--storage", "/", "--storage-bytes", "1T"], "--storage-bytes"),
    ] {
        let output = run(&[&["farmem", "executors", "--socket", &socket][..], arguments].concat());
        assert!(!output.status.success() && text(&output).contains(named), "{}", text(&output));
    }
}

#[test]
fn a_memory_node_runs_the_role_beside_it_and_ends_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (network, socket) = (path(folder.path(), "network"), path(folder.path(), "executors"));
    let planned = run(&["plan", "--dir", &network, "--host", "127.0.0.1", "--orgs", "1"]);
    assert!(planned.status.success(), "{}", text(&planned));
    let config = path(folder.path(), "network/nodes/memory-1/node.toml");
    let program = path(folder.path(), "heddle-executor");
    std::os::unix::fs::symlink("/bin/true", &program).expect("the folder is writable");
    let mut file = std::fs::OpenOptions::new().append(true).open(&config).expect("the plan has it");
    write!(file, "\n[executors]\nsocket = \"{socket}\"\nexecutor = \"{program}\"\nexecutors_max = 3\n").expect("room");
    // As root, or where namespaces and cgroups are allowed; otherwise the role says what is missing, and the node ends.
    let (mut node, line) = start(&["node", "memory", "--config", &config]);
    let begun = Instant::now();
    let shown = loop {
        let shown = run(&["farmem", "top", "--socket", &socket, "--once"]);
        if shown.status.success() {
            break shown;
        }
        if let Some(status) = node.try_wait().expect("it is a child") {
            eprintln!("not tested: {status}");
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{line} {}", text(&shown));
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(text(&shown).contains("0 of 3"), "{}", text(&shown));
    send(node.id(), Signal::TERM);
    assert!(node.wait().expect("it is a child").success());
    assert!(!Path::new(&socket).exists(), "the role has stopped in order");
}

/// Both ends of the relay, with certificates that a plan has. What they carry is tested in `executor_relay`.
#[test]
fn a_relay_and_the_other_end_beside_the_role_start_and_name_what_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let network = path(folder.path(), "network");
    let planned = run(&["plan", "--dir", &network, "--host", "127.0.0.1", "--orgs", "2"]);
    assert!(planned.status.success(), "{}", text(&planned));
    let file = |organisation: &str, name: &str| {
        path(folder.path(), &format!("network/nodes/compute-{organisation}/tls/{name}"))
    };
    let tls = |own: &str, other: &str| {
        let trust = format!("{other}={}", file(other, "ca.crt"));
        ["--certificate", &file(own, "server.crt"), "--key", &file(own, "server.key"), "--trust", &trust]
            .map(str::to_owned)
    };
    let (role_socket, relay_socket) = (path(folder.path(), "role"), path(folder.path(), "relay"));
    let of_role = [&tls("org2", "org1")[..], &["--tenant".to_owned(), "org1=65534".to_owned()]].concat();
    let of_role: Vec<&str> = of_role.iter().map(String::as_str).collect();
    let plain = ["--executor", "/bin/true", "--any-owner", "--without-namespaces", "--without-limits"];
    let role =
        [&["farmem", "executors", "--socket", &role_socket, "--listen", "tls:127.0.0.1:0"][..], &plain, &of_role]
            .concat();
    // Executors of several users need root, or namespaces.
    let is_root = rustix::process::geteuid().is_root();
    let mut listening = is_root.then(|| start(&role));
    let to = match &listening {
        Some((_, ready)) => {
            let address = ready.trim_end().rsplit_once(" and ").map(|(_, address)| address.to_owned());
            address.unwrap_or_else(|| panic!("it names where it listens: {ready}"))
        }
        None => "tls:127.0.0.1:1".to_owned(),
    };
    let of_relay = tls("org1", "org2");
    let of_relay: Vec<&str> = of_relay.iter().map(String::as_str).collect();
    let relay = [
        "farmem",
        "relay",
        "--socket",
        &relay_socket,
        "--to",
        &to,
        "--organisation",
        "org2",
        "--metrics",
        "127.0.0.1:0",
    ];
    let (mut child, ready) = start(&[&relay[..], &of_relay].concat());
    let metrics = ready.trim_end().rsplit_once("metrics at http://").map(|(_, rest)| rest.trim_end_matches("/metrics"));
    let metrics = page(metrics.unwrap_or_else(|| panic!("it names its metrics: {ready}")), "metrics");
    assert!(metrics.contains("heddle_executor_relay_sessions 0"), "{metrics}");
    let shown = run(&["farmem", "top", "--socket", &relay_socket, "--once"]);
    assert!(
        !shown.status.success() && text(&shown).contains("ask the role, on the executors' host"),
        "{}",
        text(&shown)
    );
    for (changed, named) in [
        (["--to", "127.0.0.1:7080", "--organisation", "org2"], "tls:HOST:PORT"),
        (["--to", "tls:127.0.0.1:7080", "--organisation", "org3"], "--trust org3=FILE"),
    ] {
        let output = run(&[&["farmem", "relay", "--socket", "unused"][..], &changed, &of_relay].concat());
        assert!(!output.status.success() && text(&output).contains(named), "{}", text(&output));
    }
    send(child.id(), Signal::TERM);
    assert!(child.wait().expect("it is a child").success());
    if let Some((role, _)) = &mut listening {
        send(role.id(), Signal::TERM);
        assert!(role.wait().expect("it is a child").success());
    }
}
