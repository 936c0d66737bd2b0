//! Requirements of tests with several hosts: network namespaces, made with `ip`.

use std::process::Command;

use crate::step::{first_line, run};

const PACKAGE: &str = "iproute2";

/// Checks that `ip` is installed, and installs it if it may.
pub fn tools() -> Result<(), String> {
    if first_line("ip", &["-Version"]).is_some() {
        return Ok(());
    }
    println!("installing {PACKAGE} for the tests of several hosts");
    let missing =
        |reason| format!("{reason}; `ip`, of Debian's {PACKAGE}, is needed for tests of several hosts: install it");
    run(Command::new("apt-get").arg("update")).map_err(missing)?;
    run(Command::new("apt-get").args(["install", "--yes", "--no-install-recommends", PACKAGE])).map_err(missing)
}
