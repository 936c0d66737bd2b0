//! Sizes of FlexChain's evaluation (sections 6.2 to 6.4), divided by one number: what is in memory keeps its proportion to the data.

use std::sync::Arc;

use bench::flexchain::VALUE_BYTES;
use bench::flexchain::fig7::{ACCOUNT_BYTES, metadata_bytes};
use measurement::figure::Figure;
use measurement::workload::kmeans::KMeans;
use measurement::workload::smallbank::SmallBank;
use measurement::workload::ycsb::Ycsb;
use measurement::workload::{KeyChoice, Workload};

use super::peer_network::PeerMemory;

/// The paper's records and customers.
const RECORDS: u64 = 400_000;
const CUSTOMERS: u64 = 2_000_000;
/// Write buffers of the tables at a storage node: the default of the engine that the paper uses, and of Fabric.
const MEMTABLE: u64 = 4 << 20;
/// Caches of a storage node's tables.
const TABLE_CACHE: u64 = 4 << 20;
/// Remote memory holds all records with their heads, the index and superseded versions, and stays below the mark of eviction.
pub const WHOLE: f64 = 1.25;
/// Profiles of K-means and the most epochs of a clustering: it reads more than it computes, compared with the paper's.
const PROFILES: u64 = 800_000;
const EPOCHS: u64 = 20;

/// The paper's sizes over a number.
#[derive(Clone, Copy)]
pub struct PaperSizes {
    pub scale: u64,
    pub seed: u64,
}

impl PaperSizes {
    /// States them.
    pub fn state(self, figure: &mut Figure) {
        figure.setting("scale", self.scale);
        figure.setting("records", self.records(1));
        figure.setting("value_bytes", VALUE_BYTES);
        figure.setting("customers", self.customers());
        figure.setting("account_bytes", ACCOUNT_BYTES);
    }

    /// Records of YCSB, of this many times the paper's 4 GB.
    fn records(self, times: u64) -> u64 {
        (times * RECORDS / self.scale).max(100)
    }

    pub fn customers(self) -> u64 {
        (CUSTOMERS / self.scale).max(100)
    }

    pub fn profiles(self) -> u64 {
        (PROFILES / self.scale).max(500)
    }

    /// This many of the paper's MB.
    pub fn mb(self, megabytes: u64) -> u64 {
        megabytes * self.records(1) * VALUE_BYTES as u64 / 4_000
    }

    pub fn ycsb(self, mix: &str, times: u64, choice: KeyChoice) -> Arc<dyn Workload> {
        let mix = mix.parse().expect("a mix of YCSB");
        let Self { seed, .. } = self;
        Arc::new(Ycsb { records: self.records(times), value_bytes: VALUE_BYTES, mix, choice, seed })
    }

    pub fn smallbank(self, writes_percent: u64, choice: KeyChoice) -> Arc<dyn Workload> {
        let record_bytes = ACCOUNT_BYTES as u64;
        Arc::new(SmallBank { accounts: self.customers(), writes_percent, choice, record_bytes })
    }

    pub fn kmeans(self, choice: KeyChoice) -> Arc<dyn Workload> {
        let Self { seed, .. } = self;
        Arc::new(KMeans { profiles: self.profiles(), epochs: EPOCHS, choice, seed, ..KMeans::default() })
    }

    /// What a disaggregated peer has: caches on its compute node, and remote memory. Its storage node has little.
    pub fn disaggregated(self, caches: u64, remote: u64, value_bytes: u64) -> PeerMemory {
        let metadata = metadata_bytes(caches, value_bytes);
        let delta = self.mb(250);
        PeerMemory {
            page_cache: 0,
            remote,
            caches: [metadata, caches - metadata],
            records: 0,
            memtable: MEMTABLE,
            delta,
            tables: [TABLE_CACHE; 2],
        }
    }

    /// What a monolithic peer has whose memory holds all of the data: its cache of records and its write buffers are as large as
    /// the data each.
    pub fn monolithic_whole(self, data: u64) -> PeerMemory {
        let (records, delta) = (data * 5 / 4, self.mb(1_000));
        PeerMemory {
            page_cache: 2 * data,
            records,
            memtable: data,
            delta,
            tables: [data / 4, TABLE_CACHE.max(data / 16)],
            ..self.disaggregated(0, 0, 1)
        }
    }

    /// What a monolithic peer has with this much memory, less than the data: its cache of records, its buffers, and page cache.
    pub fn monolithic(self, local: u64) -> PeerMemory {
        PeerMemory {
            page_cache: local / 8,
            records: local * 5 / 8,
            memtable: local / 8,
            delta: local / 16,
            tables: [local / 32, local / 32],
            ..self.disaggregated(0, 0, 1)
        }
    }
}
