//! The Yahoo! Cloud Serving Benchmark's operations on one table of opaque records.
//!
//! | function | reads | writes |
//! |---|---|---|
//! | `read(key)` | the record | |
//! | `update(key, value)` | | the record, whether or not it exists, as YCSB's stores do |
//! | `readModifyWrite(key, value)` | the record | the record, which must exist |
//! | `derive(keys, key, value)` | the records of `keys`, separated by commas, which must exist | the record of `key`; not one of YCSB's |
//! | `insert(key, value)` | the record | the record, which must not exist |
//! | `scan(key, count)` | `count` records from `key` on | |
//! | `load(start, count, valueBytes, seed)` | | `count` records from number `start` on; the seed fixes their values |
//!
//! Values are opaque bytes. Record number n of a loaded table has the key [`record_key`] and the value
//! [`record_value`], so that a client can check what it reads.

use base::Bytes;
use serde_json::json;

use super::interface::{ContractFunction, ContractInterface, FunctionCall, FunctionParameter, ResolvedFunction, shown};
use super::sequence::RandomSequence;
use crate::key::KeyRange;
use crate::{Contract, ContractError, ContractResponse, ContractStub, RangeCursor, async_trait, key};

/// The largest value.
pub const VALUE_BYTES_MAX: u64 = 1 << 20;
/// The most records that one `derive` reads.
pub const DERIVED_FROM_MAX: usize = 100;
/// The most records that one `scan` returns.
pub const SCAN_RECORDS_MAX: u64 = 1_000;
/// The most bytes of keys and values that one `scan` returns, but for its last record.
pub const SCAN_BYTES_MAX: usize = 32 << 20;
/// The most records that one `load` writes.
pub const LOAD_RECORDS_MAX: u64 = 100_000;
/// The most bytes of values that one `load` writes.
pub const LOAD_BYTES_MAX: u64 = 64 << 20;
/// Record numbers are below this, so that keys sort as their numbers do.
pub const RECORDS_MAX: u64 = 1_000_000_000_000;

const KEY: FunctionParameter = FunctionParameter::text("key");
const VALUE: FunctionParameter = FunctionParameter::bytes("value");

const INTERFACE: ContractInterface = ContractInterface {
    name: "ycsb",
    aliases: &[],
    version: "1.0",
    functions: &[
        ContractFunction::evaluate("read", &[KEY]),
        ContractFunction::submit("update", &[KEY, VALUE]),
        ContractFunction::submit("readModifyWrite", &[KEY, VALUE]),
        ContractFunction::submit("derive", &[FunctionParameter::text("keys"), KEY, VALUE]),
        ContractFunction::submit("insert", &[KEY, VALUE]),
        ContractFunction::evaluate("scan", &[KEY, FunctionParameter::integer("count")]),
        ContractFunction::submit(
            "load",
            &[
                FunctionParameter::integer("start"),
                FunctionParameter::integer("count"),
                FunctionParameter::integer("valueBytes"),
                FunctionParameter::integer("seed"),
            ],
        ),
    ],
    schemas: || json!({}),
};

/// The benchmark's contract.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ycsb;

#[async_trait]
impl Contract for Ycsb {
    fn name(&self) -> &str {
        "ycsb"
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
            "read" => Ok(ContractResponse::success(existing(tx, key_of(&call)?).await?)),
            "update" => write(tx, key_of(&call)?, value_of(&call)?),
            "derive" => derive(tx, &call).await,
            "readModifyWrite" => {
                let (key, value) = (key_of(&call)?, value_of(&call)?);
                existing(tx, key).await?;
                write(tx, key, value)
            }
            "insert" => insert(tx, key_of(&call)?, value_of(&call)?).await,
            "scan" => scan(tx, &call).await,
            "load" => load(tx, &call),
            function => unreachable!("{function} is declared and not handled"),
        }
    }
}

/// The key of record `number`, which is below [`RECORDS_MAX`]; keys sort as their numbers do.
pub fn record_key(number: u64) -> String {
    assert!(number < RECORDS_MAX, "a record's number has at most 12 digits");
    format!("user{number:012}")
}

/// The value of record `number` in a table loaded with `seed`: printable text.
pub fn record_value(seed: u64, number: u64, value_bytes: usize) -> Bytes {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const CHARACTERS_OF_A_DRAW: usize = 10;
    let mut sequence = RandomSequence::for_item(seed, number);
    let mut value = Vec::with_capacity(value_bytes);
    while value.len() < value_bytes {
        let mut draw = sequence.next();
        for _ in 0..CHARACTERS_OF_A_DRAW.min(value_bytes - value.len()) {
            value.push(ALPHABET[(draw % 64) as usize]);
            draw /= 64;
        }
    }
    value.into()
}

/// Why a scan's result could not be read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the result of a scan")]
pub struct MalformedScan;

/// The records of a `scan`'s result: the inverse of what the contract answers with.
///
/// Format: for each record its key and its value, each as a length (u32, little-endian) and that many bytes.
///
/// # Errors
/// The bytes are cut short or a key is not UTF-8.
pub fn decode_scan(mut result: Bytes) -> Result<Vec<(String, Bytes)>, MalformedScan> {
    let mut records = Vec::new();
    while !result.is_empty() {
        let key = decode_bytes(&mut result)?;
        let key = String::from_utf8(key.to_vec()).map_err(|_| MalformedScan)?;
        records.push((key, decode_bytes(&mut result)?));
    }
    Ok(records)
}

fn decode_bytes(from: &mut Bytes) -> Result<Bytes, MalformedScan> {
    let length = from.first_chunk::<4>().map(|length| u32::from_le_bytes(*length)).ok_or(MalformedScan)?;
    let length = usize::try_from(length).map_err(|_| MalformedScan)?;
    if from.len() - 4 < length {
        return Err(MalformedScan);
    }
    let _ = from.split_to(4);
    Ok(from.split_to(length))
}

fn encode_bytes(bytes: &[u8], into: &mut Vec<u8>) {
    let length = u32::try_from(bytes.len()).expect("keys and values of one transaction are below 4 GiB");
    into.extend_from_slice(&length.to_le_bytes());
    into.extend_from_slice(bytes);
}

fn key_of<'a>(call: &FunctionCall<'a>) -> Result<&'a str, ContractError> {
    key_at(call, 0)
}

fn key_at<'a>(call: &FunctionCall<'a>, argument: usize) -> Result<&'a str, ContractError> {
    let key = call.text(argument)?;
    key::check_simple(key)?;
    Ok(key)
}

fn value_of(call: &FunctionCall<'_>) -> Result<Bytes, ContractError> {
    value_at(call, 1)
}

fn value_at(call: &FunctionCall<'_>, argument: usize) -> Result<Bytes, ContractError> {
    let value = call.bytes(argument);
    if value.is_empty() || value.len() as u64 > VALUE_BYTES_MAX {
        return Err(call.reject(argument, &format!("must have 1 to {VALUE_BYTES_MAX} bytes, not {}", value.len())));
    }
    Ok(value.clone())
}

async fn derive(tx: &mut dyn ContractStub, call: &FunctionCall<'_>) -> Result<ContractResponse, ContractError> {
    let keys: Vec<&str> = call.text(0)?.split(',').collect();
    if keys.len() > DERIVED_FROM_MAX {
        return Err(call.reject(0, &format!("must have at most {DERIVED_FROM_MAX} keys, not {}", keys.len())));
    }
    let (key, value) = (key_at(call, 1)?, value_at(call, 2)?);
    for from in keys {
        key::check_simple(from)?;
        existing(tx, from).await?;
    }
    write(tx, key, value)
}

async fn existing(tx: &mut dyn ContractStub, key: &str) -> Result<Bytes, ContractError> {
    let found = tx.get_state(key).await?;
    found.ok_or_else(|| ContractError::application(format!("there is no record {}", shown(key))))
}

fn write(tx: &mut dyn ContractStub, key: &str, value: Bytes) -> Result<ContractResponse, ContractError> {
    tx.put_state(key, value)?;
    Ok(ContractResponse::empty())
}

async fn insert(tx: &mut dyn ContractStub, key: &str, value: Bytes) -> Result<ContractResponse, ContractError> {
    if tx.get_state(key).await?.is_some() {
        return Err(ContractError::application(format!("there is a record {} already", shown(key))));
    }
    write(tx, key, value)
}

async fn scan(tx: &mut dyn ContractStub, call: &FunctionCall<'_>) -> Result<ContractResponse, ContractError> {
    let range = KeyRange::simple(call.text(0)?, "")?;
    let count = call.count(1, 1, SCAN_RECORDS_MAX)?;
    let count = usize::try_from(count).expect("a scan has at most a thousand records");
    let mut records = RangeCursor::open(tx, range).await?.with_page_entries(count);
    let mut result = Vec::new();
    for _ in 0..count {
        let Some(entry) = records.next(tx).await? else { break };
        encode_bytes(entry.key.as_bytes(), &mut result);
        encode_bytes(&entry.value, &mut result);
        if result.len() >= SCAN_BYTES_MAX {
            break;
        }
    }
    records.close(tx);
    Ok(ContractResponse::success(result))
}

/// Writes records and answers how many. It reads nothing, so loads of disjoint records never conflict.
fn load(tx: &mut dyn ContractStub, call: &FunctionCall<'_>) -> Result<ContractResponse, ContractError> {
    let start = call.count(0, 0, RECORDS_MAX - 1)?;
    let count = call.count(1, 1, LOAD_RECORDS_MAX.min(RECORDS_MAX - start))?;
    let value_bytes = call.count(2, 1, VALUE_BYTES_MAX.min(LOAD_BYTES_MAX / count))?;
    let value_bytes = usize::try_from(value_bytes).expect("a value has at most 1 MiB");
    let seed = call.integer(3)?;
    for number in start..start + count {
        tx.put_state(&record_key(number), record_value(seed, number, value_bytes))?;
    }
    Ok(ContractResponse::success(count.to_string()))
}

#[cfg(test)]
mod tests;
