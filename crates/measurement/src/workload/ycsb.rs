//! YCSB: reads and writes of opaque records under keys.
//!
//! The mixes are YCSB's core workloads by letter (A to F), or any other proportions. The "latest" keys of workload D are
//! approximated by keys among the loaded records, because the latest record is not known before it commits.

use std::fmt;
use std::str::FromStr;

use base::Bytes;
use contract::contracts::ycsb::{LOAD_BYTES_MAX, SCAN_RECORDS_MAX, record_key};
use serde_json::{Map, Value};

use super::{CallGenerator, ContractCall, KeyChoice, Workload, chunks};
use crate::random::Random;
use crate::zipf::Zipf;

/// Records that one call loads: small blocks of work, so that progress shows.
const LOAD_STEP: u64 = 500;
/// Bytes of values that one call loads, for the same reason.
const LOAD_STEP_BYTES: u64 = 2 << 20;
/// Key numbers that the inserts of one client can use in one run.
const INSERTS_PER_CLIENT: u64 = 100_000;
/// Clients whose inserts cannot collide.
const INSERTING_CLIENTS: u64 = 10_000;
/// Seeds whose inserts cannot collide, so that a running network can be measured again with another seed.
const INSERTING_SEEDS: u64 = 900;
const SCAN_RECORDS: u64 = 100;

/// How often each operation occurs, in parts of a hundred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YcsbMix {
    read: u64,
    update: u64,
    read_modify_write: u64,
    scan: u64,
    insert: u64,
}

/// Why a text is not a mix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a mix: a letter from a to f, or parts that add up to 100 such as read=50,update=40,scan=10 \
         (read, update, rmw, scan, insert)"
)]
pub struct MixParseError(String);

impl YcsbMix {
    /// Half reads, half updates.
    pub const A: YcsbMix = YcsbMix { read: 50, update: 50, read_modify_write: 0, scan: 0, insert: 0 };

    fn parts(&mut self) -> [(&'static str, &mut u64); 5] {
        [
            ("read", &mut self.read),
            ("update", &mut self.update),
            ("rmw", &mut self.read_modify_write),
            ("scan", &mut self.scan),
            ("insert", &mut self.insert),
        ]
    }
}

impl FromStr for YcsbMix {
    type Err = MixParseError;

    fn from_str(text: &str) -> Result<YcsbMix, MixParseError> {
        let mut mix = YcsbMix { read: 0, update: 0, read_modify_write: 0, scan: 0, insert: 0 };
        match text.to_ascii_lowercase().as_str() {
            "a" => return Ok(YcsbMix::A),
            "b" => (mix.read, mix.update) = (95, 5),
            "c" => mix.read = 100,
            "d" => (mix.read, mix.insert) = (95, 5),
            "e" => (mix.scan, mix.insert) = (95, 5),
            "f" => (mix.read, mix.read_modify_write) = (50, 50),
            parts => {
                let mut total = 0u64;
                for part in parts.split(',') {
                    let refused = || MixParseError(text.to_owned());
                    let (name, value) = part.split_once('=').ok_or_else(refused)?;
                    let value: u64 = value.trim().parse().ok().filter(|value| *value <= 100).ok_or_else(refused)?;
                    let mut known = mix.parts();
                    let (_, slot) = known.iter_mut().find(|(known, _)| *known == name.trim()).ok_or_else(refused)?;
                    **slot = value;
                    total += value;
                }
                if total != 100 {
                    return Err(MixParseError(text.to_owned()));
                }
            }
        }
        Ok(mix)
    }
}

impl fmt::Display for YcsbMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mix = *self;
        let parts = mix.parts();
        let named: Vec<String> =
            parts.iter().filter(|(_, part)| **part > 0).map(|(name, part)| format!("{name}={part}")).collect();
        f.write_str(&named.join(","))
    }
}

/// The workload's parameters.
#[derive(Clone, Debug)]
pub struct Ycsb {
    /// Number of records.
    pub records: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// How often each operation occurs.
    pub mix: YcsbMix,
    /// How keys are chosen.
    pub choice: KeyChoice,
    /// Fixes the loaded values, and the keys of inserts.
    pub seed: u64,
}

impl Default for Ycsb {
    fn default() -> Ycsb {
        Ycsb { records: 10_000, value_bytes: 1_024, mix: YcsbMix::A, choice: KeyChoice::Uniform, seed: 1 }
    }
}

impl Workload for Ycsb {
    fn name(&self) -> &'static str {
        "ycsb"
    }

    fn contract(&self) -> &'static str {
        "ycsb"
    }

    fn parameters(&self) -> Map<String, Value> {
        Map::from_iter([
            ("records".to_owned(), self.records.into()),
            ("value_bytes".to_owned(), self.value_bytes.into()),
            ("mix".to_owned(), self.mix.to_string().into()),
            ("choice".to_owned(), self.choice.to_json()),
        ])
    }

    fn load(&self) -> Vec<ContractCall> {
        let value_bytes = self.value_bytes as u64;
        let step = (LOAD_STEP_BYTES.min(LOAD_BYTES_MAX) / value_bytes).clamp(1, LOAD_STEP);
        chunks(self.records, step)
            .map(|(start, count)| {
                ContractCall::new("load", [start, count, value_bytes, self.seed].map(|number| number.to_string()))
            })
            .collect()
    }

    fn generator(&self, client: usize, random: Random) -> Box<dyn CallGenerator> {
        let seed_slot = Random::new(self.seed).below(INSERTING_SEEDS);
        let client_slot = client as u64 % INSERTING_CLIENTS;
        let insert_first = self.records + (seed_slot * INSERTING_CLIENTS + client_slot) * INSERTS_PER_CLIENT;
        Box::new(YcsbClient {
            random,
            keys: self.choice.over(self.records),
            mix: self.mix,
            value_bytes: self.value_bytes,
            insert_first,
            inserts: 0,
        })
    }
}

struct YcsbClient {
    random: Random,
    keys: Zipf,
    mix: YcsbMix,
    value_bytes: usize,
    insert_first: u64,
    inserts: u64,
}

impl YcsbClient {
    fn key(&mut self) -> Bytes {
        record_key(self.keys.draw(&mut self.random)).into()
    }

    /// Printable text, as a proposal's arguments must be.
    fn value(&mut self) -> Bytes {
        const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut value = Vec::with_capacity(self.value_bytes);
        while value.len() < self.value_bytes {
            let draw = self.random.draw().to_le_bytes();
            let wanted = draw.len().min(self.value_bytes - value.len());
            value.extend(draw[..wanted].iter().map(|byte| ALPHABET[usize::from(byte & 63)]));
        }
        value.into()
    }
}

impl CallGenerator for YcsbClient {
    fn next(&mut self) -> ContractCall {
        let mix = self.mix;
        let mut draw = self.random.below(100);
        let mut falls_in = |part: u64| {
            let inside = draw < part;
            draw = draw.wrapping_sub(part);
            inside
        };
        if falls_in(mix.read) {
            ContractCall { function: "read", args: vec![self.key()] }
        } else if falls_in(mix.update) {
            ContractCall { function: "update", args: vec![self.key(), self.value()] }
        } else if falls_in(mix.read_modify_write) {
            ContractCall { function: "readModifyWrite", args: vec![self.key(), self.value()] }
        } else if falls_in(mix.scan) {
            let count = 1 + self.random.below(SCAN_RECORDS.min(SCAN_RECORDS_MAX));
            ContractCall { function: "scan", args: vec![self.key(), count.to_string().into()] }
        } else {
            let number = self.insert_first + self.inserts % INSERTS_PER_CLIENT;
            self.inserts += 1;
            ContractCall { function: "insert", args: vec![record_key(number).into(), self.value()] }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::execute;
    use super::*;

    #[test]
    fn mixes_are_read_and_printed() {
        for (text, printed) in [
            ("a", "read=50,update=50"),
            ("E", "scan=95,insert=5"),
            ("f", "read=50,rmw=50"),
            ("rmw=10, read=90", "read=90,rmw=10"),
        ] {
            assert_eq!(text.parse::<YcsbMix>().map(|mix| mix.to_string()), Ok(printed.to_owned()));
        }
        for text in ["", "g", "read=50", "read=50,update=51", "read=-1,update=101", "write=100", "read"] {
            assert!(text.parse::<YcsbMix>().is_err(), "{text}");
        }
    }

    #[test]
    fn calls_are_drawn_in_the_given_proportions_and_the_contract_takes_them() {
        let mix = "read=40,update=30,rmw=10,scan=10,insert=10".parse().expect("a mix");
        let ycsb = Ycsb { records: 50, value_bytes: 100, mix, ..Ycsb::default() };
        let mut generator = ycsb.generator(3, Random::new(5));
        let calls: Vec<ContractCall> = (0..10_000).map(|_| generator.next()).collect();
        let mut counts = BTreeMap::<&str, u64>::new();
        calls.iter().for_each(|call| *counts.entry(call.function).or_default() += 1);
        for (function, expected) in
            [("read", 4_000), ("update", 3_000), ("readModifyWrite", 1_000), ("scan", 1_000), ("insert", 1_000)]
        {
            let count = counts[function];
            assert!(count.abs_diff(expected) < expected / 5, "{function} was drawn {count} times");
        }
        let values = calls.iter().filter(|call| matches!(call.function, "update" | "insert"));
        assert!(values.clone().all(|call| call.args[1].len() == 100 && call.args[1].is_ascii()));
        assert_eq!(execute(&ycsb, calls.into_iter().take(400)), Vec::<String>::new());
    }

    #[test]
    fn inserts_of_different_clients_and_seeds_never_meet() {
        let mix: YcsbMix = "insert=100".parse().expect("a mix");
        let mut keys = std::collections::BTreeSet::new();
        for seed in [1, 2, 3] {
            for client in 0..50 {
                let ycsb = Ycsb { mix, seed, value_bytes: 1, ..Ycsb::default() };
                let mut generator = ycsb.generator(client, Random::new(0));
                (0..100).for_each(|_| assert!(keys.insert(generator.next().args.swap_remove(0))));
            }
        }
    }

    #[test]
    fn large_values_are_loaded_in_small_steps() {
        let ycsb = Ycsb { value_bytes: 10_240, ..Ycsb::default() };
        assert!(ycsb.load().len() >= 49);
    }
}
