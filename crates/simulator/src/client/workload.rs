//! What clients ask for: calls of the compiled-in contracts, on few keys and some of them far oftener than others, so that
//! transactions meet.

use std::collections::BTreeMap;

use base::Bytes;
use base::rt::simulation::Chance;
use contract::contracts::ycsb;

use crate::scenario::Scenario;

/// What every customer's accounts hold at first.
pub const BALANCE: i64 = 1_000_000;
/// All sums that move are whole numbers of this, so that the fees of overdrafts, which are 1, can be told apart.
pub const UNIT: i64 = 1_000;
const RECORD_BYTES: usize = 24;
/// The function of `basic` that answers what an asset was.
pub const HISTORY: &str = "GetAssetHistory";
/// Ids of assets.
const ASSETS: u64 = 12;

/// One call of a contract.
#[derive(Clone, Debug)]
pub struct Call {
    pub contract: &'static str,
    pub args: Vec<Bytes>,
    /// How much money there will be more, but for a fee.
    pub money: i64,
    /// Whether there may be a fee of 1.
    pub may_cost: bool,
}

impl Call {
    pub fn new<const N: usize>(contract: &'static str, function: &str, args: [String; N]) -> Call {
        let args = std::iter::once(function.to_owned()).chain(args).map(Bytes::from).collect();
        Call { contract, args, money: 0, may_cost: false }
    }

    fn with_money(self, money: i64) -> Call {
        Call { money, ..self }
    }

    /// The asset whose history is asked for, if one is.
    pub fn asks_history_of(&self) -> Option<&str> {
        let [function, id] = &self.args[..] else { return None };
        (self.contract == "basic" && function == HISTORY).then(|| std::str::from_utf8(id).ok())?
    }

    /// The name of the function and its arguments.
    pub fn text(&self) -> String {
        let args: Vec<String> = self.args.iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
        format!("{} {}", self.contract, args.join(" "))
    }
}

/// What is on the ledger before clients start.
pub fn loads(scenario: &Scenario) -> Vec<Call> {
    let customers = scenario.customers.to_string();
    let balance = BALANCE.to_string();
    vec![
        Call::new("smallbank", "load", ["0".into(), customers, balance.clone(), balance])
            .with_money(2 * BALANCE * scenario.customers as i64),
        Call::new("ycsb", "load", ["0".into(), scenario.records.to_string(), RECORD_BYTES.to_string(), "7".into()]),
        Call::new("basic", "InitLedger", []),
    ]
}

/// Keys that clients write and delete, by contract, whether they are there or not.
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
}

impl Workload {
    pub fn new(scenario: &Scenario) -> Workload {
        Workload { customers: scenario.customers, records: scenario.records, inserted: 0 }
    }

    /// The next call.
    pub fn draw(&mut self, chance: &mut Chance) -> Call {
        match chance.below(20) {
            0..=10 => self.smallbank(chance),
            11..=15 => self.ycsb(chance),
            _ => basic(chance),
        }
    }

    fn smallbank(&mut self, chance: &mut Chance) -> Call {
        let amount = UNIT * (1 + chance.below(200) as i64);
        let (one, other) = (skewed(chance, self.customers).to_string(), skewed(chance, self.customers).to_string());
        let call = |function, args| Call::new("smallbank", function, args);
        match chance.below(8) {
            0..=2 => Call::new("smallbank", "send_payment", [amount.to_string(), one, other]),
            3 => call("deposit_checking", [amount.to_string(), one]).with_money(amount),
            4 => {
                let amount = if chance.one_in(2) { amount } else { -amount };
                call("transact_savings", [amount.to_string(), one]).with_money(amount)
            }
            5 => Call { may_cost: true, ..call("write_check", [amount.to_string(), one]).with_money(-amount) },
            6 => call("amalgamate", [one, other]),
            _ => Call::new("smallbank", "balance", [one]),
        }
    }

    fn ycsb(&mut self, chance: &mut Chance) -> Call {
        let record = skewed(chance, self.records);
        let key = ycsb::record_key(record);
        let value = format!("{:0RECORD_BYTES$x}", chance.number());
        let call = |function, args| Call::new("ycsb", function, args);
        match chance.below(10) {
            0..=1 => call("update", [key, value]),
            2..=4 => call("readModifyWrite", [key, value]),
            5..=6 => {
                self.inserted += 1;
                // Between the others, where scans come by.
                let key = format!("{key}+{}", chance.below(self.inserted + 3));
                call("insert", [key, value])
            }
            7..=8 => call("scan", [key, (1 + chance.below(8)).to_string()]),
            // All there is, which is summarised where it is more than fifty records.
            _ => call("scan", [ycsb::record_key(0), "1000".into()]),
        }
    }
}

fn basic(chance: &mut Chance) -> Call {
    let id = format!("asset{}", 1 + skewed(chance, ASSETS));
    let owner = format!("owner{}", chance.below(100));
    let value = chance.below(1_000).to_string();
    let asset = |id| [id, "blue".into(), "5".into(), owner.clone(), value.clone()];
    match chance.below(11) {
        9..=10 => Call::new("basic", HISTORY, [id]),
        0..=1 => Call::new("basic", "CreateAsset", asset(id)),
        2 => Call::new("basic", "UpdateAsset", asset(id)),
        3..=5 => Call::new("basic", "TransferAsset", [id, owner]),
        6..=7 => Call::new("basic", "DeleteAsset", [id]),
        _ => Call::new("basic", "GetAllAssets", []),
    }
}

/// A number below `count`, the small ones far oftener.
fn skewed(chance: &mut Chance, count: u64) -> u64 {
    let most = chance.below(count);
    let fewer = chance.below(most + 1);
    chance.below(fewer + 1)
}
