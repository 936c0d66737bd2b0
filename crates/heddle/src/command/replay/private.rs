//! Reads the private data that Fabric's peers delivered, and gives them to the replayed peers before the blocks.
//!
//! A peer takes the private data of a block's transactions from the sets that arrived before the block. So each replayed
//! peer gets all sets that were recorded at its model, by the id of their transaction, and then verifies them against the
//! hashes in the blocks, expires and purges them as it does in a network.

use std::path::Path;

use base::{Bytes, TxId};
use chain::Channel;
use identity::{Signer, hex};
use ledger::rwset::PrivateSet;
use serde_json::Value;

use super::recording::{read_json, text};
use super::source::RecordedBlocks;
use crate::failure::CommandError;

/// What was delivered while the channel grew, and after its last block. The second has what a peer got late; the first has
/// what expired or was purged since.
const RECORDED: [&str; 2] = ["live", "final"];

/// The private writes of a transaction to one collection.
struct RecordedSet {
    block: u64,
    /// The position of the transaction in its block.
    position: usize,
    set: PrivateSet,
}

/// Gives a peer the private sets that were recorded at the peer with this identity. A recording may have none.
pub async fn stage(
    dir: &Path,
    signer: &Signer,
    channel: &Channel,
    blocks: &RecordedBlocks,
) -> Result<(), CommandError> {
    let name = signer.certificate().common_name();
    // `peer0.org1.example.com` delivered what is in `private-live-org1.json`.
    let Some(organization) = name.split('.').nth(1) else { return Ok(()) };
    for kind in RECORDED {
        let path = dir.join(format!("private-{kind}-{organization}.json"));
        if !path.try_exists().map_err(|error| CommandError::about(&path, error))? {
            continue;
        }
        for RecordedSet { block, position, set } in read_json(&path, recorded_sets)? {
            let tx_id = tx_id(blocks, block, position)?;
            let staged = channel.private().store().stage(&tx_id, block, &[set], None).await;
            staged.map_err(|error| CommandError::about(&path, error))?;
        }
    }
    Ok(())
}

fn tx_id(blocks: &RecordedBlocks, block: u64, position: usize) -> Result<TxId, CommandError> {
    let recorded = blocks.read(block)?;
    let unreadable = |reason: String| CommandError::about(&blocks.file(block), reason);
    if position >= recorded.len() {
        return Err(unreadable(format!("it has no transaction {position}, of which private data were recorded")));
    }
    let transaction = ledger::Transaction::parse(&recorded.envelope(position));
    let transaction = transaction.map_err(|error| unreadable(format!("transaction {position}: {}", error.reason)))?;
    Ok(transaction.header().to_tx_id())
}

fn recorded_sets(value: &Value) -> Result<Vec<RecordedSet>, String> {
    let mut found = Vec::new();
    for (index, block) in value.as_array().ok_or("the file must be a list")?.iter().enumerate() {
        let place = format!("[{index}].");
        let number = block["block"].as_u64().ok_or_else(|| format!("{place}block must be a number"))?;
        let transactions = block["transactions"].as_object();
        for (position, sets) in transactions.ok_or_else(|| format!("{place}transactions must be an object"))? {
            let place = format!("{place}transactions.{position}");
            let position = position.parse().map_err(|_| format!("{place}: its name must be a number"))?;
            for (index, set) in sets.as_array().ok_or_else(|| format!("{place} must be a list"))?.iter().enumerate() {
                let place = format!("{place}[{index}].");
                let writes = hex::decode(text(set, "rwset_hex", &place)?);
                let writes = writes.map_err(|error| format!("{place}rwset_hex must be in hexadecimal: {error}"))?;
                let set = PrivateSet {
                    namespace: text(set, "namespace", &place)?.to_owned(),
                    collection: text(set, "collection", &place)?.to_owned(),
                    writes: Bytes::from(writes),
                };
                found.push(RecordedSet { block: number, position, set });
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn malformed_sets_are_named_by_their_place() {
        let set = json!({"namespace": "pvt", "collection": "c", "rwset_hex": "0"});
        let cases = [
            (json!({}), "the file must be a list"),
            (json!([{}]), "[0].block must be a number"),
            (json!([{"block": 1}]), "[0].transactions must be an object"),
            (json!([{"block": 1, "transactions": {"x": []}}]), "[0].transactions.x: its name must be a number"),
            (json!([{"block": 1, "transactions": {"0": [set]}}]), "[0].transactions.0[0].rwset_hex must be"),
        ];
        for (value, text) in cases {
            let error = recorded_sets(&value).err().unwrap_or_default();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
