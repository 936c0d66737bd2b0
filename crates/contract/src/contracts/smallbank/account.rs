//! One account: its key, its record and checked arithmetic on its balance.

use base::{Bytes, BytesMut};

use crate::contracts::interface::shown;
use crate::{ContractError, ContractStub};

/// The longest name by which a customer is known.
pub const CUSTOMER_BYTES_MAX: usize = 64;

/// How much of a record is the balance.
pub(super) const BALANCE_BYTES: usize = 8;

const CHECKING: &str = "checking_";
const SAVINGS: &str = "savings_";
const NAME: &str = "name_";

/// The state key of a customer's checking account.
///
/// # Errors
/// The customer's id is empty or longer than [`CUSTOMER_BYTES_MAX`].
pub fn checking_key(customer: &str) -> Result<String, ContractError> {
    key(CHECKING, customer)
}

/// The state key of a customer's savings account.
///
/// # Errors
/// Those of [`checking_key`].
pub fn savings_key(customer: &str) -> Result<String, ContractError> {
    key(SAVINGS, customer)
}

/// The state key of a customer's name.
///
/// # Errors
/// Those of [`checking_key`].
pub fn name_key(customer: &str) -> Result<String, ContractError> {
    key(NAME, customer)
}

fn key(prefix: &str, customer: &str) -> Result<String, ContractError> {
    if (1..=CUSTOMER_BYTES_MAX).contains(&customer.len()) {
        return Ok([prefix, customer].concat());
    }
    Err(ContractError::application(format!(
        "a customer's id has 1 to {CUSTOMER_BYTES_MAX} bytes, not {}",
        customer.len()
    )))
}

/// The bytes are too short for an account's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the record of an account is too short")]
pub struct NotABalance;

/// The balance in an account's record.
///
/// # Errors
/// The record has fewer than 8 bytes.
pub fn balance_of(record: &[u8]) -> Result<i64, NotABalance> {
    record.first_chunk::<BALANCE_BYTES>().map(|balance| i64::from_le_bytes(*balance)).ok_or(NotABalance)
}

/// A record with this balance and that much padding.
pub(super) fn encode(balance: i64, padding: usize) -> Bytes {
    let mut record = BytesMut::zeroed(BALANCE_BYTES + padding);
    record[..BALANCE_BYTES].copy_from_slice(&balance.to_le_bytes());
    record.freeze()
}

/// What two accounts hold together.
pub(super) fn total(a: &Account, b: &Account) -> Result<i64, ContractError> {
    a.balance.checked_add(b.balance).ok_or_else(|| overflow(&a.key))
}

/// An account as the transaction found it, with the balance that it is to have.
#[derive(Debug)]
pub(super) struct Account {
    key: String,
    record: Bytes,
    balance: i64,
}

impl Account {
    /// Reads accounts that must all exist.
    pub(super) async fn read<const N: usize>(
        tx: &mut dyn ContractStub,
        keys: [String; N],
    ) -> Result<[Account; N], ContractError> {
        let records = tx.get_states(&keys).await?;
        assert_eq!(records.len(), N, "a stub answers for every key");
        let mut records = records.into_iter();
        let mut missing = None;
        let accounts = keys.map(|key| {
            let record = records.next().flatten().unwrap_or_default();
            match balance_of(&record) {
                Ok(balance) => Account { key, record, balance },
                Err(NotABalance) => {
                    let is_absent = record.is_empty();
                    missing.get_or_insert_with(|| (key.clone(), is_absent));
                    Account { key, record, balance: 0 }
                }
            }
        });
        match missing {
            None => Ok(accounts),
            Some((key, true)) => Err(ContractError::application(format!("there is no account {}", shown(&key)))),
            Some((key, false)) => Err(ContractError::application(format!("{NotABalance}: {}", shown(&key)))),
        }
    }

    pub(super) fn balance(&self) -> i64 {
        self.balance
    }

    pub(super) fn set(&mut self, balance: i64) {
        self.balance = balance;
    }

    pub(super) fn add(&mut self, amount: i64) -> Result<(), ContractError> {
        self.balance = self.balance.checked_add(amount).ok_or_else(|| overflow(&self.key))?;
        Ok(())
    }

    /// Records the balance, with the padding that the record had.
    pub(super) fn write(self, tx: &mut dyn ContractStub) -> Result<(), ContractError> {
        let mut record = BytesMut::with_capacity(self.record.len());
        record.extend_from_slice(&self.balance.to_le_bytes());
        record.extend_from_slice(&self.record[BALANCE_BYTES..]);
        tx.put_state(&self.key, record.freeze())?;
        Ok(())
    }
}

fn overflow(key: &str) -> ContractError {
    ContractError::application(format!("the balance of account {} would not fit", shown(key)))
}
