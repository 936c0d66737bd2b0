//! Fabric's system contracts, as far as clients and explorers use them.
//!
//! | contract | functions |
//! |---|---|
//! | `qscc` | `GetChainInfo`, `GetBlockByNumber`, `GetBlockByHash`, `GetBlockByTxID`, `GetTransactionByID` |
//! | `cscc` | `GetChannels`, `GetConfigBlock`, `GetChannelConfig`; `JoinChain` is rejected |
//!
//! They read the ledger and the configuration, but no contract's state, and record nothing. `_lifecycle` records what it reads
//! and writes, and is a module of its own ([`super::lifecycle`]). The policy
//! of the resource `contract/function` decides who may call a function; `GetChannels` is open to this peer's own
//! organisation.

use std::sync::Arc;

use base::{BlockNumber, Bytes, MspId, TxId};
use contract::ContractResponse;
use identity::Identity;
use ledger::Block;
use ledger::config::{CONFIG_KEY, CONFIG_NAMESPACE};
use prost::Message;
use proto::common::{BlockchainInfo, ConfigEnvelope, Envelope};
use proto::protos::{ChannelInfo, ChannelQueryResponse, ProcessedTransaction};

use super::{EndorsingChannel, EndorsingChannels};

/// Whether a name is that of a system contract.
pub fn is_system(contract: &str) -> bool {
    matches!(contract, "qscc" | "cscc" | "_lifecycle" | "lscc")
}

/// A client's query.
pub struct SystemQuery<'a> {
    /// The system contract: a name for which [`is_system`] is true.
    pub contract: &'a str,
    /// The function's name first.
    pub args: &'a [Bytes],
    /// The channel of the proposal.
    pub channel: Option<&'a Arc<dyn EndorsingChannel>>,
    /// All channels of the peer, for queries that name another channel in their arguments.
    pub channels: &'a dyn EndorsingChannels,
    /// The client, whose signature was verified.
    pub creator: &'a Arc<Identity>,
    /// The peer's organisation.
    pub own: &'a MspId,
}

/// Answers, errors included.
pub async fn answer(query: &SystemQuery<'_>) -> ContractResponse {
    match try_answer(query).await {
        Ok(payload) => ContractResponse::success(payload),
        Err(message) => ContractResponse::failure(ContractResponse::ERROR, message),
    }
}

type SystemResult = Result<Bytes, String>;

async fn try_answer(query: &SystemQuery<'_>) -> SystemResult {
    let function = text(query.args.first(), "the function name")?;
    match (query.contract, function) {
        ("cscc", "GetChannels") if query.creator.msp_id() == query.own => Ok(channels(query.channels)),
        ("cscc", "GetChannels") => {
            Err("access denied for [GetChannels]: it is for members of this peer's own organisation".to_owned())
        }
        ("cscc", "JoinChain" | "JoinChainBySnapshot") => {
            Err("channels are joined by the peer's operator, not by a proposal".to_owned())
        }
        ("qscc" | "cscc", _) => {
            let channel = named_channel(query, function)?;
            let parameter = query.args.get(2);
            match (query.contract, function) {
                ("qscc", "GetChainInfo") => chain_info(channel.as_ref()).await,
                ("qscc", "GetBlockByNumber") => {
                    block_by_number(channel.as_ref(), text(parameter, "the block number")?).await
                }
                ("qscc", "GetBlockByHash") => block_by_hash(channel.as_ref(), parameter).await,
                ("qscc", "GetBlockByTxID") => {
                    block_by_tx_id(channel.as_ref(), text(parameter, "the transaction id")?).await
                }
                ("qscc", "GetTransactionByID") => {
                    transaction_by_id(channel.as_ref(), text(parameter, "the transaction id")?).await
                }
                ("cscc", "GetConfigBlock") => config_block(channel.as_ref()).await,
                ("cscc", "GetChannelConfig") => channel_config(channel.as_ref()),
                _ => Err(format!("Requested function {function} not found.")),
            }
        }
        _ => Err(format!("the contract {} is not offered", query.contract)),
    }
}

fn text<'a>(arg: Option<&'a Bytes>, what: &str) -> Result<&'a str, String> {
    let arg = arg.ok_or_else(|| format!("{what} is missing"))?;
    std::str::from_utf8(arg).map_err(|_| format!("{what} is not text"))
}

/// The channel that the second argument names, which need not be the proposal's.
fn named_channel(query: &SystemQuery<'_>, function: &str) -> Result<Arc<dyn EndorsingChannel>, String> {
    let name = text(query.args.get(1), "the channel")?;
    let channel = query.channels.channel(name).ok_or_else(|| format!("Invalid chain ID, {name}"))?;
    may_use(query, channel.as_ref(), function).map_err(|reason| match query.contract {
        "qscc" => format!("access denied for [{function}][{name}]: [{reason}]"),
        _ => format!("access denied for [{function}][{name}]: {reason}"),
    })?;
    Ok(channel)
}

/// Why the creator may not call a function on a channel, if it may not.
pub(super) fn may_use(query: &SystemQuery<'_>, channel: &dyn EndorsingChannel, function: &str) -> Result<(), String> {
    let resource = format!("{}/{function}", query.contract);
    let policies = channel.policies();
    // The creator is a member of the proposal's channel; it must be a member of the queried channel too.
    let member = policies.identify(query.creator.serialized()).map_err(|error| error.to_string())?;
    policies.check_use(&resource, &member)
}

fn channels(channels: &dyn EndorsingChannels) -> Bytes {
    let channels = channels
        .all()
        .iter()
        .map(|channel| ChannelInfo { channel_id: channel.policies().channel().to_string() })
        .collect();
    ChannelQueryResponse { channels }.encode_to_vec().into()
}

async fn read_block(channel: &dyn EndorsingChannel, number: u64) -> SystemResult {
    match channel.read_block(number).await {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(format!("Failed to get block number {number}, error no such block number [{number}] in index")),
        Err(error) => Err(format!("Failed to get block number {number}, error {error}")),
    }
}

async fn chain_info(channel: &dyn EndorsingChannel) -> SystemResult {
    let height = channel.height();
    let newest = height.checked_sub(1).ok_or("the ledger is empty")?;
    let block = Block::parse(&read_block(channel, newest).await?).map_err(|error| error.to_string())?;
    let info = BlockchainInfo {
        height,
        current_block_hash: Bytes::copy_from_slice(&block.hash()),
        previous_block_hash: block.header().previous_hash.map(|hash| Bytes::copy_from_slice(&hash)).unwrap_or_default(),
        ..BlockchainInfo::default()
    };
    Ok(info.encode_to_vec().into())
}

async fn block_by_number(channel: &dyn EndorsingChannel, number: &str) -> SystemResult {
    let number: u64 = number.parse().map_err(|_| format!("Failed to parse block number with error {number:?}"))?;
    // Fabric's way to ask for the newest block.
    let number = if number == u64::MAX { channel.height().saturating_sub(1) } else { number };
    read_block(channel, number).await
}

async fn block_by_hash(channel: &dyn EndorsingChannel, hash: Option<&Bytes>) -> SystemResult {
    let hash = hash.ok_or("Block hash must not be nil.")?;
    let found = match <[u8; 32]>::try_from(&hash[..]) {
        Ok(hash) => channel.number_by_hash(&hash).await.map_err(|error| error.to_string())?,
        Err(_) => None,
    };
    let BlockNumber(number) = found.ok_or("Failed to get block hash, error no such block hash in index")?;
    read_block(channel, number).await
}

async fn place(channel: &dyn EndorsingChannel, tx_id: &str) -> Result<(u64, usize, u8), String> {
    let unknown =
        || format!("Failed to get transaction with id {tx_id}, error no such transaction ID [{tx_id}] in index");
    let place = channel.find_transaction(&TxId::from(tx_id)).await.map_err(|error| error.to_string())?;
    let place = place.filter(|place| place.block.get() < channel.height()).ok_or_else(unknown)?;
    Ok((place.block.get(), place.index.get() as usize, place.code))
}

async fn block_by_tx_id(channel: &dyn EndorsingChannel, tx_id: &str) -> SystemResult {
    let (block, ..) = place(channel, tx_id).await?;
    read_block(channel, block).await
}

async fn transaction_by_id(channel: &dyn EndorsingChannel, tx_id: &str) -> SystemResult {
    let (number, index, code) = place(channel, tx_id).await?;
    let block = Block::parse(&read_block(channel, number).await?).map_err(|error| error.to_string())?;
    let envelope = Envelope::decode(block.envelope(index)).map_err(|error| error.to_string())?;
    let processed = ProcessedTransaction { transaction_envelope: Some(envelope), validation_code: i32::from(code) };
    Ok(processed.encode_to_vec().into())
}

/// The newest block with a configuration. The version of the state's row names it; without a row it is block 0.
async fn config_block(channel: &dyn EndorsingChannel) -> SystemResult {
    let snapshot = channel.snapshot().await.map_err(|error| error.to_string())?;
    let row = snapshot.get(CONFIG_NAMESPACE, CONFIG_KEY).await.map_err(|error| error.to_string())?;
    read_block(channel, row.map_or(0, |row| row.version.block)).await
}

fn channel_config(channel: &dyn EndorsingChannel) -> SystemResult {
    let content = channel.policies().config().content().clone();
    let envelope = ConfigEnvelope::decode(content).map_err(|error| error.to_string())?;
    Ok(envelope.config.unwrap_or_default().encode_to_vec().into())
}
