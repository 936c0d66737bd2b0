//! Workloads: the calls that clients send to a network.
//!
//! 1. A [`Workload`] names its contract and the calls that load its data ([`Workload::load`]).
//! 2. Each client has its own [`CallGenerator`], seeded with the run's seed and the client's number. So a client makes
//!    the same sequence of calls in every run with the same seed, however fast the network is.
//! 3. A generator makes one [`ContractCall`] after another. Reads are sent as transactions too, as in FlexChain
//!    (section 6.1).
//!
//! Left to others: sending the calls and counting their outcomes ([`crate::driver`]), and the functions themselves
//! (`contract::contracts`).

pub mod derivation;
pub mod kmeans;
pub mod prediction;
pub mod smallbank;
pub mod ycsb;

use base::Bytes;
use serde_json::{Map, Value};

use crate::random::Random;
use crate::zipf::Zipf;

/// One invocation of a contract's function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContractCall {
    /// The function's name.
    pub function: &'static str,
    /// Its arguments, as text.
    pub args: Vec<Bytes>,
}

impl ContractCall {
    /// A call with these arguments.
    pub fn new(function: &'static str, args: impl IntoIterator<Item = String>) -> ContractCall {
        ContractCall { function, args: args.into_iter().map(Bytes::from).collect() }
    }
}

/// A workload to run against a network.
pub trait Workload: Send + Sync {
    /// The workload's name, which is also the figure's.
    fn name(&self) -> &'static str;

    /// The contract that it calls.
    fn contract(&self) -> &'static str;

    /// The parameters, for the report.
    fn parameters(&self) -> Map<String, Value>;

    /// The calls that load the data. They may run at the same time and in any order.
    fn load(&self) -> Vec<ContractCall>;

    /// The generator of client number `client`, which depends only on the parameters, that number and `random`.
    fn generator(&self, client: usize, random: Random) -> Box<dyn CallGenerator>;
}

/// One client's endless sequence of calls.
pub trait CallGenerator: Send {
    /// The next call.
    fn next(&mut self) -> ContractCall;
}

/// The generator of client `client` in a run with `seed`.
pub fn client_random(seed: u64, client: usize) -> Random {
    // Seeds of adjacent clients must differ in all bits, or their sequences would be shifted copies of each other.
    let mut mixer = Random::new(seed ^ (client as u64).wrapping_mul(0xd6e8_feb8_6659_fd93));
    Random::new(mixer.draw())
}

/// How a workload chooses among its items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyChoice {
    /// Each item equally often.
    Uniform,
    /// By Zipf's law with this exponent, which is above 0; item 0 most often.
    Zipf(f64),
}

impl KeyChoice {
    fn over(self, items: u64) -> Zipf {
        Zipf::new(items, if let KeyChoice::Zipf(theta) = self { theta } else { 0.0 })
    }

    fn to_json(self) -> Value {
        match self {
            KeyChoice::Uniform => "uniform".into(),
            KeyChoice::Zipf(theta) => format!("zipf {theta}").into(),
        }
    }
}

/// Exponents that [`KeyChoice::Zipf`] may have.
pub const ZIPF_EXPONENTS: std::ops::RangeInclusive<f64> = 0.01..=4.0;

/// `0..total` in chunks of at most `step`, as (start, count).
fn chunks(total: u64, step: u64) -> impl Iterator<Item = (u64, u64)> {
    assert!(step > 0, "a piece holds something");
    (0..total.div_ceil(step)).map(move |piece| (piece * step, step.min(total - piece * step)))
}

#[cfg(test)]
mod tests {
    use contract::ContractRegistry;
    use contract::model::ModelLedger;

    use super::*;

    /// Loads a workload's data into the model of a ledger, runs calls there one after another, and returns the
    /// contract's messages for the calls that it rejected.
    pub(super) fn execute(workload: &dyn Workload, calls: impl Iterator<Item = ContractCall>) -> Vec<String> {
        let mut ledger = ModelLedger::new(ContractRegistry::native());
        let mut run = |call: &ContractCall| {
            let args: Vec<&str> = call.args.iter().map(|arg| std::str::from_utf8(arg).expect("text")).collect();
            ledger.call(workload.contract(), call.function, &args).err()
        };
        for call in workload.load() {
            assert_eq!(run(&call), None, "loading is never refused");
        }
        calls.filter_map(|call| run(&call)).collect()
    }

    #[test]
    fn chunks_cover_everything_once() {
        for (total, step) in [(0, 5), (4, 5), (5, 5), (11, 5)] {
            let mut next = 0;
            for (start, count) in chunks(total, step) {
                assert_eq!(start, next);
                assert!((1..=step).contains(&count));
                next += count;
            }
            assert_eq!(next, total);
        }
    }

    #[test]
    fn neighbouring_clients_draw_unrelated_numbers() {
        let mut seen = std::collections::BTreeSet::new();
        for client in 0..400 {
            let mut random = client_random(1, client);
            (0..100).for_each(|_| assert!(seen.insert(random.draw()), "client {client} repeats a number"));
        }
    }
}
