//! Lints and documentation, which share what the compiler finds out about a crate.
//!
//! `cargo doc` needs the metadata of every crate. Clippy has written it, but cargo keeps crates that clippy compiled apart from others,
//! by the compiler's wrapper and its arguments. So [`documentation`] hands cargo the wrapper that `cargo clippy` hands it. If a
//! later version of clippy uses another one, crates are checked a second time, which only takes longer.

use std::path::Path;
use std::process::Command;

use crate::programs::PROFILE;
use crate::step::{first_line, run};

/// What clippy gets.
const ARGUMENTS: &[&str] = &["--deny", "warnings"];

/// What is documented. With an example, cargo selects the features of dependencies that tests need, as clippy has them; otherwise it
/// would check these dependencies, and all crates that use them, a second time.
const TARGETS: &[&str] = &["--lib", "--bins", "--example", "tcp_costs"];

/// Clippy's separator of arguments in their variable.
const SEPARATOR: &str = "__CLIPPY_HACKERY__";

/// Checks all targets of all crates.
///
/// # Errors
/// A lint fails.
pub fn lints() -> Result<(), String> {
    let mut clippy = Command::new("cargo");
    clippy.args(["clippy", "--profile", PROFILE, "--workspace", "--all-targets", "--"]);
    run(clippy.args(ARGUMENTS))
}

/// Writes the documentation of our crates.
///
/// # Errors
/// A link in it leads nowhere, or another lint of rustdoc fails.
pub fn documentation() -> Result<(), String> {
    let mut doc = Command::new("cargo");
    doc.args(["doc", "--profile", PROFILE, "--workspace", "--no-deps", "--keep-going"]).args(TARGETS);
    // Heads of modules link to private items, which readers of the source follow.
    doc.env("RUSTDOCFLAGS", "--deny warnings --allow rustdoc::private_intra_doc_links");
    if let Some(sysroot) = first_line("rustc", &["--print", "sysroot"]) {
        let driver = Path::new(&sysroot).join("bin").join("clippy-driver");
        let arguments: String = ARGUMENTS.iter().flat_map(|argument| [*argument, SEPARATOR]).collect();
        doc.env("RUSTC_WORKSPACE_WRAPPER", driver).env("CLIPPY_ARGS", arguments);
    }
    run(&mut doc)
}
