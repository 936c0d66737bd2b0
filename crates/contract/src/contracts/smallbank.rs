//! SmallBank: customers with a savings and a checking account each.
//!
//! The transactions are those of the SmallBank benchmark (Alomari et al., "The cost of serializability on platforms
//! that use snapshot isolation"), under the names and with the arguments that Hyperledger Caliper uses:
//!
//! | function | reads | writes |
//! |---|---|---|
//! | `create_account(customer, name, checking, savings)` | checking | checking, savings, name |
//! | `transact_savings(amount, customer)` | savings | savings; not below 0 |
//! | `deposit_checking(amount, customer)` | checking | checking |
//! | `send_payment(amount, destination, source)` | checking of both | checking of both; the source's not below 0 |
//! | `write_check(amount, customer)` | savings, checking | checking; may fall below 0 |
//! | `amalgamate(destination, source)` | both of the source, checking of the destination | the same three |
//! | `balance(customer)` | savings, checking | |
//! | `query(customer)` | savings, checking, name | |
//! | `load(start, count, checking, savings, recordBytes)` | | both accounts of `count` customers |
//!
//! `write_check` charges a fee of 1 if the amount exceeds both balances together. `amalgamate` moves the money of both
//! accounts of the source to the checking account of the destination. `load` names its customers by the numbers from
//! `start` on.
//!
//! Amounts are whole numbers of the smallest unit of money. All arithmetic is checked, and an operation that would
//! overflow is refused, so that money is neither made nor lost. A payment from an account to itself changes nothing.
//! The contract treats this case separately: reads do not see the transaction's own writes, so the second write would
//! replace the first and create money.
//!
//! State: `checking_<customer>` and `savings_<customer>` → the balance (i64, little-endian, 8 bytes), then padding that
//! updates keep; `name_<customer>` → the name, when there is one.

use base::Bytes;
use serde::Serialize;
use serde_json::json;

use super::interface::{ContractFunction, ContractInterface, FunctionCall, FunctionParameter, ResolvedFunction, shown};
use crate::{Contract, ContractError, ContractResponse, ContractStub, async_trait};

mod account;
use account::Account;
pub use account::{CUSTOMER_BYTES_MAX, NotABalance, balance_of, checking_key, name_key, savings_key};

/// What an overdraft costs.
pub const OVERDRAFT_FEE: i64 = 1;
/// The longest name of a customer.
pub const NAME_BYTES_MAX: usize = 256;
/// The most customers that one `load` creates.
pub const LOAD_CUSTOMERS_MAX: u64 = 50_000;
/// The most bytes of records that one `load` writes.
pub const LOAD_BYTES_MAX: u64 = 64 << 20;
/// The longest record of an account.
pub const RECORD_BYTES_MAX: u64 = 64 << 10;

const CUSTOMER: FunctionParameter = FunctionParameter::text("customer");
const DESTINATION: FunctionParameter = FunctionParameter::text("destination");
const SOURCE: FunctionParameter = FunctionParameter::text("source");
const AMOUNT: FunctionParameter = FunctionParameter::integer("amount");
const CHECKING: FunctionParameter = FunctionParameter::integer("checking");
const SAVINGS: FunctionParameter = FunctionParameter::integer("savings");

const INTERFACE: ContractInterface = ContractInterface {
    name: "smallbank",
    aliases: &[],
    version: "1.0",
    functions: &[
        ContractFunction::submit("send_payment", &[AMOUNT, DESTINATION, SOURCE]),
        ContractFunction::submit("deposit_checking", &[AMOUNT, CUSTOMER]),
        ContractFunction::submit("transact_savings", &[AMOUNT, CUSTOMER]),
        ContractFunction::submit("write_check", &[AMOUNT, CUSTOMER]),
        ContractFunction::submit("amalgamate", &[DESTINATION, SOURCE]),
        ContractFunction::evaluate("balance", &[CUSTOMER]),
        ContractFunction::evaluate("query", &[CUSTOMER]),
        ContractFunction::submit("create_account", &[CUSTOMER, FunctionParameter::text("name"), CHECKING, SAVINGS]),
        ContractFunction::submit(
            "load",
            &[
                FunctionParameter::integer("start"),
                FunctionParameter::integer("count"),
                CHECKING,
                SAVINGS,
                FunctionParameter::integer("recordBytes").optional(),
            ],
        ),
    ],
    schemas: || json!({}),
};

/// The benchmark's contract.
#[derive(Debug, Clone, Copy, Default)]
pub struct SmallBank;

#[async_trait]
impl Contract for SmallBank {
    fn name(&self) -> &str {
        "smallbank"
    }

    async fn invoke(
        &self,
        tx: &mut dyn ContractStub,
        function: &str,
        args: &[Bytes],
    ) -> Result<ContractResponse, ContractError> {
        let call = match INTERFACE.resolve(function, args)? {
            ResolvedFunction::Call(call) => call,
            ResolvedFunction::Answered(response) => return Ok(response),
        };
        match call.function() {
            "send_payment" => send_payment(tx, amount_of(&call)?, call.text(1)?, call.text(2)?).await,
            "deposit_checking" => deposit_checking(tx, amount_of(&call)?, call.text(1)?).await,
            "transact_savings" => transact_savings(tx, call.integer(0)?, call.text(1)?).await,
            "write_check" => write_check(tx, amount_of(&call)?, call.text(1)?).await,
            "amalgamate" => amalgamate(tx, call.text(0)?, call.text(1)?).await,
            "balance" => balance(tx, call.text(0)?).await,
            "query" => query(tx, call.text(0)?).await,
            "create_account" => create_account(tx, &call).await,
            "load" => load(tx, &call),
            function => unreachable!("{function} is declared and not handled"),
        }
    }
}

/// The first argument as an amount to move: never negative.
fn amount_of(call: &FunctionCall<'_>) -> Result<i64, ContractError> {
    match call.integer::<i64>(0)? {
        amount if amount < 0 => Err(call.reject(0, &format!("must not be negative: {amount}"))),
        amount => Ok(amount),
    }
}

async fn send_payment(
    tx: &mut dyn ContractStub,
    amount: i64,
    destination: &str,
    source: &str,
) -> Result<ContractResponse, ContractError> {
    let [mut from, mut to] = Account::read(tx, [checking_key(source)?, checking_key(destination)?]).await?;
    if from.balance() < amount {
        return Err(ContractError::application(format!(
            "the checking account of {} has {}, less than {amount}",
            shown(source),
            from.balance()
        )));
    }
    if source != destination {
        from.add(-amount)?;
        to.add(amount)?;
    }
    from.write(tx)?;
    to.write(tx)?;
    Ok(ContractResponse::empty())
}

async fn deposit_checking(
    tx: &mut dyn ContractStub,
    amount: i64,
    customer: &str,
) -> Result<ContractResponse, ContractError> {
    let [mut checking] = Account::read(tx, [checking_key(customer)?]).await?;
    checking.add(amount)?;
    checking.write(tx)?;
    Ok(ContractResponse::empty())
}

/// A deposit, or a withdrawal when `amount` is negative.
async fn transact_savings(
    tx: &mut dyn ContractStub,
    amount: i64,
    customer: &str,
) -> Result<ContractResponse, ContractError> {
    let [mut savings] = Account::read(tx, [savings_key(customer)?]).await?;
    savings.add(amount)?;
    if savings.balance() < 0 {
        return Err(ContractError::application(format!(
            "the savings account of {} has less than is to be withdrawn",
            shown(customer)
        )));
    }
    savings.write(tx)?;
    Ok(ContractResponse::empty())
}

async fn write_check(
    tx: &mut dyn ContractStub,
    amount: i64,
    customer: &str,
) -> Result<ContractResponse, ContractError> {
    let [savings, mut checking] = Account::read(tx, [savings_key(customer)?, checking_key(customer)?]).await?;
    let is_covered = account::total(&savings, &checking)? >= amount;
    checking.add(-amount)?;
    if !is_covered {
        checking.add(-OVERDRAFT_FEE)?;
    }
    checking.write(tx)?;
    Ok(ContractResponse::empty())
}

/// Moves all that the source has to the checking account of the destination.
async fn amalgamate(
    tx: &mut dyn ContractStub,
    destination: &str,
    source: &str,
) -> Result<ContractResponse, ContractError> {
    let keys = [savings_key(source)?, checking_key(source)?, checking_key(destination)?];
    let [mut savings, mut checking, mut to] = Account::read(tx, keys).await?;
    let total = account::total(&savings, &checking)?;
    savings.set(0);
    savings.write(tx)?;
    if source == destination {
        to.set(total);
    } else {
        checking.set(0);
        checking.write(tx)?;
        to.add(total)?;
    }
    to.write(tx)?;
    Ok(ContractResponse::empty())
}

/// The sum of both accounts, in decimal.
async fn balance(tx: &mut dyn ContractStub, customer: &str) -> Result<ContractResponse, ContractError> {
    let [savings, checking] = Account::read(tx, [savings_key(customer)?, checking_key(customer)?]).await?;
    Ok(ContractResponse::success(account::total(&savings, &checking)?.to_string()))
}

/// A customer as `query` answers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct CustomerRecord<'a> {
    custom_id: &'a str,
    custom_name: String,
    savings_balance: i64,
    checking_balance: i64,
}

async fn query(tx: &mut dyn ContractStub, customer: &str) -> Result<ContractResponse, ContractError> {
    let [savings, checking] = Account::read(tx, [savings_key(customer)?, checking_key(customer)?]).await?;
    let name = tx.get_state(&name_key(customer)?).await?.unwrap_or_default();
    let customer = CustomerRecord {
        custom_id: customer,
        custom_name: String::from_utf8_lossy(&name).into_owned(),
        savings_balance: savings.balance(),
        checking_balance: checking.balance(),
    };
    Ok(ContractResponse::success(serde_json::to_vec(&customer).expect("strings and integers are always JSON")))
}

async fn create_account(tx: &mut dyn ContractStub, call: &FunctionCall<'_>) -> Result<ContractResponse, ContractError> {
    let (customer, name) = (call.text(0)?, call.text(1)?);
    let (checking, savings) = (opening_balance(call, 2)?, opening_balance(call, 3)?);
    if name.len() > NAME_BYTES_MAX {
        return Err(call.reject(1, &format!("may have {NAME_BYTES_MAX} bytes, not {}", name.len())));
    }
    let checking_key = checking_key(customer)?;
    if tx.get_state(&checking_key).await?.is_some() {
        return Err(ContractError::application(format!("customer {} exists already", shown(customer))));
    }
    tx.put_state(&checking_key, account::encode(checking, 0))?;
    tx.put_state(&savings_key(customer)?, account::encode(savings, 0))?;
    if !name.is_empty() {
        tx.put_state(&name_key(customer)?, Bytes::copy_from_slice(name.as_bytes()))?;
    }
    Ok(ContractResponse::empty())
}

fn opening_balance(call: &FunctionCall<'_>, index: usize) -> Result<i64, ContractError> {
    match call.integer::<i64>(index)? {
        balance if balance < 0 => Err(call.reject(index, &format!("must not be negative: {balance}"))),
        balance => Ok(balance),
    }
}

/// Creates customers `start` to `start + count` and answers how many. It reads nothing and replaces what is there.
fn load(tx: &mut dyn ContractStub, call: &FunctionCall<'_>) -> Result<ContractResponse, ContractError> {
    let start = call.count(0, 0, u64::MAX - LOAD_CUSTOMERS_MAX)?;
    let count = call.count(1, 1, LOAD_CUSTOMERS_MAX)?;
    let (checking, savings) = (opening_balance(call, 2)?, opening_balance(call, 3)?);
    let record_bytes = match call.len() {
        5 => call.count(4, account::BALANCE_BYTES as u64, RECORD_BYTES_MAX.min(LOAD_BYTES_MAX / 2 / count))?,
        _ => account::BALANCE_BYTES as u64,
    };
    let padding = usize::try_from(record_bytes).expect("a record has at most 64 KiB") - account::BALANCE_BYTES;
    let (checking, savings) = (account::encode(checking, padding), account::encode(savings, padding));
    for number in start..start + count {
        let customer = number.to_string();
        tx.put_state(&checking_key(&customer)?, checking.clone())?;
        tx.put_state(&savings_key(&customer)?, savings.clone())?;
    }
    Ok(ContractResponse::success(count.to_string()))
}

#[cfg(test)]
mod tests;
