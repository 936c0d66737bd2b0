//! The clients' requests: calls of the compiled-in contracts on few keys. Some keys are used far more often than others, so
//! that transactions conflict.

use std::collections::BTreeMap;

use base::Bytes;
use base::rt::simulation::Prng;
use contract::contracts::ycsb;

use super::vault;
use crate::scenario::Scenario;
use crate::vault::VAULT;

/// The initial balance of every customer's accounts.
pub const BALANCE: i64 = 1_000_000;
/// All sums that move are multiples of this, so that the fees of overdrafts, which are 1, can be distinguished.
pub const UNIT: i64 = 1_000;
const RECORD_BYTES: usize = 24;
/// The function of `basic` that returns an asset's history.
pub const HISTORY_FUNCTION: &str = "GetAssetHistory";
/// One call in this many uses private data, if the seed has any.
const PRIVATE_ONE_IN: u64 = 4;
/// Ids of assets.
const ASSETS: u64 = 12;

/// One call of a contract.
#[derive(Clone, Debug)]
pub struct ContractCall {
    /// The contract's name.
    pub contract: &'static str,
    /// The function's name, then its arguments.
    pub args: Vec<Bytes>,
    /// The money that the call creates, without a fee.
    pub money: i64,
    /// Whether there may be a fee of 1.
    pub may_cost: bool,
}

impl ContractCall {
    /// A call that creates no money and has no fee.
    pub fn new<const N: usize>(contract: &'static str, function: &str, args: [String; N]) -> ContractCall {
        let args = std::iter::once(function.to_owned()).chain(args).map(Bytes::from).collect();
        ContractCall { contract, args, money: 0, may_cost: false }
    }

    fn with_money(self, money: i64) -> ContractCall {
        ContractCall { money, ..self }
    }

    /// The asset whose history is asked for, if one is.
    pub fn asks_history_of(&self) -> Option<&str> {
        let [function, id] = &self.args[..] else { return None };
        (self.contract == "basic" && function == HISTORY_FUNCTION).then(|| std::str::from_utf8(id).ok())?
    }

    /// Whether it reads private data.
    pub fn reads_private(&self) -> bool {
        self.contract == VAULT && matches!(&self.args[0][..], b"get" | b"replace")
    }

    /// Whether it writes private data.
    pub fn writes_private(&self) -> bool {
        self.contract == VAULT && self.args[0][..] != *b"get"
    }

    /// The name of the function and its arguments.
    pub fn text(&self) -> String {
        let args: Vec<String> = self.args.iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
        format!("{} {}", self.contract, args.join(" "))
    }
}

/// The calls that load the ledger before clients start.
pub fn loads(scenario: &Scenario) -> Vec<ContractCall> {
    let customers = scenario.customers.to_string();
    let balance = BALANCE.to_string();
    vec![
        ContractCall::new("smallbank", "load", ["0".into(), customers, balance.clone(), balance])
            .with_money(2 * BALANCE * scenario.customers as i64),
        ContractCall::new(
            "ycsb",
            "load",
            ["0".into(), scenario.records.to_string(), RECORD_BYTES.to_string(), "7".into()],
        ),
        ContractCall::new("basic", "InitLedger", []),
    ]
}

/// Keys that clients write and delete, by contract, whether they exist or not.
pub fn keys(scenario: &Scenario) -> BTreeMap<&'static str, Vec<String>> {
    let accounts =
        (0..scenario.customers).flat_map(|number| ["checking", "savings"].map(|of| format!("{of}_{number}")));
    let assets = (1..=ASSETS).map(|number| format!("asset{number}"));
    BTreeMap::from([
        ("smallbank", accounts.collect()),
        ("ycsb", (0..scenario.records).map(ycsb::record_key).collect()),
        ("basic", assets.collect()),
    ])
}

/// Draws calls.
pub struct Workload {
    customers: u64,
    records: u64,
    inserted: u64,
    has_private: bool,
}

impl Workload {
    /// The workload over the customers and records of a scenario.
    pub fn new(scenario: &Scenario) -> Workload {
        Workload {
            customers: scenario.customers,
            records: scenario.records,
            inserted: 0,
            has_private: scenario.private_data.is_some(),
        }
    }

    /// The next call.
    pub fn draw(&mut self, rng: &mut Prng) -> ContractCall {
        if self.has_private && rng.one_in(PRIVATE_ONE_IN) {
            return vault::draw(rng);
        }
        match rng.below(20) {
            0..=10 => self.smallbank(rng),
            11..=15 => self.ycsb(rng),
            _ => basic(rng),
        }
    }

    fn smallbank(&mut self, rng: &mut Prng) -> ContractCall {
        let amount = UNIT * (1 + rng.below(200) as i64);
        let (one, other) = (skewed(rng, self.customers).to_string(), skewed(rng, self.customers).to_string());
        let call = |function, args| ContractCall::new("smallbank", function, args);
        match rng.below(8) {
            0..=2 => ContractCall::new("smallbank", "send_payment", [amount.to_string(), one, other]),
            3 => call("deposit_checking", [amount.to_string(), one]).with_money(amount),
            4 => {
                let amount = if rng.one_in(2) { amount } else { -amount };
                call("transact_savings", [amount.to_string(), one]).with_money(amount)
            }
            5 => ContractCall { may_cost: true, ..call("write_check", [amount.to_string(), one]).with_money(-amount) },
            6 => call("amalgamate", [one, other]),
            _ => ContractCall::new("smallbank", "balance", [one]),
        }
    }

    fn ycsb(&mut self, rng: &mut Prng) -> ContractCall {
        let record = skewed(rng, self.records);
        let key = ycsb::record_key(record);
        let value = format!("{:0RECORD_BYTES$x}", rng.number());
        let call = |function, args| ContractCall::new("ycsb", function, args);
        match rng.below(10) {
            0..=1 => call("update", [key, value]),
            2..=4 => call("readModifyWrite", [key, value]),
            5..=6 => {
                self.inserted += 1;
                // Between the other keys, in the ranges of scans.
                let key = format!("{key}+{}", rng.below(self.inserted + 3));
                call("insert", [key, value])
            }
            7..=8 => call("scan", [key, (1 + rng.below(8)).to_string()]),
            // All records; more than fifty are summarised.
            _ => call("scan", [ycsb::record_key(0), "1000".into()]),
        }
    }
}

fn basic(rng: &mut Prng) -> ContractCall {
    let id = format!("asset{}", 1 + skewed(rng, ASSETS));
    let owner = format!("owner{}", rng.below(100));
    let value = rng.below(1_000).to_string();
    let asset = |id| [id, "blue".into(), "5".into(), owner.clone(), value.clone()];
    match rng.below(11) {
        9..=10 => ContractCall::new("basic", HISTORY_FUNCTION, [id]),
        0..=1 => ContractCall::new("basic", "CreateAsset", asset(id)),
        2 => ContractCall::new("basic", "UpdateAsset", asset(id)),
        3..=5 => ContractCall::new("basic", "TransferAsset", [id, owner]),
        6..=7 => ContractCall::new("basic", "DeleteAsset", [id]),
        _ => ContractCall::new("basic", "GetAllAssets", []),
    }
}

/// A number below `count`, small ones far more often.
pub(super) fn skewed(rng: &mut Prng, count: u64) -> u64 {
    let most = rng.below(count);
    let fewer = rng.below(most + 1);
    rng.below(fewer + 1)
}
