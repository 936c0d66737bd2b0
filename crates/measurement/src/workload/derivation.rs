//! Derived records: each transaction reads several records and writes another one, all chosen alike.
//!
//! Under skew, most transactions of a block read records that others of the block write, as in the evaluations of Fabric++ and
//! FabricSharp, whose transactions also read and write several hot records.

use contract::contracts::ycsb::{DERIVED_FROM_MAX, record_key, record_value};
use serde_json::{Map, Value};

use super::ycsb::Ycsb;
use super::{CallGenerator, ContractCall, KeyChoice, Workload};
use crate::random::Random;
use crate::zipf::Zipf;

/// The workload's parameters.
#[derive(Clone, Debug)]
pub struct Derivation {
    /// Number of records.
    pub records: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Records that a transaction reads.
    pub reads: usize,
    /// How keys are chosen.
    pub choice: KeyChoice,
}

impl Default for Derivation {
    fn default() -> Derivation {
        Derivation { records: 10_000, value_bytes: 100, reads: 5, choice: KeyChoice::Uniform }
    }
}

impl Derivation {
    fn records(&self) -> Ycsb {
        Ycsb { records: self.records, value_bytes: self.value_bytes, ..Ycsb::default() }
    }
}

impl Workload for Derivation {
    fn name(&self) -> &'static str {
        "derivation"
    }

    fn contract(&self) -> &'static str {
        "ycsb"
    }

    fn parameters(&self) -> Map<String, Value> {
        Map::from_iter([
            ("records".to_owned(), self.records.into()),
            ("value_bytes".to_owned(), self.value_bytes.into()),
            ("reads".to_owned(), self.reads.into()),
            ("choice".to_owned(), self.choice.to_json()),
        ])
    }

    fn load(&self) -> Vec<ContractCall> {
        self.records().load()
    }

    fn generator(&self, _client: usize, random: Random) -> Box<dyn CallGenerator> {
        let (reads, keys) = (self.reads, self.choice.over(self.records));
        assert!(reads <= DERIVED_FROM_MAX && (reads as u64) < self.records, "there are records to read and to write");
        Box::new(DerivationClient { random, keys, reads, value_bytes: self.value_bytes })
    }
}

struct DerivationClient {
    random: Random,
    keys: Zipf,
    reads: usize,
    value_bytes: usize,
}

impl CallGenerator for DerivationClient {
    fn next(&mut self) -> ContractCall {
        let mut chosen: Vec<u64> = Vec::with_capacity(self.reads + 1);
        while chosen.len() <= self.reads {
            let number = self.keys.draw(&mut self.random);
            if !chosen.contains(&number) {
                chosen.push(number);
            }
        }
        let written = chosen.pop().expect("one more than it reads");
        let keys: Vec<String> = chosen.into_iter().map(record_key).collect();
        let value = record_value(self.random.draw(), written, self.value_bytes);
        ContractCall { function: "derive", args: vec![keys.join(",").into(), record_key(written).into(), value] }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::execute;
    use super::*;

    #[test]
    fn a_transaction_reads_and_writes_different_records_and_the_contract_takes_it() {
        let workload = Derivation { records: 50, choice: KeyChoice::Zipf(0.99), ..Derivation::default() };
        let mut generator = workload.generator(1, Random::new(3));
        let calls: Vec<ContractCall> = (0..300).map(|_| generator.next()).collect();
        for call in &calls {
            let text = |at: usize| std::str::from_utf8(&call.args[at]).expect("text");
            let keys: BTreeSet<&str> = text(0).split(',').chain([text(1)]).collect();
            assert_eq!(keys.len(), 6, "{keys:?}");
        }
        assert_eq!(execute(&workload, calls.into_iter()), Vec::<String>::new());
    }
}
