//! Compiles for cargo: unit tests and some other tests without optimisation, everything else as cargo says.
//!
//! A unit test compiles its whole crate again, and runs for a moment. The crates that it uses are those of the other tests, optimised
//! for simulations. Profiles cannot say that: their settings for a package hold for its library too, and libraries would be compiled
//! twice.
//!
//! Cargo runs this program as `RUSTC_WRAPPER`, with the path of `rustc` and what follows it. Such a wrapper is no part of
//! what cargo compares before it compiles a crate again. So `cargo test` without it uses the same crates, and the same unit tests.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The variable in which cargo finds a wrapper.
pub const VARIABLE: &str = "RUSTC_WRAPPER";

/// Integration tests that take longer to optimise than to run without.
const UNOPTIMIZED: &[&str] = &["chain"];

/// Replaces this process by the compiler, if cargo has started it as the wrapper. Returns only otherwise, or if there is no compiler.
pub fn run_as_wrapper() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let rustc = arguments.next().filter(|first| Path::new(first).file_stem() == Some(OsStr::new("rustc")))?;
    let mut arguments: Vec<OsString> = arguments.collect();
    if runs_briefly(&arguments) {
        arguments.extend(["-Copt-level=0", "-Ccodegen-units=16"].map(OsString::from));
    }
    let error = Command::new(&rustc).args(arguments).exec();
    eprintln!("xtask: {}: {error}", rustc.display());
    Some(ExitCode::FAILURE)
}

/// Whether these arguments compile tests that need no optimisation.
fn runs_briefly(arguments: &[OsString]) -> bool {
    let has = |argument: &str| arguments.iter().any(|given| given == argument);
    let is_source = |given: &OsString| {
        // Of a library or a program. Integration tests lie elsewhere, and cargo compiles those of our crates only.
        given.to_str().is_some_and(|path| path.ends_with(".rs") && path.split('/').any(|folder| folder == "src"))
    };
    let crate_name = arguments.iter().skip_while(|given| *given != "--crate-name").nth(1);
    let is_listed = crate_name.is_some_and(|name| UNOPTIMIZED.iter().any(|one| name == one));
    has("--test") && (is_listed || arguments.iter().any(is_source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_unoptimized(line: &str) -> bool {
        runs_briefly(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn unit_tests_and_listed_tests_are_not_optimized() {
        assert!(is_unoptimized("--crate-name ledger --edition=2024 crates/ledger/src/lib.rs -C opt-level=3 --test"));
        assert!(is_unoptimized("--crate-name heddle_bench crates/bench/src/bin/heddle-bench/main.rs --test --cfg x"));
        assert!(!is_unoptimized("--crate-name ledger --edition=2024 crates/ledger/src/lib.rs -C opt-level=3"));
        assert!(!is_unoptimized("--crate-name state crates/state/tests/state/main.rs -C opt-level=3 --test"));
        assert!(is_unoptimized("--crate-name chain crates/chain/tests/chain/main.rs -C opt-level=3 --test"));
        assert!(!is_unoptimized("--crate-name chain --edition=2024 crates/chain/src/lib.rs -C opt-level=3"));
        assert!(!is_unoptimized("-vV"));
    }
}
