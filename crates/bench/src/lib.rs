//! What Heddle measures: the benchmarks of `heddle bench` and the figures of the papers.
//!
//! The tools for it are in [`measurement`]: workloads, the driver, statistics and reports. Benchmarks of a network's
//! throughput consist of them alone. Measurements of parts of the system are here: [`state`], [`ordering`], [`rma`],
//! [`validate`], [`signatures`], [`invalidation`], [`far_memory`], and the figures of the papers ([`flexchain`], [`sift`],
//! [`teleport`]). [`under_attack`] measures honest clients while a network is attacked.
//!
//! Each measurement has a configuration with sane defaults, and returns a [`Figure`](measurement::figure::Figure):
//!
//! ```no_run
//! use base::rt::CancellationToken;
//! use bench::signatures::{self, SignaturesConfig};
//!
//! # fn main() -> Result<(), measurement::Error> {
//! let stop = CancellationToken::new();
//! let figure = signatures::run(&SignaturesConfig::default(), &stop, &|step| eprintln!("{step}"))?;
//! println!("{}", figure.to_table());
//! figure.write_json("signatures.json".as_ref())
//! # }
//! ```
//!
//! # Guarantees
//!
//! * Both sides of a ratio are measured in one run, in turns.
//! * When a measurement returns, with a result or an error, its clients and processes have ended, and its limits on
//!   processes are lifted.
//!
//! # What it needs around it
//!
//! * Above: `heddle bench` starts and stops the network, chooses the measurement and prints its progress.
//! * Below: the measured systems, through the public interfaces of `state`, `pool`, `rma`, `ordered_log`, `validation`,
//!   `kv` and `farmem`.
//! * An otherwise idle machine. Figures that limit processors use a cgroup if they can make one, and otherwise pause
//!   the process by signals.
#![deny(missing_docs)]

pub mod far_memory;
pub mod flexchain;
pub mod invalidation;
pub mod ordering;
pub mod rma;
pub mod sift;
pub mod signatures;
pub mod state;
pub mod teleport;
pub mod under_attack;
pub mod validate;
