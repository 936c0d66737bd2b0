//! Unmodified Fabric clients against a real network: the Node gateway SDK and the Go one.

use std::ffi::OsStr;
use std::process::Command;

use crate::programs::program;
use crate::step::{first_line, run};

/// `@hyperledger/fabric-gateway` 1.11 needs Node 20.
const NODE_MAJOR_MIN: u32 = 20;
/// The variable in which clients find the program.
const HEDDLE: &str = "HEDDLE";

pub fn check() -> Result<(), String> {
    let heddle = program("heddle", "program")?;
    let node = check_node(heddle.get_program());
    let go = check_go(heddle.get_program());
    node.and(go)
}

fn check_node(heddle: &OsStr) -> Result<(), String> {
    let major = first_line("node", &["--version"])
        .and_then(|version| version.trim_start_matches('v').split('.').next()?.parse::<u32>().ok());
    if major.is_none_or(|major| major < NODE_MAJOR_MIN) {
        return Err(format!(
            "Node.js {NODE_MAJOR_MIN} or newer is needed for the SDK tests and cannot be installed from here: \
             install it from your distribution or nodejs.org, or leave this step out with `--without clients`"
        ));
    }
    run(Command::new("npm").args(["ci", "--no-audit", "--no-fund"]).current_dir("clients/node"))?;
    run(Command::new("npm").arg("test").current_dir("clients/node").env(HEDDLE, heddle))
}

fn check_go(heddle: &OsStr) -> Result<(), String> {
    if first_line("go", &["version"]).is_none() {
        return Err("Go is needed for the Go SDK test and cannot be installed from here: install it from your \
                    distribution or go.dev, or leave this step out with `--without clients`"
            .to_owned());
    }
    run(Command::new("go").args(["test", "-count=1", "./..."]).current_dir("clients/go").env(HEDDLE, heddle))
}
