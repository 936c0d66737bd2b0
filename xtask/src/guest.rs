//! Real RDMA verbs without an adapter: runs a program in a guest under QEMU's emulation with soft-RoCE.
//!
//! 1. [`packages`] checks that the tools are installed, and installs missing Debian packages if it is allowed to.
//! 2. [`kernel`] extracts Debian's full kernel from its package, once: the cloud flavour has no `rdma_rxe`.
//! 3. [`image`] writes an initial file system: busybox, the modules in loading order, the program and its libraries.
//! 4. [`machine`] boots the guest, streams its console, and takes the verdict from QEMU's exit status, which only
//!    `/init` can set to success.
//!
//! The host's modules and network devices are not touched. The processor is emulated, since nested virtualisation is
//! missing where the tests must run; times measured in the guest mean nothing.

mod cpio;
mod image;
mod kernel;
mod machine;
mod packages;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::programs::PROFILE;
use crate::step::run;

/// All intermediate files; may be deleted at any time.
const FOLDER: &str = "target/rdma-guest";

/// Runs `program` with its arguments in the guest, or by default the conformance suite of `rma`.
pub fn check(program: Option<&Path>, arguments: &[String]) -> Result<(), String> {
    packages::provide()?;
    match program {
        Some(program) => boot(program, arguments).map(drop),
        None => conformance(arguments),
    }
}

/// Cargo's arguments for the provider's tests. They name the whole workspace so that every dependency has the same features
/// as in the other steps, and is not compiled again; of the members only those that the tests need are compiled.
const SELECTION: &[&str] = &["--profile", PROFILE, "--workspace", "--features", "heddle-rma-verbs/verbs"];

/// The parts of the provider that need no adapter are tested here, the suite of `crates/rma_verbs/tests/verbs.rs` in the
/// guest.
fn conformance(arguments: &[String]) -> Result<(), String> {
    let cargo = |command: &str| {
        let mut cargo = Command::new("cargo");
        cargo.arg(command).args(SELECTION);
        cargo
    };
    run(cargo("clippy").args(["--test", "verbs", "--test", "verbs_wire", "--", "--deny", "warnings"]))?;
    run(cargo("test").args(["--test", "verbs_wire"]))?;
    // Shows the result of each claim while the suite runs.
    let arguments: Vec<String> = arguments.iter().cloned().chain(["--nocapture".to_owned()]).collect();
    let console = boot(&build_suite(&mut cargo("test"))?, &arguments)?;
    // A harness that ran no test also exits successfully.
    match console.iter().find_map(|line| tests_passed(line)) {
        Some(passed) if passed > 0 => Ok(()),
        _ => Err("the guest exited successfully, but no test ran in it".to_owned()),
    }
}

fn boot(program: &Path, arguments: &[String]) -> Result<Vec<String>, String> {
    let start = Instant::now();
    let kernel = kernel::provide()?;
    let image = image::write(&kernel, program, arguments)?;
    println!("rdma-guest: image made in {:.1} s, booting", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let console = machine::run(&kernel.image, &image);
    println!("rdma-guest: the guest ended after {:.1} s", start.elapsed().as_secs_f64());
    console
}

fn build_suite(command: &mut Command) -> Result<PathBuf, String> {
    command.args(["--no-run", "--test", "verbs", "--message-format", "json-render-diagnostics"]);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the conformance suite did not build: {}", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    // Only a test has an executable among the artifacts of this call, and there is only one.
    let (_, rest) = messages.split_once("\"executable\":\"").ok_or("cargo named no test program")?;
    rest.split_once('"').map(|(path, _)| PathBuf::from(path)).ok_or_else(|| "cargo named no test program".to_owned())
}

/// The number of passed tests in the last line of a test harness.
fn tests_passed(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("test result: ok. ")?;
    rest.split_once(" passed")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::tests_passed;

    #[test]
    fn only_the_harness_last_line_counts_tests() {
        let line = "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(tests_passed(line), Some(12));
        assert_eq!(tests_passed("test result: FAILED. 11 passed; 1 failed"), None);
        assert_eq!(tests_passed("running 12 tests"), None);
    }
}
