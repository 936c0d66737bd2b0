//! The contract that ran on the recorded channel, under several names, to be run again by `heddle ledger replay`.
//!
//! The first argument is an operation and the rest its parameters. With the operation `do`, each further argument is a
//! JSON array of an operation and its parameters; the payloads of the operations are joined by newlines. No arguments
//! are an operation that does nothing. A call that initialises the contract writes its arguments to the key `init`.
//!
//! | operation | effect |
//! |---|---|
//! | `put K V`, `get K`, `getm K…`, `del K` | writes, reads, reads several, deletes |
//! | `rmw K` | reads a decimal number, 0 if there is none; writes and returns the next one |
//! | `many P N V`, `batch P N V` | writes the keys `P0000`, `P0001`, … with the values `V-0`, `V-1`, … |
//! | `big K N` | writes N bytes |
//! | `range S E`, `range1 S E N`, `page S E N B` | lists a range, its first N entries, or one page from a bookmark |
//! | `rangecount S E K`, `rangedel S E` | counts a range and writes the number to K; deletes a range |
//! | `cput T A,B V`, `cget`, `cdel`, `cquery T A,B` | the same on composite keys |
//! | `call C CHANNEL ARG…` | calls another contract |
//! | `event N P`, `info K`, `history K` | sets an event; says what the contract knows of its call; lists a history |
//! | `status N K`, `fail M`, `noop` | answers with status N, after a write to K if it is given; an error; nothing |
//!
//! [`private`] has the operations on private data and on the policies of keys, [`values`] the forms of values and of
//! results. A value `hex:…` is decoded.

mod private;
mod values;

use contract::key::{self, KeyRange};
use contract::{
    Bytes, Contract, ContractError, ContractResponse, ContractStub, HistoryCursor, RangeCursor, StubError, async_trait,
};
use identity::hex;
use prost::Message as _;
use proto::msp::SerializedIdentity;

use values::{Parameters, failed, line, next_number};

/// The key of the arguments of the call that initialised the contract.
const INIT_KEY: &str = "init";

/// The contract of the recorded channel.
pub struct RecordedProgram;

#[async_trait]
impl Contract for RecordedProgram {
    fn name(&self) -> &str {
        "recorded"
    }

    async fn invoke(
        &self,
        tx: &mut dyn ContractStub,
        function: &str,
        args: &[Bytes],
    ) -> Result<ContractResponse, ContractError> {
        if tx.is_init() {
            let arguments = tx.args().join(&b","[..]);
            tx.put_state(INIT_KEY, [b"initialised by ", &arguments[..]].concat().into())?;
            return Ok(ContractResponse::success("init done"));
        }
        match function {
            "" if tx.args().is_empty() => Ok(ContractResponse::empty()),
            "do" => several(tx, args).await,
            _ => operation(tx, function, &Parameters(args)).await,
        }
    }
}

/// Runs operations one after the other, up to the first one that is not a success.
async fn several(tx: &mut dyn ContractStub, operations: &[Bytes]) -> Result<ContractResponse, ContractError> {
    let mut payloads = Vec::with_capacity(operations.len());
    for array in operations {
        let words: Vec<String> =
            serde_json::from_slice(array).map_err(|error| ContractError::application(error.to_string()))?;
        let words: Vec<Bytes> = words.into_iter().map(Bytes::from).collect();
        let (function, parameters) = contract::split_input(&words)?;
        let response = operation(tx, function, &Parameters(parameters)).await?;
        if response.status != ContractResponse::OK {
            return Ok(response);
        }
        payloads.push(response.payload);
    }
    Ok(ContractResponse::success(payloads.join(&b"\n"[..])))
}

async fn operation(
    tx: &mut dyn ContractStub,
    name: &str,
    parameters: &Parameters<'_>,
) -> Result<ContractResponse, ContractError> {
    let payload = match name {
        "put" => {
            put(tx, parameters.text(0)?, parameters.value(1)?)?;
            Bytes::new()
        }
        "get" => tx.get_state(parameters.text(0)?).await?.unwrap_or_default(),
        "getm" => get_several(tx, parameters).await?,
        "del" => delete(tx, parameters.text(0)?)?,
        "rmw" => {
            let key = parameters.text(0)?;
            let next = next_number(tx.get_state(key).await?)?;
            tx.put_state(key, next.clone())?;
            next
        }
        // A batch is a matter between a contract and its peer; the transaction is the same.
        "many" | "batch" => put_many(tx, parameters)?,
        "big" => put_big(tx, parameters)?,
        "range" => list(tx, parameters.range(0)?, usize::MAX).await?,
        "range1" => list(tx, parameters.range(0)?, parameters.number(2)?).await?,
        "page" => page(tx, parameters).await?,
        "rangecount" => count(tx, parameters).await?,
        "rangedel" => delete_range(tx, parameters).await?,
        "cput" => {
            tx.put_state(&parameters.composite_key(0)?, parameters.value(2)?)?;
            Bytes::new()
        }
        "cget" => tx.get_state(&parameters.composite_key(0)?).await?.unwrap_or_default(),
        "cdel" => delete(tx, &parameters.composite_key(0)?)?,
        "cquery" => {
            let range = KeyRange::partial_composite(parameters.text(0)?, &parameters.attributes(1)?)?;
            list(tx, range, usize::MAX).await?
        }
        "call" => return call(tx, parameters).await,
        "event" => {
            let (name, payload) = (parameters.text(0)?, parameters.value(1)?);
            tx.set_event(name, payload)
                .map_err(|_| ContractError::application("event name can not be empty string"))?;
            Bytes::new()
        }
        "info" => info(tx, parameters.text(0)?)?,
        "history" => history(tx, parameters.text(0)?).await?,
        "status" => return status(tx, parameters),
        "fail" => return Err(ContractError::application(parameters.text(0)?)),
        "noop" => Bytes::new(),
        _ => match private::operation(tx, name, parameters).await? {
            Some(payload) => payload,
            None => return Err(ContractError::application(format!("unknown function {name}"))),
        },
    };
    Ok(ContractResponse::success(payload))
}

fn put(tx: &mut dyn ContractStub, key: &str, value: Bytes) -> Result<(), ContractError> {
    // The library of the recorded contract made this check, with these words.
    key::check(key).map_err(|_| ContractError::application("key must not be an empty string"))?;
    tx.put_state(key, value).map_err(|error| failed(tx, "PUT_STATE", error))
}

fn delete(tx: &mut dyn ContractStub, key: &str) -> Result<Bytes, ContractError> {
    tx.delete_state(key).map_err(|error| failed(tx, "DEL_STATE", error))?;
    Ok(Bytes::new())
}

async fn get_several(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<Bytes, ContractError> {
    let keys = parameters.texts(0)?;
    let values = tx.get_states(&keys).await?;
    let lines = keys.iter().zip(values).map(|(key, value)| line(key, &value.unwrap_or_default()));
    Ok(lines.collect::<String>().into())
}

fn put_many(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<Bytes, ContractError> {
    let (prefix, value) = (parameters.text(0)?, parameters.text(2)?);
    for number in 0..parameters.number(1)? {
        tx.put_state(&format!("{prefix}{number:04}"), format!("{value}-{number}").into())?;
    }
    Ok(Bytes::new())
}

fn put_big(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<Bytes, ContractError> {
    let bytes = (0..parameters.number(1)?).map(|index| (index.wrapping_mul(7) >> 3) as u8);
    tx.put_state(parameters.text(0)?, bytes.collect::<Vec<u8>>().into())?;
    Ok(Bytes::new())
}

/// The first entries of a range, a line each.
async fn list(tx: &mut dyn ContractStub, range: KeyRange, entries_max: usize) -> Result<Bytes, ContractError> {
    let mut cursor = RangeCursor::open(tx, range).await?;
    let (mut lines, mut entries) = (String::new(), 0);
    while entries < entries_max
        && let Some(entry) = cursor.next(tx).await?
    {
        lines.push_str(&line(&entry.key, &entry.value));
        entries += 1;
    }
    cursor.close(tx);
    Ok(lines.into())
}

async fn page(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<Bytes, ContractError> {
    let (start, end, bookmark) = (parameters.text(0)?, parameters.text(1)?, parameters.text(3)?);
    let start = if bookmark.is_empty() { start } else { bookmark };
    let page = tx.read_page(KeyRange::simple(start, end)?, parameters.number(2)?).await?;
    let mut lines: String = page.entries.iter().map(|entry| line(&entry.key, &entry.value)).collect();
    let bookmark = hex::encode(&page.bookmark);
    lines.push_str(&format!("count={} bookmark={bookmark}\n", page.entries.len()));
    Ok(lines.into())
}

async fn count(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<Bytes, ContractError> {
    let mut cursor = RangeCursor::open(tx, parameters.range(0)?).await?;
    let mut count = 0_u64;
    while cursor.next(tx).await?.is_some() {
        count += 1;
    }
    let count = Bytes::from(count.to_string());
    tx.put_state(parameters.text(2)?, count.clone())?;
    Ok(count)
}

async fn delete_range(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<Bytes, ContractError> {
    let mut cursor = RangeCursor::open(tx, parameters.range(0)?).await?;
    let mut keys = Vec::new();
    while let Some(entry) = cursor.next(tx).await? {
        keys.push(entry.key);
    }
    for key in keys {
        tx.delete_state(&key)?;
    }
    Ok(Bytes::new())
}

/// Calls another contract. Its error becomes one of this contract.
async fn call(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<ContractResponse, ContractError> {
    let (name, channel) = (parameters.text(0)?, parameters.text(1)?);
    let args = parameters.0.get(2..).unwrap_or_default().to_vec();
    let response = match tx.invoke_contract(name, args, channel).await {
        // Fabric's library turns a call that the peer refuses into a response with the reason as its payload.
        Err(error) if !matches!(error, StubError::State { .. }) => {
            let reason = failed(tx, "INVOKE_CHAINCODE", error).to_string();
            ContractResponse { status: ContractResponse::ERROR, message: String::new(), payload: reason.into() }
        }
        called => called?,
    };
    if response.is_endorsable() {
        return Ok(ContractResponse::success(response.payload));
    }
    let payload = String::from_utf8_lossy(&response.payload);
    let ContractResponse { status, message, .. } = &response;
    Err(ContractError::application(format!("called: {status} {message} {payload}")))
}

/// Writes and returns what the contract knows of its call: transaction, channel, organisation, time, and the hash that
/// binds the transaction to its creator.
fn info(tx: &mut dyn ContractStub, key: &str) -> Result<Bytes, ContractError> {
    let undecodable = |error: prost::DecodeError| ContractError::application(error.to_string());
    let creator = SerializedIdentity::decode(tx.creator().clone()).map_err(undecodable)?;
    let binding = values::binding(tx.signed_proposal()).map_err(undecodable)?;
    let time = tx.timestamp();
    let text = format!(
        "{} {} {} {}.{:09} {}",
        tx.tx_id(),
        tx.channel_id(),
        creator.mspid,
        time.seconds,
        time.nanos,
        hex::encode(binding)
    );
    tx.put_state(key, text.clone().into())?;
    Ok(text.into())
}

async fn history(tx: &mut dyn ContractStub, key: &str) -> Result<Bytes, ContractError> {
    let mut changes = HistoryCursor::open(tx, key).await?;
    let mut lines = String::new();
    while let Some(change) = changes.next(tx).await? {
        let (is_delete, value) = (change.value.is_none(), hex::encode(change.value.unwrap_or_default()));
        let (seconds, nanos) = (change.timestamp.seconds, change.timestamp.nanos);
        lines.push_str(&format!("{} {is_delete} {value} {seconds}.{nanos:09}\n", change.tx_id));
    }
    Ok(lines.into())
}

fn status(tx: &mut dyn ContractStub, parameters: &Parameters<'_>) -> Result<ContractResponse, ContractError> {
    let status = parameters.text(0)?;
    if let Ok(key) = parameters.text(1) {
        tx.put_state(key, format!("written with status {status}").into())?;
    }
    let number = status.parse().map_err(|_| ContractError::application(format!("{status:?} is not a status")))?;
    let message = format!("message {status}");
    Ok(ContractResponse { status: number, message, payload: format!("payload {status}").into() })
}

#[cfg(test)]
mod tests;
