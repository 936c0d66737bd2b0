//! `heddle ledger show`.
//!
//! If the network runs, blocks come from its gateway (the system contract `qscc`). If it is stopped, they are read from
//! its directory, under the directory's lock, so that the network cannot start meanwhile.

use std::path::Path;

use base::{BlockNumber, Bytes, TxId};
use gateway::client::{GatewayClient, GrpcConnection, GrpcStatus};
use ledger::Block;
use prost::Message as _;
use proto::common::BlockchainInfo;
use serde_json::{Value, json};
use storage::DataDirectory;

use crate::cli::ledger::ShowArguments;
use crate::failure::CommandError;
use crate::{block_view, instance, output};

/// How many blocks are listed if none is named.
const BLOCKS_LISTED: u64 = 10;
/// The system contract that returns blocks.
const BLOCK_CONTRACT: &str = "qscc";

pub async fn run(arguments: &ShowArguments) -> Result<(), CommandError> {
    let source = LedgerSource::open(&arguments.directory.dir, &arguments.peer).await?;
    let view = match (arguments.block, &arguments.tx) {
        (Some(number), _) => {
            let height = source.height().await?;
            if number >= height {
                return Err(CommandError::new(format!(
                    "there is no block {number}; the newest is {}",
                    height.max(1) - 1
                )));
            }
            block_view::block(&source.block(number).await?)
        }
        (None, Some(id)) => {
            let block = source.block_with(id).await?;
            let index = block.envelopes().position(|envelope| {
                ledger::Transaction::decode(&envelope).is_ok_and(|transaction| transaction.header().tx_id() == id)
            });
            let index =
                index.ok_or_else(|| CommandError::new(format!("block {} does not hold {id}", block.number())))?;
            block_view::transaction(&block, index)
        }
        (None, None) => newest(&source).await?,
    };
    if arguments.json {
        return output::print_json(&view);
    }
    output::print(&match view["blocks"].as_array() {
        Some(blocks) => list(&view, blocks),
        None => block_view::outline(&view),
    })
}

async fn newest(source: &LedgerSource) -> Result<Value, CommandError> {
    let height = source.height().await?;
    let mut blocks = Vec::new();
    for number in (height.saturating_sub(BLOCKS_LISTED)..height).rev() {
        blocks.push(block_view::summary(&source.block(number).await?));
    }
    Ok(json!({ "channel": source.channel, "height": height, "blocks": blocks }))
}

fn list(view: &Value, blocks: &[Value]) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = vec![format!("channel {}, {} blocks", text(&view["channel"]), view["height"])];
    lines.push(format!("{:>8}  {:>12}  {:>8}  {:>12}  hash", "block", "transactions", "valid", "bytes"));
    for block in blocks {
        lines.push(format!(
            "{:>8}  {:>12}  {:>8}  {:>12}  {}",
            block["number"].to_string(),
            block["transactions"].to_string(),
            block["valid"].to_string(),
            block["bytes"].to_string(),
            text(&block["hash"])
        ));
    }
    lines.join("\n") + "\n"
}

/// The source of blocks.
struct LedgerSource {
    channel: String,
    kind: BlockSource,
}

enum BlockSource {
    Running(Box<GatewayClient>),
    /// Holds the directory's lock while it is read.
    Stopped(super::StoppedStore, #[allow(dead_code)] DataDirectory),
}

impl LedgerSource {
    async fn open(dir: &Path, peer: &str) -> Result<LedgerSource, CommandError> {
        if let Some(endpoints) = instance::running(dir)? {
            let number = super::organization(endpoints.gateways.iter().map(|gateway| &gateway.name), peer)? + 1;
            let connection =
                GrpcConnection::connect(&endpoints.target(dir, number)?).await.map_err(CommandError::new)?;
            let client = GatewayClient::new(connection, endpoints.user(dir, number)?);
            return Ok(LedgerSource { channel: endpoints.channel, kind: BlockSource::Running(Box::new(client)) });
        }
        let network = super::config(dir)?.network;
        let peer = &network.organizations[super::organization(network.organizations.iter(), peer)?];
        let lock = node::network::open_directory(dir).await?;
        let store = super::block_store(&lock, peer, &network.channel).await?;
        Ok(LedgerSource { channel: network.channel, kind: BlockSource::Stopped(store, lock) })
    }

    async fn height(&self) -> Result<u64, CommandError> {
        match &self.kind {
            BlockSource::Stopped(store, _) => Ok(store.height()),
            BlockSource::Running(client) => {
                let info = self.ask(client, "GetChainInfo", None).await?;
                let info = BlockchainInfo::decode(info)
                    .map_err(|error| CommandError::new(format!("GetChainInfo: {error}")))?;
                Ok(info.height)
            }
        }
    }

    async fn block(&self, number: u64) -> Result<Block, CommandError> {
        let bytes = match &self.kind {
            BlockSource::Stopped(store, _) => {
                let stored = store.read(BlockNumber(number)).map_err(CommandError::new)?;
                stored.ok_or_else(|| CommandError::new(format!("there is no block {number}")))?
            }
            BlockSource::Running(client) => self.ask(client, "GetBlockByNumber", Some(number.to_string())).await?,
        };
        Block::parse(&bytes).map_err(|error| CommandError::new(format!("block {number} cannot be read: {error}")))
    }

    async fn block_with(&self, id: &str) -> Result<Block, CommandError> {
        match &self.kind {
            BlockSource::Stopped(store, _) => {
                let place = store.find_transaction(&TxId::from(id)).map_err(CommandError::new)?;
                let place = place.ok_or_else(|| CommandError::new(format!("there is no transaction {id}")))?;
                self.block(place.block.get()).await
            }
            BlockSource::Running(client) => {
                let bytes = self.ask(client, "GetBlockByTxID", Some(id.to_owned())).await?;
                Block::parse(&bytes)
                    .map_err(|error| CommandError::new(format!("the block of {id} cannot be read: {error}")))
            }
        }
    }

    async fn ask(
        &self,
        client: &GatewayClient,
        function: &str,
        argument: Option<String>,
    ) -> Result<Bytes, CommandError> {
        let args: Vec<Bytes> = std::iter::once(self.channel.clone()).chain(argument).map(Bytes::from).collect();
        let proposal = client.proposal(&self.channel, BLOCK_CONTRACT, function, &args).sign();
        client
            .evaluate(&proposal)
            .await
            .map_err(|status: GrpcStatus| CommandError::new(format!("{function}: {status}")))
    }
}
