//! Measuring Heddle: workloads, the closed-loop driver, the crypto floor and the reports.
//!
//! 1. A [`workload`] says what to load and what each client calls.
//! 2. The [`driver`] runs the clients against a [`network`] behind [`outcome::Submit`] and measures one window.
//! 3. [`floor`] prices the signatures that no server can save, [`latency_floor`] the fsyncs and round trips that no commit can; [`process`] reads what the servers really spent.
//! 4. [`report`] and [`plot`] turn a measurement into a table, JSON and SVG.
//!
//! Left to others: starting and stopping a network (`heddle bench`), and everything that is measured.

pub mod driver;
pub mod error;
pub mod figure;
pub mod flexchain;
pub mod floor;
pub mod histogram;
pub mod interval;
pub mod latency_floor;
pub mod network;
pub mod ordering;
pub mod outcome;
pub mod plot;
pub mod process;
pub mod progress;
pub mod random;
pub mod report;
pub mod rma;
pub mod sift;
pub mod signatures;
pub mod state;
pub mod tally;
pub mod under_attack;
pub mod workload;
pub mod zipf;

pub use error::Error;
