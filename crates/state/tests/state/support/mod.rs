//! Helpers for the tests of both peer forms: random blocks, the history that they make, and memory pools.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::simulation::Sim;
use base::rt::{self, CancellationToken};
use base::{Bytes, Epoch, Version};
use pool::{AddressSpace, AddressSpaceConfig, Donor, MemoryNode, MemoryNodeConfig, ReadOnlySpace, ReadOnlySpaceConfig};
use rma::sim::SimProvider;
use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token};
use state::{Disaggregated, DisaggregatedConfig, Snapshot, UpdateBatch};
use storage::MemoryStateStore;

pub const NAMESPACES: [&str; 2] = ["basic", "smallbank"];
pub const KEYS: u64 = 24;

/// The live records after each block.
pub type History = Vec<BTreeMap<(String, String), (Bytes, Version)>>;

pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

pub fn next_block(draw: &mut Draw, number: u64, history: &mut History) -> UpdateBatch {
    let mut batch = UpdateBatch::default();
    let mut after = history.last().cloned().unwrap_or_default();
    for tx in 0..draw.below(6) as u32 {
        let namespace: Arc<str> = NAMESPACES[draw.below(2) as usize].into();
        let key = format!("k{:02}", draw.below(KEYS));
        let version = Version { block: number, tx };
        let value =
            (draw.below(4) > 0).then(|| Bytes::from(format!("{key}@{version}").repeat(draw.below(40) as usize)));
        batch.put(&namespace, key.as_str().into(), value.clone(), version);
        match value {
            Some(value) => after.insert((namespace.to_string(), key), (value, version)),
            None => after.remove(&(namespace.to_string(), key)),
        };
    }
    history.push(after);
    batch
}

pub async fn check(snapshot: &dyn Snapshot, history: &History, seed: u64) {
    let height = snapshot.height();
    let empty = BTreeMap::new();
    let expected = height.checked_sub(1).map_or(&empty, |last| &history[last as usize]);
    for namespace in NAMESPACES {
        let may_have_rows = snapshot.may_have_rows(namespace).await.expect("the view is admitted");
        let has_rows = expected.keys().any(|(other, _)| other == namespace);
        assert!(may_have_rows || !has_rows, "seed {seed}: {namespace} at height {height}");
        for number in 0..KEYS {
            let key = format!("k{number:02}");
            let found = snapshot.get(namespace, &key).await.expect("the view is admitted");
            let found = found.map(|record| (record.value, record.version));
            let wanted = expected.get(&(namespace.to_owned(), key.clone())).cloned();
            assert_eq!(found, wanted, "seed {seed}: {namespace}/{key} at height {height}");
        }
        for (start, end, limit) in
            [("", "", 100), ("k05", "k15", 100), ("k05", "", 3), ("", "k20", 1), ("k09", "k09", 5)]
        {
            let page = snapshot.range(namespace, start, end, limit).await.expect("the view is admitted");
            let more = page.more;
            let found: Vec<_> = page
                .entries
                .into_iter()
                .map(|entry| (entry.key.to_string(), entry.versioned.value, entry.versioned.version))
                .collect();
            let within = expected.iter().filter(|((other, key), _)| {
                other == namespace && key.as_str() >= start && (end.is_empty() || key.as_str() < end)
            });
            let mut wanted: Vec<_> =
                within.map(|((_, key), (value, version))| (key.clone(), value.clone(), *version)).collect();
            assert_eq!(more, wanted.len() > limit, "seed {seed}: {namespace}[{start}..{end}] limit {limit}");
            wanted.truncate(limit);
            let versions = snapshot.range_versions(namespace, start, end, limit).await.expect("the view is admitted");
            assert_eq!(versions.more, more, "seed {seed}: {namespace}[{start}..{end}] limit {limit}");
            let versions = versions.entries.into_iter().map(|(key, version)| (key.to_string(), version));
            let known = wanted.iter().map(|(key, _, version)| (key.clone(), *version));
            assert!(versions.eq(known), "seed {seed}: {namespace}[{start}..{end}] limit {limit} at height {height}");
            assert_eq!(found, wanted, "seed {seed}: {namespace}[{start}..{end}] limit {limit} at height {height}");
        }
    }
}

/// The rows of a block, as storage materialises them.
pub fn rows(batch: &UpdateBatch) -> Vec<(String, Vec<u8>, Version, Option<Bytes>)> {
    let row = |(namespace, key, update): (&Arc<str>, &Arc<str>, &state::Update)| {
        (namespace.to_string(), key.as_bytes().to_vec(), update.version, update.value.clone())
    };
    batch.iter().map(row).collect()
}

const TOKEN: Token = Token::new([7; TOKEN_BYTES]);
pub const OWNER: &str = "org1.peer";

/// Memory nodes of a simulation.
pub struct Donors {
    pub provider: SimProvider,
    pub names: Vec<String>,
    pub section_bytes: u64,
}

impl Donors {
    /// Starts `count` donors, each on its own node with its own budget.
    pub async fn start(sim: &Sim, count: u32, section_bytes: u64, budget_bytes: u64) -> Donors {
        let provider = SimProvider::new(sim);
        let names: Vec<String> = (0..count).map(|number| format!("memory{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            let (provider, address) = (provider.clone(), name.clone());
            sim.node(name).start(move || {
                let (provider, address) = (provider.clone(), address.clone());
                async move {
                    let options = HostConfig { node: NodeId(number as u32), tokens: Arc::new(|_| Some(TOKEN)) };
                    let host = provider.host(&address, options).await.expect("the address is free");
                    let options =
                        MemoryNodeConfig { host, budget_bytes, section_bytes, stop: CancellationToken::new() };
                    let _node = MemoryNode::start(options).await.expect("the options are good");
                    std::future::pending::<()>().await;
                }
            });
        }
        rt::sleep(std::time::Duration::from_millis(5)).await;
        Donors { provider, names, section_bytes }
    }

    /// The memory of a follower of the peer.
    pub async fn read_only(&self) -> Result<ReadOnlySpace, pool::Error> {
        let donor = |name: &String| Donor { address: name.clone(), token: TOKEN };
        ReadOnlySpace::open(ReadOnlySpaceConfig {
            owner: OWNER.to_owned(),
            provider: Arc::new(self.provider.clone()),
            donors: self.names.iter().map(donor).collect(),
            section_bytes: self.section_bytes,
            find_donor: Arc::new(|_| None),
        })
        .await
    }

    fn config(&self, epoch: u64, budget_bytes: u64) -> AddressSpaceConfig {
        let donor = |name: &String| Donor { address: name.clone(), token: TOKEN };
        AddressSpaceConfig {
            owner: OWNER.to_owned(),
            epoch: Epoch(epoch),
            provider: Arc::new(self.provider.clone()),
            donors: self.names.iter().map(donor).collect(),
            section_bytes: self.section_bytes,
            budget_bytes,
        }
    }

    /// The address space of the peer, under an epoch, without sections.
    pub async fn open(&self, epoch: u64, budget_bytes: u64) -> Result<AddressSpace, pool::Error> {
        AddressSpace::open(self.config(epoch, budget_bytes)).await
    }

    /// The address space of the peer, under an epoch, with the sections of the last one.
    pub async fn adopt(&self, epoch: u64, budget_bytes: u64) -> Result<AddressSpace, pool::Error> {
        AddressSpace::adopt_headed(self.config(epoch, budget_bytes)).await
    }
}

/// A disaggregated state over these donors and this store.
pub async fn disaggregated(
    space: AddressSpace,
    store: &MemoryStateStore,
    settings: DisaggregatedConfig,
) -> Disaggregated {
    Disaggregated::open(Arc::new(space), Arc::new(store.clone()), settings).await.expect("the store answers")
}
