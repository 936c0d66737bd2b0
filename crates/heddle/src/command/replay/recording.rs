//! Reads a recording: the results of Fabric's peers for each block, and their state after the last one.
//!
//! `heddle ledger replay --help` describes the files. An error in a file names its place, such as
//! `blocks[1].commit_hash`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::source::{block_file, read_block};
use crate::failure::CommandError;

/// A directory with a channel of Fabric and the results of Fabric's peers, checked to be complete and readable.
pub struct Recording {
    /// The folder that holds the blocks.
    pub folder: PathBuf,
    /// The expected results of each block, from the genesis block on.
    pub blocks: Vec<ExpectedBlock>,
    /// The namespaces that the recorded state lists.
    pub namespaces: BTreeSet<String>,
    pub state: BTreeMap<StatePlace, StateRow>,
}

impl Recording {
    /// Reads the results, and checks that each block has a file that can be read.
    pub fn open(dir: &Path) -> Result<Recording, CommandError> {
        let folder = dir.join("blocks");
        if !block_file(&folder, 0).is_file() {
            let reason =
                "there is no blocks/0000.block; `heddle ledger replay --help` says what the directory must hold";
            return Err(CommandError::about(dir, reason));
        }
        let blocks = read_json(&dir.join("expected.json"), expected_blocks)?;
        let (namespaces, state) = read_json(&dir.join("state.json"), expected_state)?;
        for number in 0..blocks.len() as u64 {
            read_block(&folder, number)?;
        }
        let next = block_file(&folder, blocks.len() as u64);
        match next.try_exists() {
            Ok(false) => Ok(Recording { folder, blocks, namespaces, state }),
            Ok(true) => {
                Err(CommandError::about(&next, "expected.json does not list this block; remove it, or add its results"))
            }
            Err(error) => Err(CommandError::about(&next, error)),
        }
    }
}

/// Fabric's results for one block.
pub struct ExpectedBlock {
    pub transactions: Vec<ExpectedTransaction>,
    /// In hexadecimal; empty for the genesis block.
    pub commit_hash: String,
}

pub struct ExpectedTransaction {
    pub code: u8,
    /// What the transaction is for, if the recording says so.
    pub label: Option<String>,
}

/// One entry of the state, as the recording describes it.
#[derive(PartialEq, Eq)]
pub struct StateRow {
    /// SHA-256 of the value, in hexadecimal.
    pub value_sha256: String,
    /// In hexadecimal; empty if the key has no metadata.
    pub metadata_hex: String,
    /// The block, and the position in it of the transaction that wrote the key.
    pub version: [u64; 2],
}

/// The namespace, and the key in hexadecimal. In a collection the key is the hash of the private key.
pub type StatePlace = (String, String);

/// Reads a file in JSON; the file's name precedes what `read` finds wrong.
pub fn read_json<T>(path: &Path, read: impl FnOnce(&Value) -> Result<T, String>) -> Result<T, CommandError> {
    let advice = "`heddle ledger replay --help` describes the file";
    let bytes = std::fs::read(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => CommandError::about(path, format!("the file is missing; {advice}")),
        _ => CommandError::about(path, error),
    })?;
    let value = serde_json::from_slice(&bytes)
        .map_err(|error| CommandError::about(path, format!("it is not JSON: {error}")))?;
    read(&value).map_err(|reason| CommandError::about(path, format!("{reason}; {advice}")))
}

fn list<'a>(value: &'a Value, field: &str, place: &str) -> Result<&'a Vec<Value>, String> {
    value[field].as_array().ok_or_else(|| format!("{place}{field} must be a list"))
}

/// A string in an object; `place` is the object's place in its file.
pub fn text<'a>(value: &'a Value, field: &str, place: &str) -> Result<&'a str, String> {
    value[field].as_str().ok_or_else(|| format!("{place}{field} must be a string"))
}

fn expected_blocks(value: &Value) -> Result<Vec<ExpectedBlock>, String> {
    let mut blocks = Vec::new();
    for (index, block) in list(value, "blocks", "")?.iter().enumerate() {
        let place = format!("blocks[{index}].");
        if block["number"].as_u64() != Some(index as u64) {
            return Err(format!("{place}number must be {index}: all blocks are listed in order, from block 0"));
        }
        let mut transactions = Vec::new();
        for (position, transaction) in list(block, "transactions", &place)?.iter().enumerate() {
            let code = transaction["code"].as_u64().and_then(|code| u8::try_from(code).ok());
            let code =
                code.ok_or_else(|| format!("{place}transactions[{position}].code must be a number from 0 to 255"))?;
            let label = transaction["label"].as_str().map(str::to_owned);
            transactions.push(ExpectedTransaction { code, label });
        }
        let commit_hash = if index == 0 { "" } else { text(block, "commit_hash", &place)? };
        blocks.push(ExpectedBlock { transactions, commit_hash: commit_hash.to_owned() });
    }
    if blocks.is_empty() {
        return Err("blocks is empty".to_owned());
    }
    Ok(blocks)
}

fn expected_state(value: &Value) -> Result<(BTreeSet<String>, BTreeMap<StatePlace, StateRow>), String> {
    let (mut namespaces, mut rows) = (BTreeSet::new(), BTreeMap::new());
    for part in ["public", "private_hashes"] {
        for (index, content) in list(value, part, "")?.iter().enumerate() {
            let place = format!("{part}[{index}].");
            let name = text(content, "namespace_raw", &place)?;
            namespaces.insert(name.to_owned());
            for (index, entry) in list(content, "entries", &place)?.iter().enumerate() {
                let place = format!("{place}entries[{index}].");
                let (Some(block), Some(position)) = (entry["version"][0].as_u64(), entry["version"][1].as_u64()) else {
                    return Err(format!("{place}version must be a list of two numbers"));
                };
                let row = StateRow {
                    value_sha256: text(entry, "value_sha256", &place)?.to_owned(),
                    metadata_hex: entry["metadata_hex"].as_str().unwrap_or_default().to_owned(),
                    version: [block, position],
                };
                rows.insert((name.to_owned(), text(entry, "key_hex", &place)?.to_owned()), row);
            }
        }
    }
    Ok((namespaces, rows))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn malformed_results_are_named_by_their_place() {
        let (genesis, code) = (json!({"number": 0, "transactions": []}), json!([{"code": 256}]));
        let cases = [
            (json!({}), "blocks must be a list"),
            (json!({"blocks": []}), "blocks is empty"),
            (json!({"blocks": [{"number": 1}]}), "blocks[0].number must be 0"),
            (
                json!({"blocks": [genesis, {"number": 1, "transactions": code}]}),
                "blocks[1].transactions[0].code must be",
            ),
            (json!({"blocks": [genesis, {"number": 1, "transactions": []}]}), "blocks[1].commit_hash must be a string"),
        ];
        for (value, text) in cases {
            let error = expected_blocks(&value).err().unwrap_or_default();
            assert!(error.starts_with(text), "{error}");
        }
        let entry = json!([{"key_hex": "61", "value_sha256": "00", "version": [1]}]);
        let value = json!({"public": [{"namespace_raw": "kv", "entries": entry}], "private_hashes": []});
        assert!(expected_state(&value).is_err_and(|error| error.starts_with("public[0].entries[0].version must be")));
    }
}
