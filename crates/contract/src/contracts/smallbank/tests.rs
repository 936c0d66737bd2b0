use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::model::{ModelInvocation, ModelLedger, run};
use crate::{ContractRegistry, StubError};

/// Customers 0 to 3, each with 100 in checking and 50 in savings.
fn bank() -> ModelLedger {
    let mut ledger = ModelLedger::new(ContractRegistry::native());
    ledger.call("smallbank", "load", &["0", "4", "100", "50"]).expect("within bounds");
    ledger
}

fn balances(ledger: &ModelLedger, customer: &str) -> (i64, i64) {
    let balance = |key: Result<String, ContractError>| {
        balance_of(ledger.get("smallbank", &key.expect("a valid id")).expect("exists")).expect("a record")
    };
    (balance(checking_key(customer)), balance(savings_key(customer)))
}

#[test]
fn transactions_move_money_as_the_benchmark_says() {
    /// Checking and savings.
    type Balances = (i64, i64);
    // function, arguments, then what customers 1 and 2 have
    let cases: [(&str, &[&str], Balances, Balances); 12] = [
        ("send_payment", &["30", "2", "1"], (70, 50), (130, 50)),
        ("send_payment", &["100", "2", "1"], (0, 50), (200, 50)),
        ("send_payment", &["30", "1", "1"], (100, 50), (100, 50)),
        ("deposit_checking", &["7", "1"], (107, 50), (100, 50)),
        ("transact_savings", &["7", "1"], (100, 57), (100, 50)),
        ("transact_savings", &["-50", "1"], (100, 0), (100, 50)),
        ("write_check", &["120", "1"], (-20, 50), (100, 50)),
        ("write_check", &["150", "1"], (-50, 50), (100, 50)),
        ("write_check", &["151", "1"], (-52, 50), (100, 50)),
        ("amalgamate", &["2", "1"], (0, 0), (250, 50)),
        ("amalgamate", &["1", "1"], (150, 0), (100, 50)),
        ("balance", &["1"], (100, 50), (100, 50)),
    ];
    for (function, args, one, two) in cases {
        let mut ledger = bank();
        ledger.call("smallbank", function, args).unwrap_or_else(|message| panic!("{function}: {message}"));
        assert_eq!((balances(&ledger, "1"), balances(&ledger, "2")), (one, two), "{function} {args:?}");
        assert_eq!(balances(&ledger, "0"), (100, 50), "others are left alone");
    }
}

#[test]
fn transactions_touch_only_their_accounts() {
    let ledger = bank();
    let cases: [(&str, &[&str], usize, usize); 8] = [
        ("send_payment", &["1", "2", "1"], 2, 2),
        ("deposit_checking", &["1", "1"], 1, 1),
        ("transact_savings", &["1", "1"], 1, 1),
        ("write_check", &["1", "1"], 2, 1),
        ("amalgamate", &["2", "1"], 3, 3),
        ("balance", &["1"], 2, 0),
        ("query", &["1"], 3, 0),
        ("create_account", &["9", "", "0", "0"], 1, 2),
    ];
    for (function, args, reads, writes) in cases {
        let effects = run(ledger.execute(&ModelInvocation::new("smallbank", function, args))).expect("healthy");
        assert!(effects.response.is_endorsable(), "{function}: {}", effects.response.message);
        assert_eq!((effects.reads.len(), effects.writes.len()), (reads, writes), "{function}");
    }
}

#[test]
fn customers_are_created_once_and_queried() {
    let mut ledger = bank();
    ledger.call("smallbank", "create_account", &["ann", "Ann Lee", "10", "20"]).expect("a new customer");
    let customer = ledger.call("smallbank", "query", &["ann"]).expect("exists");
    let expected = r#"{"CustomId":"ann","CustomName":"Ann Lee","SavingsBalance":20,"CheckingBalance":10}"#;
    assert_eq!(customer, expected);
    assert_eq!(ledger.call("smallbank", "balance", &["ann"]).expect("exists"), "30");
    let refused = ledger.call("smallbank", "create_account", &["ann", "", "10", "20"]);
    assert_eq!(refused, Err("customer ann exists already".to_owned()));
}

#[test]
fn bad_transactions_are_refused_with_a_reason() {
    let mut ledger = bank();
    let max = i64::MAX.to_string();
    ledger.call("smallbank", "create_account", &["rich", "", &max, &max]).expect("a new customer");
    let long = "x".repeat(CUSTOMER_BYTES_MAX + 1);
    let cases: [(&str, &[&str], &str); 22] = [
        ("send_payment", &["101", "2", "1"], "the checking account of 1 has 100, less than 101"),
        ("send_payment", &["101", "1", "1"], "less than 101"),
        ("send_payment", &["-1", "2", "1"], "argument amount of send_payment must not be negative: -1"),
        ("send_payment", &["1", "x", "1"], "there is no account checking_x"),
        ("send_payment", &["1", "1", "x"], "there is no account checking_x"),
        ("send_payment", &["1", "rich", "1"], "the balance of account checking_rich would not fit"),
        ("send_payment", &["ten", "2", "1"], "is not an integer"),
        ("send_payment", &["1", "2"], "send_payment takes 3 (amount, destination, source), 2 were given"),
        ("deposit_checking", &["-1", "1"], "must not be negative"),
        ("deposit_checking", &["1", "rich"], "would not fit"),
        ("transact_savings", &["-51", "1"], "the savings account of 1 has less"),
        ("transact_savings", &["1", "rich"], "would not fit"),
        ("write_check", &["-5", "1"], "must not be negative"),
        ("write_check", &["1", "rich"], "would not fit"),
        ("write_check", &["1", "x"], "there is no account savings_x"),
        ("amalgamate", &["1", "rich"], "would not fit"),
        ("amalgamate", &["x", "1"], "there is no account checking_x"),
        ("balance", &["rich"], "would not fit"),
        ("balance", &[""], "a customer's id has 1 to 64 bytes, not 0"),
        ("balance", &[&long], "a customer's id has 1 to 64 bytes, not 65"),
        ("create_account", &["new", "", "-1", "0"], "argument checking of create_account must not be negative"),
        ("steal", &["1"], "contract smallbank has no function named steal"),
    ];
    for (function, args, reason) in cases {
        let message = ledger.call("smallbank", function, args).expect_err(function);
        assert!(message.contains(reason), "{function} {args:?}: {message}");
    }
}

#[test]
fn check_of_the_greatest_amount_does_not_overflow_silently() {
    let mut ledger = bank();
    ledger.call("smallbank", "write_check", &["200", "1"]).expect("overdrawn");
    let message = ledger.call("smallbank", "write_check", &[i64::MAX.to_string().as_str(), "1"]);
    assert!(message.expect_err("too much").contains("would not fit"));
    assert_eq!(balances(&ledger, "1"), (-101, 50));
}

#[test]
fn padding_survives_updates() {
    let mut ledger = ModelLedger::new(ContractRegistry::native());
    ledger.call("smallbank", "load", &["7", "2", "100", "50", "100"]).expect("within bounds");
    ledger.call("smallbank", "send_payment", &["1", "7", "8"]).expect("funds");
    assert!(ledger.rows("smallbank").all(|(_, record)| record.len() == 100));
    assert_eq!(balances(&ledger, "7"), (101, 50));
}

#[test]
fn loads_are_bounded() {
    let mut ledger = bank();
    let cases: [(&[&str], &str); 6] = [
        (&["0", "0", "1", "1"], "must be from 1 to 50000"),
        (&["0", "50001", "1", "1"], "must be from 1 to 50000"),
        (&["18446744073709551615", "1", "1", "1"], "argument start"),
        (&["0", "1", "1", "1", "7"], "must be from 8 to 65536"),
        (&["0", "50000", "1", "1", "1000"], "must be from 8 to 671"),
        (&["0", "1", "-1", "1"], "must not be negative"),
    ];
    for (args, reason) in cases {
        let message = ledger.call("smallbank", "load", args).expect_err(reason);
        assert!(message.contains(reason), "{args:?}: {message}");
    }
}

#[test]
fn damaged_records_and_failing_state_are_told_apart() {
    let mut ledger = bank();
    ledger.set("smallbank", "checking_1", "short");
    let message = ledger.call("smallbank", "balance", &["1"]).expect_err("damaged");
    assert_eq!(message, "the record of an account is too short: checking_1");
    let busy = StubError::State { kind: base::ErrorKind::Retry, message: "behind".into() };
    ledger.fail_reads_from(1, busy.clone());
    let failed = run(ledger.execute(&ModelInvocation::new("smallbank", "balance", &["2"])));
    assert_eq!(failed, Err(busy));
}

/// One transaction of the model that the contract is held against.
#[derive(Debug, Clone)]
struct Step {
    function: &'static str,
    amount: i64,
    one: usize,
    two: usize,
}

const CUSTOMERS: usize = 4;

fn step() -> impl Strategy<Value = Step> {
    let function = prop::sample::select(vec![
        "send_payment",
        "deposit_checking",
        "transact_savings",
        "write_check",
        "amalgamate",
        "balance",
    ]);
    let amount = prop_oneof![8 => -200..400_i64, 1 => Just(i64::MAX), 1 => Just(i64::MIN), 1 => any::<i64>()];
    (function, amount, 0..CUSTOMERS, 0..CUSTOMERS).prop_map(|(function, amount, one, two)| Step {
        function,
        amount,
        one,
        two,
    })
}

/// What each customer has: (checking, savings), wide enough never to overflow.
type Model = BTreeMap<usize, (i128, i128)>;

/// The state after `step`, or nothing when it must be refused.
fn expected(model: &Model, step: &Step) -> Option<Model> {
    let mut next = model.clone();
    let amount = i128::from(step.amount);
    let (checking, savings) = model[&step.one];
    let total = checking + savings;
    match step.function {
        "send_payment" if amount < 0 || model[&step.two].0 < amount => return None,
        "send_payment" => {
            next.get_mut(&step.two)?.0 -= amount;
            next.get_mut(&step.one)?.0 += amount;
        }
        "deposit_checking" | "write_check" if amount < 0 => return None,
        "deposit_checking" => next.get_mut(&step.one)?.0 += amount,
        "transact_savings" if savings + amount < 0 => return None,
        "transact_savings" => next.get_mut(&step.one)?.1 += amount,
        "write_check" => next.get_mut(&step.one)?.0 -= amount + i128::from(total < amount),
        "amalgamate" => {
            let source = next.insert(step.two, (0, 0)).expect("a customer");
            next.get_mut(&step.one)?.0 += source.0 + source.1;
        }
        _ => {}
    }
    let fits = |balance: i128| i64::try_from(balance).is_ok();
    // The sum of a customer's accounts must fit wherever a transaction computes it.
    let sums = match step.function {
        "write_check" | "balance" => total,
        "amalgamate" => model[&step.two].0 + model[&step.two].1,
        _ => 0,
    };
    (fits(sums) && next.values().all(|(checking, savings)| fits(*checking) && fits(*savings))).then_some(next)
}

fn args(step: &Step) -> Vec<String> {
    let (amount, one, two) = (step.amount.to_string(), step.one.to_string(), step.two.to_string());
    match step.function {
        "send_payment" => vec![amount, one, two],
        "amalgamate" => vec![one, two],
        "balance" => vec![one],
        _ => vec![amount, one],
    }
}

proptest! {
    #[test]
    fn money_is_neither_made_nor_lost(steps in prop::collection::vec(step(), 1..60)) {
        let mut ledger = bank();
        let mut model: Model = (0..CUSTOMERS).map(|customer| (customer, (100, 50))).collect();
        for step in &steps {
            let answer = ledger.call("smallbank", step.function, &args(step));
            let next = expected(&model, step);
            prop_assert_eq!(answer.is_ok(), next.is_some(), "{:?}: {:?}", step, answer);
            if matches!(step.function, "send_payment" | "amalgamate" | "balance") {
                let sum = |model: &Model| model.values().map(|(checking, savings)| checking + savings).sum::<i128>();
                prop_assert!(next.as_ref().is_none_or(|next| sum(next) == sum(&model)), "{:?}", step);
            }
            model = next.unwrap_or(model);
            for (customer, (checking, savings)) in &model {
                let (is_checking, is_savings) = balances(&ledger, &customer.to_string());
                prop_assert_eq!((i128::from(is_checking), i128::from(is_savings)), (*checking, *savings), "{:?}", step);
            }
        }
    }
}
