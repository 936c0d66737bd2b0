//! Assets and their owners: Fabric's `asset-transfer-basic` sample.
//!
//! Functions, arguments, JSON fields and the meaning of errors follow the sample, so that applications written for it
//! work unmodified. The sample exists in several languages. Where they differ, this contract chooses:
//! - fields are in alphabetical order, and numbers are JSON numbers;
//! - `GetAllAssets` of an empty ledger returns `[]` (the Go sample returns nothing, which is not JSON);
//! - both too many and too few arguments are refused, and an empty argument does not count as a number.
//!
//! As in the `asset-transfer-events` sample, each change of one asset sets an event. It is named after the function,
//! and its payload is the asset's JSON (for a delete, the last JSON). A function name may be prefixed with the
//! contract's name, as `basic` or as `SmartContract`; Fabric's samples use `SmartContract`.
//!
//! `GetAssetHistory` comes from the `asset-transfer-ledger-queries` sample. It returns every change of an asset, newest
//! first, as `record`, `txId`, `timestamp` and `isDelete`.
//!
//! State: asset id → the asset's JSON. Nothing else is in the namespace.

use base::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::interface::{ContractFunction, ContractInterface, FunctionCall, FunctionParameter, ResolvedFunction, shown};
use crate::key::KeyRange;
use crate::{
    Contract, ContractError, ContractResponse, ContractStub, HistoryCursor, KeyModification, RangeCursor, async_trait,
    key,
};

/// The longest result of `GetAllAssets`: what still fits into one message with everything around it.
pub const RESULT_BYTES_MAX: usize = 64 << 20;

/// One asset, with the fields of the sample in the order of its JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asset {
    /// In whole units of some currency.
    #[serde(rename = "AppraisedValue")]
    pub appraised_value: i64,
    /// Any text.
    #[serde(rename = "Color")]
    pub color: String,
    /// The state key.
    #[serde(rename = "ID")]
    pub id: String,
    /// Any text.
    #[serde(rename = "Owner")]
    pub owner: String,
    /// In no particular unit.
    #[serde(rename = "Size")]
    pub size: i64,
}

const ID: FunctionParameter = FunctionParameter::text("id");
const WHOLE_ASSET: &[FunctionParameter] = &[
    ID,
    FunctionParameter::text("color"),
    FunctionParameter::integer("size"),
    FunctionParameter::text("owner"),
    FunctionParameter::integer("appraisedValue"),
];

const INTERFACE: ContractInterface = ContractInterface {
    name: "SmartContract",
    aliases: &["basic"],
    version: "1.0",
    functions: &[
        ContractFunction::submit("InitLedger", &[]),
        ContractFunction::submit("CreateAsset", WHOLE_ASSET),
        ContractFunction::evaluate("ReadAsset", &[ID]),
        ContractFunction::submit("UpdateAsset", WHOLE_ASSET),
        ContractFunction::submit("DeleteAsset", &[ID]),
        ContractFunction::evaluate("AssetExists", &[ID]),
        ContractFunction::submit("TransferAsset", &[ID, FunctionParameter::text("newOwner")]),
        ContractFunction::evaluate("GetAllAssets", &[]),
        ContractFunction::evaluate("GetAssetHistory", &[ID]),
    ],
    schemas: || {
        json!({ "Asset": {
            "$id": "Asset",
            "type": "object",
            "additionalProperties": false,
            "required": ["AppraisedValue", "Color", "ID", "Owner", "Size"],
            "properties": {
                "AppraisedValue": { "type": "integer" },
                "Color": { "type": "string" },
                "ID": { "type": "string" },
                "Owner": { "type": "string" },
                "Size": { "type": "integer" },
            },
        }})
    },
};

/// The sample contract.
#[derive(Debug, Clone, Copy, Default)]
pub struct Basic;

#[async_trait]
impl Contract for Basic {
    fn name(&self) -> &str {
        "basic"
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
            "InitLedger" => init_ledger(tx),
            "CreateAsset" => create(tx, &asset_from(&call)?).await,
            "ReadAsset" => Ok(ContractResponse::success(existing(tx, call.text(0)?).await?)),
            "UpdateAsset" => update(tx, &asset_from(&call)?).await,
            "DeleteAsset" => delete(tx, call.text(0)?).await,
            "AssetExists" => exists(tx, call.text(0)?).await,
            "TransferAsset" => transfer(tx, call.text(0)?, call.text(1)?).await,
            "GetAllAssets" => all(tx).await,
            "GetAssetHistory" => history(tx, call.text(0)?).await,
            function => unreachable!("{function} is declared and not handled"),
        }
    }
}

fn asset_from(call: &FunctionCall<'_>) -> Result<Asset, ContractError> {
    Ok(Asset {
        id: call.text(0)?.to_owned(),
        color: call.text(1)?.to_owned(),
        size: call.integer(2)?,
        owner: call.text(3)?.to_owned(),
        appraised_value: call.integer(4)?,
    })
}

/// The assets that `InitLedger` creates: id, color, size, owner, value.
const INITIAL_ASSETS: [(&str, &str, i64, &str, i64); 6] = [
    ("asset1", "blue", 5, "Tomoko", 300),
    ("asset2", "red", 5, "Brad", 400),
    ("asset3", "green", 10, "Jin Soo", 500),
    ("asset4", "yellow", 10, "Max", 600),
    ("asset5", "black", 15, "Adriana", 700),
    ("asset6", "white", 15, "Michel", 800),
];

fn init_ledger(tx: &mut dyn ContractStub) -> Result<ContractResponse, ContractError> {
    for (id, color, size, owner, appraised_value) in INITIAL_ASSETS {
        let asset = Asset { id: id.into(), color: color.into(), size, owner: owner.into(), appraised_value };
        tx.put_state(id, encode(&asset))?;
    }
    Ok(ContractResponse::empty())
}

async fn create(tx: &mut dyn ContractStub, asset: &Asset) -> Result<ContractResponse, ContractError> {
    if find(tx, &asset.id).await?.is_some() {
        return Err(ContractError::application(format!("the asset {} already exists", shown(&asset.id))));
    }
    put_with_event(tx, "CreateAsset", asset)
}

async fn update(tx: &mut dyn ContractStub, asset: &Asset) -> Result<ContractResponse, ContractError> {
    existing(tx, &asset.id).await?;
    put_with_event(tx, "UpdateAsset", asset)
}

async fn delete(tx: &mut dyn ContractStub, id: &str) -> Result<ContractResponse, ContractError> {
    let last = existing(tx, id).await?;
    tx.delete_state(id)?;
    tx.set_event("DeleteAsset", last)?;
    Ok(ContractResponse::empty())
}

async fn exists(tx: &mut dyn ContractStub, id: &str) -> Result<ContractResponse, ContractError> {
    let exists = find(tx, id).await?.is_some();
    Ok(ContractResponse::success(if exists { "true" } else { "false" }))
}

/// Gives the asset to another owner and answers who had it.
async fn transfer(tx: &mut dyn ContractStub, id: &str, new_owner: &str) -> Result<ContractResponse, ContractError> {
    let mut asset = decode(id, &existing(tx, id).await?)?;
    let old_owner = std::mem::replace(&mut asset.owner, new_owner.to_owned());
    put_with_event(tx, "TransferAsset", &asset)?;
    Ok(ContractResponse::success(old_owner))
}

/// A JSON array of every asset, in the order of their ids.
async fn all(tx: &mut dyn ContractStub) -> Result<ContractResponse, ContractError> {
    let mut assets = RangeCursor::open(tx, KeyRange::all()).await?;
    let mut result = b"[".to_vec();
    while let Some(entry) = assets.next(tx).await? {
        if result.len() > 1 {
            result.push(b',');
        }
        result.extend_from_slice(&entry.value);
        if result.len() >= RESULT_BYTES_MAX {
            assets.close(tx);
            return Err(ContractError::application(format!("all assets are more than {RESULT_BYTES_MAX} bytes")));
        }
    }
    result.push(b']');
    Ok(ContractResponse::success(result))
}

/// One entry of a history, as the sample has it.
#[derive(Debug, Serialize)]
struct AssetChange {
    record: Asset,
    #[serde(rename = "txId")]
    tx_id: String,
    timestamp: String,
    #[serde(rename = "isDelete")]
    is_delete: bool,
}

/// A JSON array of what an asset was, newest first. A deletion leaves nothing but the id, as in the sample.
async fn history(tx: &mut dyn ContractStub, id: &str) -> Result<ContractResponse, ContractError> {
    key::check_simple(id)?;
    let mut changes = HistoryCursor::open(tx, id).await?;
    let mut result = b"[".to_vec();
    while let Some(KeyModification { tx_id, timestamp, value }) = changes.next(tx).await? {
        if result.len() > 1 {
            result.push(b',');
        }
        let gone =
            || Asset { appraised_value: 0, color: String::new(), id: id.to_owned(), owner: String::new(), size: 0 };
        let is_delete = value.is_none();
        let record = value.map_or_else(|| Ok(gone()), |value| decode(id, &value))?;
        let change = AssetChange { record, tx_id: tx_id.to_string(), timestamp: timestamp.to_rfc3339(), is_delete };
        serde_json::to_writer(&mut result, &change).expect("strings and integers are always JSON");
        if result.len() >= RESULT_BYTES_MAX {
            changes.close(tx);
            let message = format!("the history of {} is more than {RESULT_BYTES_MAX} bytes", shown(id));
            return Err(ContractError::application(message));
        }
    }
    result.push(b']');
    Ok(ContractResponse::success(result))
}

async fn find(tx: &mut dyn ContractStub, id: &str) -> Result<Option<Bytes>, ContractError> {
    key::check_simple(id)?;
    Ok(tx.get_state(id).await?)
}

async fn existing(tx: &mut dyn ContractStub, id: &str) -> Result<Bytes, ContractError> {
    let found = find(tx, id).await?;
    found.ok_or_else(|| ContractError::application(format!("the asset {} does not exist", shown(id))))
}

fn put_with_event(tx: &mut dyn ContractStub, event: &str, asset: &Asset) -> Result<ContractResponse, ContractError> {
    let value = encode(asset);
    tx.put_state(&asset.id, value.clone())?;
    tx.set_event(event, value)?;
    Ok(ContractResponse::empty())
}

fn encode(asset: &Asset) -> Bytes {
    serde_json::to_vec(asset).expect("strings and integers are always JSON").into()
}

fn decode(id: &str, value: &[u8]) -> Result<Asset, ContractError> {
    serde_json::from_slice(value)
        .map_err(|error| ContractError::application(format!("the state of asset {} is no asset: {error}", shown(id))))
}

#[cfg(test)]
mod tests;
