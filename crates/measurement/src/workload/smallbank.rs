//! SmallBank: moves money between customers' savings and checking accounts.
//!
//! `writes_percent` of the transactions are of the five modifying kinds, all equally likely. The others read a
//! customer's balance (FlexChain, section 6.1). If a transaction has two customers, they are different.
//!
//! A customer without enough money cannot pay: the contract rejects the call, no transaction results, and the driver counts the
//! rejection. Deposits are much larger than payments, so such rejections are rare.

use contract::contracts::smallbank::{LOAD_BYTES_MAX, LOAD_CUSTOMERS_MAX};
use serde_json::{Map, Value};

use super::{CallGenerator, ContractCall, KeyChoice, Workload, chunks};
use crate::random::Random;
use crate::zipf::Zipf;

/// The initial balance of a customer's two accounts.
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
    pub choice: KeyChoice,
    /// Bytes of each account's record; 8 is a balance alone.
    pub record_bytes: u64,
}

impl Default for SmallBank {
    fn default() -> SmallBank {
        SmallBank { accounts: 10_000, writes_percent: 95, choice: KeyChoice::Uniform, record_bytes: 8 }
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

    fn load(&self) -> Vec<ContractCall> {
        let step = (LOAD_BYTES_MAX / 8 / self.record_bytes).clamp(1, LOAD_STEP.min(LOAD_CUSTOMERS_MAX));
        chunks(self.accounts, step)
            .map(|(start, count)| {
                let numbers = [start, count, BALANCE, BALANCE, self.record_bytes];
                ContractCall::new("load", numbers.map(|number| number.to_string()))
            })
            .collect()
    }

    fn generator(&self, _client: usize, random: Random) -> Box<dyn CallGenerator> {
        assert!(self.accounts >= 2, "payments need two customers");
        Box::new(SmallBankClient {
            random,
            customers: self.choice.over(self.accounts),
            accounts: self.accounts,
            writes_percent: self.writes_percent,
        })
    }
}

struct SmallBankClient {
    random: Random,
    customers: Zipf,
    accounts: u64,
    writes_percent: u64,
}

impl SmallBankClient {
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

impl CallGenerator for SmallBankClient {
    fn next(&mut self) -> ContractCall {
        if !self.random.percent(self.writes_percent) {
            return ContractCall::new("balance", [self.customer().to_string()]);
        }
        match self.random.below(5) {
            0 => ContractCall::new("transact_savings", [self.amount(DEPOSIT_MAX), self.customer().to_string()]),
            1 => ContractCall::new("deposit_checking", [self.amount(DEPOSIT_MAX), self.customer().to_string()]),
            2 => {
                let [destination, source] = self.pair();
                ContractCall::new("send_payment", [self.amount(PAYMENT_MAX), destination, source])
            }
            3 => ContractCall::new("write_check", [self.amount(PAYMENT_MAX), self.customer().to_string()]),
            _ => ContractCall::new("amalgamate", self.pair()),
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
        let calls: Vec<ContractCall> = (0..20_000).map(|_| generator.next()).collect();
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
