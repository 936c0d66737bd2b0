//! Tools for measuring: workloads, the closed-loop driver, the crypto floor, statistics and reports.
//!
//! Most parts need a running network. The parts that prepare and evaluate a run do not:
//!
//! ```
//! use std::time::Duration;
//!
//! use measurement::figure::RatioBound;
//! use measurement::histogram::Histogram;
//! use measurement::interval::ConfidenceInterval;
//! use measurement::workload::smallbank::SmallBank;
//! use measurement::workload::{Workload, client_random};
//!
//! // A client's calls follow from the run's seed and the client's number, whatever the network's speed.
//! let bank = SmallBank { accounts: 100, ..SmallBank::default() };
//! let calls = |client| {
//!     let mut generator = bank.generator(client, client_random(7, client));
//!     (0..50).map(|_| generator.next()).collect::<Vec<_>>()
//! };
//! assert_eq!(calls(1), calls(1));
//! assert_ne!(calls(1), calls(2));
//!
//! // Latencies are counted in buckets; a quantile is at most 1/64 too high.
//! let mut latency = Histogram::default();
//! (1..=100).for_each(|millis| latency.record(Duration::from_millis(millis)));
//! assert!((50_000..51_000).contains(&latency.quantile_us(0.5)));
//! assert_eq!(latency.max_us(), 100_000);
//!
//! // Two systems, measured in turns: their ratios, and whether the mean shows the gain that was claimed.
//! let ratio = ConfidenceInterval::of_ratios(&[1.18, 1.22, 1.21, 1.19]);
//! assert!(ratio.keeps(RatioBound::AtLeast(1.1)));
//! let (low, high) = ratio.ends.expect("four ratios have an interval");
//! assert!(low < ratio.mean && ratio.mean < high);
//! ```
//!
//! 1. A [`workload`] determines the data to load and the calls of each client.
//! 2. The [`driver`] runs the clients against a [`network`], through [`outcome::TransactionClient`], and measures one
//!    window. Clients start their next transaction when the last one has ended; [`open_loop`] starts transactions at a
//!    fixed rate.
//! 3. [`floor`] prices the signatures that the servers cannot avoid, and [`latency_floor`] the fsyncs and round trips
//!    that a commit cannot avoid. [`process`] reads the processor time and memory that the servers really used.
//! 4. [`report`] and [`plot`] turn a measurement of a network into a table, JSON and SVG; [`figure`] does so for
//!    measurements of other kinds.
//!
//! [`chaincode`] builds and runs a workload's contract as a chaincode outside of the peers.
//!
//! # Guarantees
//!
//! * Two runs with the same seed send the same calls from each client.
//! * A bound that demands a gain must be met by the mean of the ratios. A bound that only forbids a loss is missed only
//!   if the whole confidence interval lies beyond it ([`interval`]). A single ratio is compared with its bound directly.
//! * Every transaction that ends within the window is counted, even if it started before. Transactions that the network
//!   rejected are counted apart from those that the contract rejected ([`tally`]).
//! * When the driver returns, with a result or an error, its clients have ended.
//!
//! # What it needs around it
//!
//! * Above: `bench` decides what is measured, starts it and ends it.
//! * Below: a network is reached through its gateways, as any client reaches it.
#![deny(missing_docs)]

pub mod chaincode;
pub mod driver;
pub mod error;
pub mod figure;
pub mod floor;
pub mod histogram;
pub mod interval;
pub mod latency_floor;
pub mod network;
pub mod open_loop;
pub mod outcome;
pub mod plot;
pub mod process;
pub mod progress;
pub mod random;
pub mod report;
pub mod tally;
pub mod workload;
pub mod zipf;

pub use error::Error;
