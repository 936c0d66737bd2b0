//! Puts transactions into blocks, alone or as a member of an ordering group; keeps the blocks in its own log and
//! streams them to peers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use base::Bytes;
use base::rt::disk::Directory;
use chain::order::orderer_channel::OrdererChannel;
use chain::order::{
    AcknowledgeMode, Broadcast, BroadcastConfig, BroadcastError, CuttingMode, Orderer, OrdererSetup, OrderingEngines,
};
use gateway::service::TransactionIntake;
use identity::Signer;
use ledger::{Block, ChannelConfig};
use ordered_log::raft::RaftLog;
use ordered_log::sift::{CpuNode, SiftConfig, SiftLog};
use ordered_log::{CpuNodeId, LogStore, OrderedLog};
use proto::common::Status;
use raft::RaftMember;
use rma::{Provider, Token};
use sift::{GroupId, GroupLayout, MemoryNodeAddress, SiftGroup, SiftTimeouts};
use storage::{DataDirectory, GroupSync, WatermarkFile};

use crate::config;
use crate::network::NodeError;
use crate::process::ProcessEnd;

/// What an orderer needs.
pub(crate) struct OrdererConfig<'a> {
    /// For logs and errors.
    pub name: &'a str,
    /// Signs blocks.
    pub signer: Signer,
    /// Holds a log for each channel.
    pub directory: Directory,
    /// The data directory that holds `directory`; locked while the orderer runs.
    pub data: DataDirectory,
    pub sync: GroupSync,
    /// The ordering engine: this orderer alone, or a group.
    pub engines: Arc<dyn OrderingEngines>,
    /// When an envelope is acknowledged.
    pub acknowledge: AcknowledgeMode,
    /// The orderer's folder, apart from the data, for its log's watermark.
    pub watermark_folder: PathBuf,
    /// Whether a power failure may lose the log. Then no watermark is recorded, and an earlier one is removed.
    pub volatile: bool,
    /// When a block is cut.
    pub cutting: CuttingMode,
    /// Whether it changes the order of a block's transactions so that more of them are valid.
    pub reorder: bool,
    /// Genesis block of the channel that it orders.
    pub genesis: &'a Block,
    /// The address at which it streams blocks.
    pub address: &'a str,
}

/// A running orderer.
pub(crate) struct OrdererInstance {
    name: String,
    orderer: Arc<Orderer>,
    chain: Arc<OrdererChannel>,
    _data: DataDirectory,
}

impl OrdererInstance {
    pub(crate) async fn start(options: OrdererConfig<'_>) -> Result<OrdererInstance, NodeError> {
        let name = options.name.to_owned();
        let failed = |source| NodeError::Chain { who: name.clone(), source };
        let channel = ChannelConfig::from_block(options.genesis)?.channel().to_string();
        let watermarks = super::watermarks(&options.watermark_folder).await?;
        if options.volatile {
            WatermarkFile::remove(&watermarks, &channel).await?;
        }
        let orderer = Orderer::open(OrdererSetup {
            watermarks: (!options.volatile).then_some(watermarks),
            signer: options.signer,
            directory: options.directory,
            sync: options.sync,
            engines: options.engines,
            settings: BroadcastConfig {
                acknowledge: options.acknowledge,
                cutting: options.cutting,
                reorder: options.reorder,
                ..BroadcastConfig::default()
            },
        })
        .await
        .map_err(failed)?;
        orderer.join(options.genesis).await.map_err(failed)?;
        orderer.serve(options.address).await.map_err(failed)?;
        let chain = orderer.channel(&channel).expect("its genesis block was just joined");
        Ok(OrdererInstance { name, orderer, chain, _data: options.data })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn orderer(&self) -> &Arc<Orderer> {
        &self.orderer
    }

    /// The channel's log.
    pub(crate) fn chain(&self) -> &Arc<OrdererChannel> {
        &self.chain
    }

    /// Completes when the orderer has stopped by itself, with the reason.
    pub(crate) async fn failed(&self) -> ProcessEnd {
        tokio::select! {
            () = self.chain.stopped() => super::end_reason(&self.name, self.chain.failure()),
            () = self.orderer.unserved().cancelled() => {
                ProcessEnd::defect(format!("{} has stopped streaming blocks: its port has ended", self.name))
            }
        }
    }

    /// Makes queued envelopes durable and stops.
    pub(crate) async fn stop(&self) {
        self.orderer.stop().await;
    }
}

/// Rejects envelopes while the intake is closed: for envelopes that do not come through a port.
pub(crate) struct IntakeGuardedOrderer {
    pub orderer: Arc<Orderer>,
    pub intake: TransactionIntake,
}

#[async_trait]
impl Broadcast for IntakeGuardedOrderer {
    async fn broadcast(&self, channel: &str, envelope: Bytes) -> Result<(), BroadcastError> {
        if let Some(reason) = self.intake.problem() {
            return Err(BroadcastError::Rejected { status: Status::ServiceUnavailable, reason });
        }
        self.orderer.broadcast(channel, envelope).await
    }
}

/// When envelopes are acknowledged: in a group once a committed block holds them, since a leader that fails loses its
/// queue.
pub(crate) fn acknowledge(config: &config::OrderingConfig) -> AcknowledgeMode {
    match config.engine {
        config::OrderingEngine::Solo => AcknowledgeMode::Queued,
        config::OrderingEngine::Sift | config::OrderingEngine::Raft => AcknowledgeMode::Durable,
    }
}

/// When blocks are cut.
pub(crate) fn cutting(cut: config::CutSetting) -> CuttingMode {
    match cut {
        config::CutSetting::Idle => CuttingMode::Idle,
        config::CutSetting::Limits => CuttingMode::Limits,
    }
}

/// The one ordering group of a network, which has one channel.
pub(crate) const GROUP: GroupId = GroupId(1);
/// How long another orderer's disk may take.
const DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// Orders in a group, on passive memory nodes.
pub(crate) struct SiftEngines {
    pub provider: Arc<dyn Provider>,
    /// This orderer's number, from 1.
    pub number: u64,
    /// The name by which memory nodes know this orderer.
    pub name: String,
    pub token: Token,
    /// Addresses of the log memory nodes.
    pub memory: Vec<String>,
    /// Addresses of the orderers' log stores, in the order of the orderers' numbers.
    pub acceptors: Vec<String>,
    pub log_bytes: u64,
    pub volatile: bool,
}

#[async_trait]
impl OrderingEngines for SiftEngines {
    async fn open(
        &self,
        _channel: &str,
        log_store: Arc<dyn LogStore>,
    ) -> Result<Arc<dyn OrderedLog>, ordered_log::Error> {
        let place = |address: &String| MemoryNodeAddress {
            address: address.clone(),
            name: self.name.clone(),
            token: self.token.clone(),
        };
        let group = SiftGroup {
            id: GROUP,
            layout: GroupLayout::of_log(self.log_bytes),
            nodes: self.memory.iter().map(place).collect(),
            provider: Arc::clone(&self.provider),
            timing: SiftTimeouts::of_busy_machines(),
        };
        let keepers = (1..).map(CpuNodeId).zip(&self.acceptors);
        let processors = keepers.map(|(processor, address)| CpuNode { id: processor, address: address.clone() });
        let options = SiftConfig {
            group,
            me: CpuNodeId(self.number),
            cpu_nodes: processors.collect(),
            log_store,
            volatile: self.volatile,
            disk_timeout: DISK_TIMEOUT,
        };
        Ok(Arc::new(SiftLog::open(options).await?))
    }
}

/// The folder of an orderer's Raft log in its data directory.
pub(crate) const RAFT_FOLDER: &str = "raft";

/// Bytes of blocks held in memory and in the Raft log before both are trimmed; the log store holds the trimmed blocks.
const RAFT_LOG_BYTES: usize = 64 << 20;

/// Orders in a group in which each orderer has its own log.
pub(crate) struct RaftEngines {
    /// This orderer's number, from 1.
    pub number: u64,
    /// The orderers' numbers, this one included, and the addresses at which they answer one another.
    pub members: BTreeMap<u64, String>,
    /// Whether it waits to be admitted to a group, if it has no log.
    pub joins: bool,
    /// The directory of the Raft log; each channel has a folder of its name.
    pub directory: PathBuf,
    /// The Raft log, once it is open.
    pub log: Arc<OnceLock<Arc<RaftLog>>>,
}

#[async_trait]
impl OrderingEngines for RaftEngines {
    async fn open(
        &self,
        channel: &str,
        log_store: Arc<dyn LogStore>,
    ) -> Result<Arc<dyn OrderedLog>, ordered_log::Error> {
        let member =
            |(id, address): (&u64, &String)| RaftMember { id: *id, address: address.clone(), is_learner: false };
        let founders = if self.joins { Vec::new() } else { self.members.iter().map(member).collect() };
        let options = raft::RaftConfig {
            directory: Some(self.directory.join(channel)),
            listen: self.members.get(&self.number).cloned().unwrap_or_default(),
            addresses: self.members.clone(),
            timing: raft::RaftTimeouts::of_busy_machines(),
            snapshot_after_bytes: RAFT_LOG_BYTES,
            ..raft::RaftConfig::new(GROUP.0, self.number, founders)
        };
        let log = Arc::new(RaftLog::open(options, log_store).await?);
        assert!(self.log.set(Arc::clone(&log)).is_ok(), "an orderer has one channel");
        Ok(log)
    }
}

#[cfg(test)]
mod tests {
    use base::Epoch;
    use chain::order::SoloEngines;
    use storage::Watermark;

    use super::*;
    use crate::Network;
    use crate::config::HeddleConfig;
    use crate::network::open_directory;

    /// Regression: a watermark recorded while the log was durable refused the log after it had been volatile, when it
    /// was to be durable again.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_note_of_an_earlier_time_is_removed_where_the_log_is_volatile() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let config = HeddleConfig::default();
        let network = Network::create(&folder.path().join("network"), &config).await.expect("a network");
        let notes = folder.path().join("notes");
        let start = async |volatile| {
            let data = open_directory(&folder.path().join("data")).await?;
            OrdererInstance::start(OrdererConfig {
                name: "orderer",
                signer: crate::network::orderer_signer(&network, 0)?,
                directory: data.subdirectory("blocks").await?,
                data,
                sync: GroupSync::new(),
                engines: Arc::new(SoloEngines),
                acknowledge: AcknowledgeMode::Queued,
                watermark_folder: notes.clone(),
                volatile,
                cutting: cutting(config.ordering.cut),
                reorder: config.ordering.reorder,
                genesis: network.genesis(),
                address: "the blocks of an orderer that may be volatile",
            })
            .await
        };
        let noted = super::super::watermarks(&notes).await.expect("the disk works");
        let noted = WatermarkFile::open(noted, &config.network.channel).expect("there is none");
        let later = Watermark { epoch: Epoch(0), height: 5, block_hash: [5; 32] };
        noted.advance(later).await.expect("the disk works");
        let error = start(false).await.err().expect("it has had more blocks").to_string();
        let (has, path) = ("has 1 blocks, and has had 5", noted.path());
        assert!(error.contains(has) && error.contains(&format!("remove {}", path.display())), "{error}");
        for volatile in [true, false] {
            start(volatile).await.expect("nothing is known of its log").stop().await;
            assert_eq!(path.exists(), !volatile, "it is noted again once the log stays");
        }
    }
}
