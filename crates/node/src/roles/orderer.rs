//! Puts transactions into blocks, alone or as one of a group, keeps them in a log of its own, and streams them to peers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use base::Bytes;
use base::rt::disk::Directory;
use chain::order::chain::Chain;
use chain::order::{Acknowledge, Broadcast, BroadcastError, Cutting, Engines, Orderer, OrdererOptions, Settings};
use consensus::ordered::sift::{Neighbour, Sift, SiftOptions};
use consensus::ordered::{Journal, OrderedLog, Processor};
use consensus::raft::{self, Member, RaftLog};
use consensus::{Group, GroupId, Layout, Place, Timing};
use gateway::service::Intake;
use identity::Signer;
use ledger::{Block, ChannelConfig};
use proto::common::Status;
use rma::{Fabric, Token};
use storage::{DataDirectory, GroupSync, WatermarkFile};

use crate::config;
use crate::network::NodeError;
use crate::process::Ended;

/// What an orderer is made of.
pub(crate) struct Options<'a> {
    /// For logs and errors.
    pub name: &'a str,
    /// Signs blocks.
    pub signer: Signer,
    /// Holds a log for each channel.
    pub directory: Directory,
    /// Where that is; nobody else uses it as long as the orderer runs.
    pub data: DataDirectory,
    pub sync: GroupSync,
    /// What orders: this one alone, or a group.
    pub engines: Arc<dyn Engines>,
    /// When an envelope is acknowledged.
    pub acknowledge: Acknowledge,
    /// Its folder, apart from the data, where it notes how far its log has come.
    pub notes: PathBuf,
    /// Whether its log may be lost with the power: nothing is noted then, and no earlier note holds any more.
    pub volatile: bool,
    /// When a block is cut.
    pub cutting: Cutting,
    /// Of the channel that it orders.
    pub genesis: &'a Block,
    /// Where it streams blocks.
    pub address: &'a str,
}

/// An orderer that runs.
pub(crate) struct Ordering {
    name: String,
    orderer: Arc<Orderer>,
    chain: Arc<Chain>,
    _data: DataDirectory,
}

impl Ordering {
    pub(crate) async fn start(options: Options<'_>) -> Result<Ordering, NodeError> {
        let name = options.name.to_owned();
        let failed = |source| NodeError::Chain { who: name.clone(), source };
        let channel = ChannelConfig::from_block(options.genesis)?.channel().to_string();
        let watermarks = super::watermarks(&options.notes).await?;
        if options.volatile {
            WatermarkFile::remove(&watermarks, &channel).await?;
        }
        let orderer = Orderer::open(OrdererOptions {
            watermarks: (!options.volatile).then_some(watermarks),
            signer: options.signer,
            directory: options.directory,
            sync: options.sync,
            engines: options.engines,
            settings: Settings { acknowledge: options.acknowledge, cutting: options.cutting, ..Settings::default() },
        })
        .await
        .map_err(failed)?;
        orderer.join(options.genesis).await.map_err(failed)?;
        orderer.serve(options.address).await.map_err(failed)?;
        let chain = orderer.chain(&channel).expect("its genesis block was just joined");
        Ok(Ordering { name, orderer, chain, _data: options.data })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn orderer(&self) -> &Arc<Orderer> {
        &self.orderer
    }

    /// The channel's log.
    pub(crate) fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// Completes when it has stopped by itself, and says why.
    pub(crate) async fn failed(&self) -> Ended {
        tokio::select! {
            () = self.chain.stopped() => super::said(&self.name, self.chain.failure()),
            () = self.orderer.unserved().stopped() => {
                Ended::defect(format!("{} streams no blocks any more: its port has ended", self.name))
            }
        }
    }

    /// Makes what waits durable and ends.
    pub(crate) async fn stop(&self) {
        self.orderer.stop().await;
    }
}

/// An orderer that refuses while its intake is closed: for envelopes that do not come through a port.
pub(crate) struct Guarded {
    pub orderer: Arc<Orderer>,
    pub intake: Intake,
}

#[async_trait]
impl Broadcast for Guarded {
    async fn broadcast(&self, channel: &str, envelope: Bytes) -> Result<(), BroadcastError> {
        if let Some(reason) = self.intake.problem() {
            return Err(BroadcastError::Rejected { status: Status::ServiceUnavailable, reason });
        }
        self.orderer.broadcast(channel, envelope).await
    }
}

/// When envelopes are acknowledged: by a group once they are in a safe block, since what waits at a leader goes with it.
pub(crate) fn acknowledge(config: &config::Ordering) -> Acknowledge {
    match config.engine {
        config::Engine::Solo => Acknowledge::Queued,
        config::Engine::Sift | config::Engine::Raft => Acknowledge::Durable,
    }
}

/// When blocks are cut.
pub(crate) fn cutting(cut: config::Cut) -> Cutting {
    match cut {
        config::Cut::Idle => Cutting::Idle,
        config::Cut::Limits => Cutting::Limits,
    }
}

/// The one group of a network, which has one channel.
pub(crate) const GROUP: GroupId = GroupId(1);
/// How long a disk of another orderer may take.
const DISK_MAX: Duration = Duration::from_secs(10);

/// Orders together with others, on passive memory nodes.
pub(crate) struct SiftEngines {
    pub fabric: Arc<dyn Fabric>,
    /// Which orderer this is, counted from 1.
    pub number: u64,
    /// By what memory nodes know it.
    pub name: String,
    pub token: Token,
    /// Where the memory nodes of the log are.
    pub memory: Vec<String>,
    /// Where the orderers' journals are kept, in the order of their numbers.
    pub keepers: Vec<String>,
    pub log_bytes: u64,
    pub volatile: bool,
}

#[async_trait]
impl Engines for SiftEngines {
    async fn open(&self, _channel: &str, journal: Arc<dyn Journal>) -> Result<Arc<dyn OrderedLog>, consensus::Error> {
        let place =
            |address: &String| Place { address: address.clone(), name: self.name.clone(), token: self.token.clone() };
        let group = Group {
            id: GROUP,
            layout: Layout::of_log(self.log_bytes),
            nodes: self.memory.iter().map(place).collect(),
            fabric: Arc::clone(&self.fabric),
            timing: Timing::of_busy_machines(),
        };
        let keepers = (1..).map(Processor).zip(&self.keepers);
        let processors = keepers.map(|(processor, address)| Neighbour { processor, address: address.clone() });
        let options = SiftOptions {
            group,
            me: Processor(self.number),
            processors: processors.collect(),
            journal,
            volatile: self.volatile,
            disk_max: DISK_MAX,
        };
        Ok(Arc::new(Sift::open(options).await?))
    }
}

/// Where an orderer's log on Raft is, in its data directory.
pub(crate) const RAFT: &str = "raft";

/// Bytes of blocks that are held in memory and in the log on Raft before both are cut to what the journal has.
const RAFT_LOG_BYTES: usize = 64 << 20;

/// Orders together with others, each with a log of its own.
pub(crate) struct RaftEngines {
    /// Which orderer this is, counted from 1.
    pub number: u64,
    /// Numbers of the orderers, this one included, and where they answer one another.
    pub members: BTreeMap<u64, String>,
    /// Whether it waits to be added to a group, if it has no log.
    pub joins: bool,
    /// Holds the log, in a folder of the channel's name.
    pub directory: PathBuf,
    /// The log on Raft, once it is open.
    pub log: Arc<OnceLock<Arc<RaftLog>>>,
}

#[async_trait]
impl Engines for RaftEngines {
    async fn open(&self, channel: &str, journal: Arc<dyn Journal>) -> Result<Arc<dyn OrderedLog>, consensus::Error> {
        let member = |(id, address): (&u64, &String)| Member { id: *id, address: address.clone(), learns: false };
        let founders = if self.joins { Vec::new() } else { self.members.iter().map(member).collect() };
        let options = raft::Options {
            directory: Some(self.directory.join(channel)),
            listen: self.members.get(&self.number).cloned().unwrap_or_default(),
            addresses: self.members.clone(),
            timing: raft::Timing::of_busy_machines(),
            snapshot_after_bytes: RAFT_LOG_BYTES,
            ..raft::Options::new(GROUP.0, self.number, founders)
        };
        let log = Arc::new(RaftLog::open(options, journal).await?);
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
    use crate::config::Config;
    use crate::network::{material, open_directory};

    /// A log that may go back was noted before it might, and the note refused it when it was to be durable again.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_note_of_an_earlier_time_is_removed_where_the_log_is_volatile() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let config = Config::default();
        let network = Network::create(&folder.path().join("network"), &config).await.expect("a network");
        let notes = folder.path().join("notes");
        let start = async |volatile| {
            let data = open_directory(&folder.path().join("data")).await?;
            Ordering::start(Options {
                name: "orderer",
                signer: material::orderer_signer(&network, 0)?,
                directory: data.subdirectory("blocks").await?,
                data,
                sync: GroupSync::new(),
                engines: Arc::new(SoloEngines),
                acknowledge: Acknowledge::Queued,
                notes: notes.clone(),
                volatile,
                cutting: cutting(config.ordering.cut),
                genesis: network.genesis(),
                address: "the blocks of an orderer that may be volatile",
            })
            .await
        };
        let noted = super::super::watermarks(&notes).await.expect("the disk works");
        let noted = WatermarkFile::open(noted, &config.network.channel).expect("there is none");
        let later = Watermark { epoch: Epoch(0), height: 5, block_hash: [5; 32] };
        noted.note(later).await.expect("the disk works");
        let error = start(false).await.err().expect("it has had more blocks").to_string();
        let (has, path) = ("has 1 blocks, and has had 5", noted.path());
        assert!(error.contains(has) && error.contains(&format!("remove {}", path.display())), "{error}");
        for volatile in [true, false] {
            start(volatile).await.expect("nothing is known of its log").stop().await;
            assert_eq!(path.exists(), !volatile, "it is noted again once the log stays");
        }
    }
}
