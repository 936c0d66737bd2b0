//! Runs unmodified Fabric clients against a real network: the gateway SDKs for Node and Go, and the older SDK
//! `fabric-network`. The test of many calls on one connection also runs the SDK for Java. Nightly, Caliper loads a
//! network. The tests in Go also run the commands of `docs/first-contract.md`.

use std::ffi::OsStr;
use std::process::Command;
use std::thread;

use crate::programs::program;
use crate::step::{first_line, run};

/// `@hyperledger/fabric-gateway` 1.11 needs Node 20.
const NODE_MAJOR_MIN: u32 = 20;
/// The variable in which clients find the program.
const HEDDLE: &str = "HEDDLE";
/// The variable that gives the number of calls on one connection.
const CALLS: &str = "CALLS";

pub fn check() -> Result<(), String> {
    let heddle = program("heddle", "program")?;
    let heddle = heddle.get_program();
    // Both wait for registries, and for the networks that they start, at addresses of their own.
    let (node, go) = thread::scope(|scope| {
        let go = scope.spawn(|| check_go(heddle));
        let node = check_node(heddle);
        (node, go.join().unwrap_or_else(|_| Err("the check with Go panicked".to_owned())))
    });
    node.and(go)
}

/// Makes `count` calls on one connection from each SDK; none may be lost.
pub fn calls(count: u64) -> Result<(), String> {
    let heddle = program("heddle", "program")?;
    let heddle = heddle.get_program();
    let count = count.to_string();
    let run_with = |program: &str, arguments: &[&str], folder: &str| {
        run(Command::new(program).args(arguments).current_dir(folder).env(HEDDLE, heddle).env(CALLS, &count))
    };
    let node = prepare_node().and_then(|()| run_with("node", &["--test", "test/calls.test.js"], "clients/node"));
    let go = find_go().and_then(|()| {
        let test = ["test", "-count=1", "-v", "-timeout=4h", "-run=TestCallsOnOneConnection", "./..."];
        run_with("go", &test, "clients/go")
    });
    let java = match first_line("mvn", &["--version"]) {
        Some(_) => run_with("mvn", &["-q", "-B", "compile", "exec:java"], "clients/java"),
        None => {
            Err("Maven and Java 17 are needed for the Java SDK and cannot be installed from here: install them from \
                     your distribution or maven.apache.org"
                .to_owned())
        }
    };
    node.and(go).and(java)
}

/// Loads a network with Caliper.
pub fn caliper() -> Result<(), String> {
    let heddle = program("heddle", "program")?;
    prepare_node()?;
    install_packages("clients/caliper")?;
    run(Command::new("npm").arg("test").current_dir("clients/caliper").env(HEDDLE, heddle.get_program()))
}

fn check_node(heddle: &OsStr) -> Result<(), String> {
    prepare_node()?;
    run(Command::new("npm").arg("test").current_dir("clients/node").env(HEDDLE, heddle))?;
    // The older SDK.
    install_packages("clients/fabric-network")?;
    run(Command::new("npm").arg("test").current_dir("clients/fabric-network").env(HEDDLE, heddle))
}

fn prepare_node() -> Result<(), String> {
    let major = first_line("node", &["--version"])
        .and_then(|version| version.trim_start_matches('v').split('.').next()?.parse::<u32>().ok());
    if major.is_none_or(|major| major < NODE_MAJOR_MIN) {
        return Err(format!(
            "Node.js {NODE_MAJOR_MIN} or newer is needed for the SDK tests and cannot be installed from here: \
             install it from your distribution or nodejs.org, or leave this step out with `--without clients`"
        ));
    }
    install_packages("clients/node")
}

fn install_packages(folder: &str) -> Result<(), String> {
    run(Command::new("npm").args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(folder))
}

fn check_go(heddle: &OsStr) -> Result<(), String> {
    find_go()?;
    run(Command::new("go").args(["test", "-count=1", "./..."]).current_dir("clients/go").env(HEDDLE, heddle))
}

fn find_go() -> Result<(), String> {
    if first_line("go", &["version"]).is_none() {
        return Err("Go is needed for the Go SDK test and cannot be installed from here: install it from your \
                    distribution or go.dev, or leave this step out with `--without clients`"
            .to_owned());
    }
    Ok(())
}
