//! The code that the programs `heddle` and `heddle-bench` share. With it a command finds the running network or store,
//! reports a failure and prints; its help text becomes a part of `docs/cli.md`.
//!
//! ```
//! use heddle_cli::{exit, failure::CommandError, instance};
//!
//! let folder = std::env::temp_dir().join("no-network-is-here");
//! let error = instance::expect_network(&folder).expect_err("nothing was made there");
//! assert_eq!(error.code(), exit::FAILURE);
//! assert!(error.message().is_some_and(|message| message.contains("`heddle up --dir")));
//!
//! // Scripts tell a network that is not running from other failures by the exit code.
//! let error = CommandError::with_code(exit::NOT_RUNNING, "the network is not running; start it with `heddle up`");
//! assert_eq!(error.code(), 4);
//! ```
//!
//! 1. [`instance`] finds the network of a directory and the process that runs it, [`store`] the key-value store.
//! 2. [`failure`] is what a command returns: one line and one of the codes in [`exit`]. [`log_tail`] adds the end of a
//!    log.
//! 3. [`output`] prints, [`signals`] waits for Ctrl-C, [`page`] fetches metrics, [`process_usage`] asks the kernel what
//!    a process uses, [`beside`] finds the other programs of a release.
//! 4. [`document`] renders the help texts of a program for `docs/cli.md`.
//!
//! # Guarantees
//! * Every failure has an exit code and, unless it was an interruption, one line that says what failed and what to do.
//! * A closed standard output is no failure.
//! * Nothing here changes a network's data: a command that finds a network reads its files and its lock. Only
//!   [`instance::sign_lock`] writes, the process ID into the lock file; [`instance::terminate`] only sends a signal.
//!
//! # What it needs around it
//! * Above: the commands of `heddle`, in the same package, and those of `heddle-bench`, in the package of that name.
//!   Neither program links the other.
//! * Below: `node` for the files of networks and stores, `gateway` for gRPC. Linux, for `/proc`.
#![deny(missing_docs)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power"))]

pub mod beside;
pub mod document;
pub mod exit;
pub mod failure;
pub mod instance;
pub mod log_tail;
pub mod output;
pub mod page;
pub mod policy;
pub mod process_usage;
pub mod signals;
pub mod store;
