//! A block in a form for people and scripts. Parts that cannot be decoded are shown as unreadable, so that the view
//! also works on damaged ledgers.

use base::Bytes;
use identity::{Certificate, hex};
use ledger::Block;
use ledger::rwset::ReadWriteSet;
use ledger::transaction::{ActionOutcome, EndorsedAction, Transaction};
use prost::Message as _;
use proto::common::HeaderType;
use proto::msp::SerializedIdentity;
use proto::protos::{ChaincodeInvocationSpec, ChaincodeProposalPayload, TxValidationCode};
use serde_json::{Map, Value, json};

/// Longer texts are truncated.
const TEXT_CHARS_MAX: usize = 200;

/// A block with all its transactions.
pub fn block(block: &Block) -> Value {
    let header = block.header();
    let transactions: Vec<Value> = (0..block.len()).map(|index| transaction(block, index)).collect();
    json!({
        "number": block.number().get(),
        "hash": hex::encode(block.hash()),
        "previous_hash": header.previous_hash.map(hex::encode),
        "data_hash": hex::encode(header.data_hash),
        "commit_hash": block.metadata().commit_hash().ok().flatten().map(hex::encode),
        "bytes": block.encoded().len(),
        "transactions": transactions,
    })
}

/// A block in a line.
pub fn summary(block: &Block) -> Value {
    let filter = block.metadata().filter();
    let valid = filter.iter().filter(|code| **code == 0).count();
    json!({
        "number": block.number().get(),
        "hash": hex::encode(block.hash()),
        "transactions": block.len(),
        "valid": valid,
        "bytes": block.encoded().len(),
    })
}

/// One transaction of a block.
pub fn transaction(block: &Block, index: usize) -> Value {
    let mut view = Map::new();
    view.insert("block".to_owned(), block.number().get().into());
    view.insert("index".to_owned(), index.into());
    view.insert("code".to_owned(), block.metadata().filter().get(index).map(|code| code_name(*code)).into());
    match Transaction::decode(&block.envelope(index)) {
        Err(invalid) => {
            view.insert("unreadable".to_owned(), invalid.to_string().into());
        }
        Ok(transaction) => describe(&transaction, &mut view),
    }
    view.into()
}

fn describe(transaction: &Transaction, view: &mut Map<String, Value>) {
    let header = transaction.header();
    let mut put = |name: &str, value: Value| view.insert(name.to_owned(), value);
    put("id", header.tx_id().into());
    let kind = HeaderType::try_from(header.kind()).map_or("unknown", |kind| kind.as_str_name());
    put("type", kind.into());
    put("channel", header.channel().into());
    if let Some((seconds, nanos)) = header.timestamp() {
        put("timestamp", json!({ "seconds": seconds, "nanos": nanos }));
    }
    put("creator", identity_name(header.creator()).into());
    if !transaction.is_endorser_transaction() {
        return;
    }
    let outcome = transaction.action().and_then(|action| {
        put("call", call(&action));
        let endorsers = action.endorsements().map(|endorsement| identity_name(endorsement.endorser));
        put("endorsers", endorsers.collect::<Vec<String>>().into());
        action.outcome(header)
    });
    match outcome {
        Ok(outcome) => result(&outcome, &mut put),
        Err(invalid) => drop(put("unreadable", invalid.to_string().into())),
    }
}

fn result(outcome: &ActionOutcome, put: &mut dyn FnMut(&str, Value) -> Option<Value>) {
    put("response", json!({ "status": outcome.status(), "payload": shown(&outcome.response_payload()) }));
    if let Some(event) = outcome.event() {
        put("event", json!({ "name": event.name, "payload": shown(&event.payload) }));
    }
    match ReadWriteSet::decode(outcome.results()) {
        Err(error) => drop(put("unreadable", error.to_string().into())),
        Ok(set) => {
            let namespaces: Map<String, Value> = set
                .namespaces
                .iter()
                .map(|namespace| (set.name(namespace).to_owned(), reads_and_writes(&set, namespace)))
                .collect();
            put("state", namespaces.into());
        }
    }
}

fn reads_and_writes(set: &ReadWriteSet, namespace: &ledger::rwset::NamespaceReadWriteSet) -> Value {
    let reads: Vec<Value> = set
        .reads(namespace)
        .map(|read| {
            let version = read.version.map(|version| format!("{}:{}", version.block, version.transaction));
            json!({ "key": shown(set.read_key(&read).as_bytes()), "version": version })
        })
        .collect();
    let ranges: Vec<Value> = set
        .ranges(namespace)
        .map(|range| {
            let (start, end) = set.bounds(&range);
            json!({ "start": shown(start.as_bytes()), "end": shown(end.as_bytes()) })
        })
        .collect();
    let writes: Vec<Value> = set
        .writes(namespace)
        .map(|write| json!({ "key": shown(set.write_key(&write).as_bytes()), "value": set.write_value(&write).map(|value| shown(&value)) }))
        .collect();
    json!({ "reads": reads, "ranges": ranges, "writes": writes })
}

/// The call that the client requested.
fn call(action: &EndorsedAction) -> Value {
    let spec = ChaincodeProposalPayload::decode(action.proposal_payload())
        .and_then(|payload| ChaincodeInvocationSpec::decode(payload.input))
        .ok()
        .and_then(|invocation| invocation.chaincode_spec);
    let Some(spec) = spec else { return Value::Null };
    let args = spec.input.map(|input| input.args).unwrap_or_default();
    json!({
        "contract": spec.chaincode_id.map(|id| id.name),
        "args": args.iter().map(|arg| shown(arg)).collect::<Vec<String>>(),
    })
}

/// `Org1MSP: User1`, as far as the bytes can be decoded.
fn identity_name(serialized: impl AsRef<[u8]>) -> String {
    let Ok(identity) = SerializedIdentity::decode(Bytes::copy_from_slice(serialized.as_ref())) else {
        return "unreadable".to_owned();
    };
    match Certificate::from_pem(&identity.id_bytes) {
        Ok(certificate) => format!("{}: {}", identity.mspid, certificate.common_name()),
        Err(_) => identity.mspid,
    }
}

fn code_name(code: u8) -> String {
    TxValidationCode::try_from(i32::from(code))
        .map_or_else(|_| format!("code {code}"), |code| code.as_str_name().to_owned())
}

/// Text as text, other bytes in hexadecimal; both truncated if they are long.
fn shown(bytes: &[u8]) -> String {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|character| character.is_control() && !character.is_whitespace()) => {
            text.to_owned()
        }
        _ => format!("0x{}", hex::encode(&bytes[..bytes.len().min(TEXT_CHARS_MAX)])),
    };
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], bytes.len()),
        None => text,
    }
}

/// JSON as an outline for people: a line for each name, lists and objects indented below theirs.
pub fn outline(value: &Value) -> String {
    let mut text = String::new();
    write_outline(value, 0, &mut text);
    text
}

fn write_outline(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match scalar(value) {
                    Some(scalar) => text.push_str(&format!("{indent}{name:<14} {scalar}\n")),
                    None => {
                        text.push_str(&format!("{indent}{name}\n"));
                        write_outline(value, depth + 1, text);
                    }
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                match scalar(item) {
                    Some(scalar) => text.push_str(&format!("{indent}{scalar}\n")),
                    None => {
                        write_outline(item, depth, text);
                        text.push('\n');
                    }
                }
            }
        }
        other => text.push_str(&format!("{indent}{}\n", scalar(other).unwrap_or_default())),
    }
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some("-".to_owned()),
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Array(items) if items.is_empty() => Some("none".to_owned()),
        Value::Array(items) => {
            let short: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            short.map(|items| items.join(", ")).filter(|text| text.chars().count() < 100)
        }
        Value::Object(fields) if fields.is_empty() => Some("none".to_owned()),
        Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use base::BlockNumber;

    use super::*;

    #[test]
    fn transactions_that_cannot_be_read_are_shown_as_such() {
        let envelopes = [Bytes::from_static(b"\xff\xff"), Bytes::new()];
        let damaged = Block::build(BlockNumber(3), Some([7; 32]), &envelopes);
        let view = block(&damaged);
        assert_eq!(view["number"], 3);
        assert_eq!(view["previous_hash"], "07".repeat(32));
        assert!(view["transactions"][0]["unreadable"].is_string(), "{view}");
        assert!(outline(&view).contains("unreadable"));
        assert_eq!(summary(&damaged)["transactions"], 2);
    }

    #[test]
    fn bytes_are_shown_as_text_where_they_are_text() {
        assert_eq!(shown("zwölf".as_bytes()), "zwölf");
        assert_eq!(shown(b"a\0b"), "0x610062");
        assert_eq!(shown(b"\xff"), "0xff");
        assert!(shown("ü".repeat(300).as_bytes()).ends_with("… (600 bytes)"));
    }
}
