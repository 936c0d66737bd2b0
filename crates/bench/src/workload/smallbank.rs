//! SmallBank: money moved between customers' savings and checking accounts.
//!
//! A transaction is one of the five that modify, equally often, with a probability of `writes_percent` in a hundred, and
//! otherwise a customer's balance (FlexChain, section 6.1). Two customers of one transaction are different.
//!
//! Customers whose money went elsewhere cannot pay: the contract refuses, no transaction results, and the driver counts
//! the refusal. Deposits are much larger than payments, so that this stays rare.

use contract::contracts::smallbank::{LOAD_BYTES_MAX, LOAD_CUSTOMERS_MAX};
use serde_json::{Map, Value};

use super::{Call, Choice, Generator, Workload, pieces};
use crate::random::Random;
use crate::zipf::Zipf;

/// What a customer's two accounts hold at first.
const BALANCE: u64 = 1_000_000;
const DEPOSIT_MAX: u64 = 100_000;
const PAYMENT_MAX: u64 = 100;
/// Customers that one call loads: small blocks of work, so that progress shows.
const LOAD_STEP: u64 = 1_000;

/// The workload's parameters.
#[derive(Clone, Debug)]
pub struct SmallBank {
    /// Number of customers, at least 2.
    pub accounts: u64,
    /// How many of a hundred transactions modify.
    pub writes_percent: u64,
    /// How customers are chosen.
    pub choice: Choice,
    /// Bytes of each account's record; 8 is a balance and nothing else.
    pub record_bytes: u64,
}

impl Default for SmallBank {
    fn default() -> SmallBank {
        SmallBank { accounts: 10_000, writes_percent: 95, choice: Choice::Uniform, record_bytes: 8 }
    }
}

impl Workload for SmallBank {
    fn name(&self) -> &'static str {
        "smallbank"
    }

    fn contract(&self) -> &'static str {
        "smallbank"
    }

    fn parameters(&self) -> Map<String, Value> {
        Map::from_iter([
            ("accounts".to_owned(), self.accounts.into()),
            ("writes_percent".to_owned(), self.writes_percent.into()),
            ("choice".to_owned(), self.choice.to_json()),
            ("record_bytes".to_owned(), self.record_bytes.into()),
        ])
    }

    fn load(&self) -> Vec<Call> {
        let step = (LOAD_BYTES_MAX / 8 / self.record_bytes).clamp(1, LOAD_STEP.min(LOAD_CUSTOMERS_MAX));
        pieces(self.accounts, step)
            .map(|(start, count)| {
                let numbers = [start, count, BALANCE, BALANCE, self.record_bytes];
                Call::new("load", numbers.map(|number| number.to_string()))
            })
            .collect()
    }

    fn generator(&self, _client: usize, random: Random) -> Box<dyn Generator> {
        assert!(self.accounts >= 2, "payments need two customers");
        Box::new(Client {
            random,
            customers: self.choice.over(self.accounts),
            accounts: self.accounts,
            writes_percent: self.writes_percent,
        })
    }
}

struct Client {
    random: Random,
    customers: Zipf,
    accounts: u64,
    writes_percent: u64,
}

impl Client {
    fn amount(&mut self, max: u64) -> String {
        (1 + self.random.below(max)).to_string()
    }

    fn customer(&mut self) -> u64 {
        self.customers.draw(&mut self.random)
    }

    /// Two different customers.
    fn pair(&mut self) -> [String; 2] {
        let first = self.customer();
        let mut second = self.customer();
        if first == second {
            second = (first + 1 + self.random.below(self.accounts - 1)) % self.accounts;
        }
        [first.to_string(), second.to_string()]
    }
}

impl Generator for Client {
    fn next(&mut self) -> Call {
        if !self.random.percent(self.writes_percent) {
            return Call::new("balance", [self.customer().to_string()]);
        }
        match self.random.below(5) {
            0 => Call::new("transact_savings", [self.amount(DEPOSIT_MAX), self.customer().to_string()]),
            1 => Call::new("deposit_checking", [self.amount(DEPOSIT_MAX), self.customer().to_string()]),
            2 => {
                let [destination, source] = self.pair();
                Call::new("send_payment", [self.amount(PAYMENT_MAX), destination, source])
            }
            3 => Call::new("write_check", [self.amount(PAYMENT_MAX), self.customer().to_string()]),
            _ => Call::new("amalgamate", self.pair()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::execute;
    use super::*;

    #[test]
    fn calls_are_drawn_in_the_given_proportions_and_the_contract_takes_them() {
        let bank = SmallBank { accounts: 100, ..SmallBank::default() };
        let mut generator = bank.generator(0, Random::new(5));
        let mut counts = BTreeMap::<&str, u32>::new();
        let calls: Vec<Call> = (0..20_000).map(|_| generator.next()).collect();
        calls.iter().for_each(|call| *counts.entry(call.function).or_default() += 1);
        assert_eq!(counts.len(), 6);
        for (function, count) in counts {
            let expected = if function == "balance" { 1_000 } else { 3_800 };
            assert!(count.abs_diff(expected) < expected / 5, "{function} was drawn {count} times");
        }
        let refused = execute(&bank, calls.into_iter().take(500));
        assert!(refused.len() < 50, "{refused:?}");
        assert!(refused.iter().all(|refusal| refusal.contains("less than")), "{refused:?}");
    }

    #[test]
    fn pairs_are_different_even_of_two_customers() {
        let bank = SmallBank { accounts: 2, writes_percent: 100, ..SmallBank::default() };
        let mut generator = bank.generator(0, Random::new(5));
        for call in (0..1_000).map(|_| generator.next()).filter(|call| call.function == "amalgamate") {
            assert_ne!(call.args[0], call.args[1]);
        }
    }

    #[test]
    fn large_records_are_loaded_in_small_steps() {
        let bank = SmallBank { accounts: 30_000, record_bytes: 64 << 10, ..SmallBank::default() };
        assert!(bank.load().len() > 100);
    }
}
