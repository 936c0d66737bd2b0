//! The checks of a run after all faults are over: heights, states, pooled memory, ledgers on disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::rt;
use base::rt::disk::Directory;
use base::{BlockNumber, Bytes, ErrorKind};
use chain::Channel;
use chain::order::orderer_channel::OrdererChannel;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use identity::Hash;
use ledger::verify::{VerifyConfig, verify};
use state::WorldState;
use storage::GroupSync;
use storage::blocks::{BlockStore, BlockStoreConfig};

use crate::client::wait_until;
use crate::client::workload::keys;
use crate::evidence::PeerEvidence;
use crate::network::Network;
use crate::network::members::{CHANNEL, ORGANIZATIONS};
use crate::network::nodes::{BLOCKS, DATA};
use crate::scenario;
use crate::seed::HEALTHY_MAX;

/// Keys of a range that are read at a time.
const PAGE_ENTRIES: usize = 200;
/// The pause before a read that found the state busy.
const READ_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// How often the check of a state is repeated whose node may be replaced meanwhile.
const ATTEMPTS_MAX: usize = 5;
/// Within this time a node that has replaced another commits.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a read that found the state busy is retried.
const READS_MAX: usize = 50;

/// The channel of the peer that a node commits for.
///
/// # Errors
/// If the node does not run.
pub fn channel(network: &Network, node: &str) -> Result<Arc<Channel>, String> {
    let channel = network.peer(node).and_then(|peer| peer.channel(CHANNEL));
    channel.ok_or_else(|| format!("{node} does not run"))
}

/// By orderer: the number of blocks that it shows, once it has no others.
fn orderer_heights(network: &Network) -> Vec<Option<u64>> {
    let height = |chain: &OrdererChannel| Some(chain.height()).filter(|height| *height == chain.store().height());
    network.orderer_channels().iter().map(|chain| height(chain.as_ref()?)).collect()
}

/// Waits until all peers have as many blocks as every orderer.
pub async fn wait_until_caught_up(network: &Network) -> Result<u64, String> {
    let heights = || {
        let mut heights = orderer_heights(network);
        heights.extend(network.primaries().iter().map(|name| Some(channel(network, name).ok()?.height())));
        heights
    };
    let equal = || {
        let heights = heights();
        heights[0].is_some() && heights.iter().all(|height| *height == heights[0])
    };
    if wait_until(HEALTHY_MAX, equal).await {
        return Ok(heights()[0].expect("the heights were just compared"));
    }
    let stalls = network.primaries().into_iter().filter_map(|name| {
        let stalled = channel(network, &name).ok()?.stalled()?;
        Some(format!("; {name}: {stalled}"))
    });
    let stalls: String = stalls.collect();
    Err(format!("orderer and peers did not come to one height within {HEALTHY_MAX:?}: {:?}{stalls}", heights()))
}

/// Waits until all peers have as many blocks as the orderers of a group, one of which is away.
pub async fn wait_until_caught_up_without(network: &Network, away: &str) -> Result<(), String> {
    let names = network.scenario.orderers();
    let heights = || {
        let others = names.iter().zip(orderer_heights(network)).filter(|(name, _)| *name != away);
        let mut heights: Vec<Option<u64>> = others.map(|(_, height)| height).collect();
        heights.extend(network.primaries().iter().map(|name| Some(channel(network, name).ok()?.height())));
        heights
    };
    let equal = || {
        let heights = heights();
        heights[0].is_some() && heights.iter().all(|height| *height == heights[0])
    };
    match wait_until(HEALTHY_MAX, equal).await {
        true => Ok(()),
        false => Err(format!(
            "orderers and peers did not come to one height without {away} within {HEALTHY_MAX:?}: {:?}",
            heights()
        )),
    }
}

/// Runs something on a node.
///
/// # Errors
/// Its own, and if the node crashes.
pub async fn run_on_node<T: Send + 'static>(
    network: &Network,
    node: &str,
    what: impl Future<Output = Result<T, String>> + Send + 'static,
) -> Result<T, String> {
    let done = network.node(node).spawn(what).await.map_err(|_| format!("{node} went away"))?;
    done.map_err(|reason| format!("{node}: {reason}"))
}

/// The digest of every peer's state, whose keys must read alone as they read in ranges.
pub async fn digests(network: &Network) -> Result<Vec<Hash>, String> {
    let mut digests = Vec::new();
    for place in 0..ORGANIZATIONS {
        digests.push(read_from_primary(network, place, |name| digest(network, name).boxed()).await?);
    }
    Ok(digests)
}

/// Checks the node that commits for a peer. Nodes that replace one another by themselves may do so meanwhile: a violation
/// counts unless another epoch starts soon.
///
/// # Errors
/// Those of the check.
pub async fn read_from_primary<'a, T>(
    network: &'a Network,
    organization: usize,
    look: impl Fn(String) -> BoxFuture<'a, Result<T, String>>,
) -> Result<T, String> {
    for _ in 1..ATTEMPTS_MAX {
        let name = primary(network, organization).await;
        let epoch = network.epoch(organization);
        let found = look(name).await;
        let is_final = found.is_ok() || !network.has_automatic_failover(organization);
        if is_final || !wait_until(FAILOVER_TIMEOUT, || network.epoch(organization) > epoch).await {
            return found;
        }
    }
    look(primary(network, organization).await).await
}

/// The node that commits for a peer, once there is one.
async fn primary(network: &Network, organization: usize) -> String {
    wait_until(HEALTHY_MAX, || network.peer(&network.primary(organization)).is_some()).await;
    network.primary(organization)
}

async fn digest(network: &Network, name: String) -> Result<Hash, String> {
    let channel = channel(network, &name)?;
    let known = keys(&network.scenario);
    let looked_at = async move {
        let state = channel.state();
        check_reads(&**state, known).await?;
        state.digest().await.map_err(|error| format!("its state: {error}"))
    };
    run_on_node(network, &name, looked_at).await
}

async fn check_reads(state: &dyn WorldState, known: BTreeMap<&'static str, Vec<String>>) -> Result<(), String> {
    let snapshot = state.snapshot();
    for (namespace, keys) in known {
        let mut live = BTreeMap::new();
        let mut start = String::new();
        loop {
            let page = retry_read(|| snapshot.range(namespace, &start, "", PAGE_ENTRIES)).await?;
            let last = page.entries.last().map(|entry| format!("{}\0", entry.key));
            live.extend(page.entries.into_iter().map(|entry| (entry.key.to_string(), entry.versioned)));
            match last {
                Some(last) if page.more => start = last,
                _ => break,
            }
        }
        let absent = keys.into_iter().filter(|key| !live.contains_key(key)).map(|key| (key, None));
        let expected: Vec<_> = absent.collect();
        for (key, expected) in expected.into_iter().chain(live.into_iter().map(|(key, found)| (key, Some(found)))) {
            let found = retry_read(|| snapshot.get(namespace, &key)).await?;
            if found != expected {
                return Err(format!("{namespace} {key} reads as {found:?}, and in a range as {expected:?}"));
            }
        }
    }
    Ok(())
}

async fn retry_read<T, F>(mut read: impl FnMut() -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, state::Error>>,
{
    for _ in 0..READS_MAX {
        match read().await {
            Err(error) if error.kind() == ErrorKind::Retry => rt::sleep(READ_RETRY_INTERVAL).await,
            other => return other.map_err(|error| format!("its state: {error}")),
        }
    }
    Err("its state cannot be read".to_owned())
}

/// Checks that all granted memory is known to its owner, and that all memory of an owner is accounted for.
pub async fn check_memory(network: &Network) -> Result<(), String> {
    for place in 0..ORGANIZATIONS {
        if network.scenario.peer_modes[place].pools().is_none() {
            continue;
        }
        read_from_primary(network, place, |name| check_memory_of(network, place, name).boxed()).await?;
    }
    Ok(())
}

async fn check_memory_of(network: &Network, organization: usize, name: String) -> Result<(), String> {
    let pooled = network.primary_memory.get(&name).and_then(|pooled| pooled.opened());
    let opened = pooled.or_else(|| network.compute_nodes.get(&name)?.opened());
    let (space, state) = opened.ok_or_else(|| format!("{name} does not run"))?;
    let donors = network.scenario.memory_nodes(organization);
    let accounts = || {
        let given = donors.iter().map(|donor| network.provider.registered_bytes(donor).unwrap_or_default());
        let had = space.sections().len() as u64 * space.section_bytes();
        (given.sum::<u64>(), had)
    };
    let equal = || {
        let (given, had) = accounts();
        given == had
    };
    if !wait_until(HEALTHY_MAX, equal).await {
        let (given, had) = accounts();
        return Err(format!("memory nodes have given {given} bytes to {name}, which knows of {had}"));
    }
    let audited = async move {
        let mut audit = state.audit().await.map_err(|error| error.to_string())?;
        for _ in 0..READS_MAX {
            if audit.leaked == 0 {
                break;
            }
            rt::sleep(Duration::from_secs(1)).await;
            audit = state.audit().await.map_err(|error| error.to_string())?;
        }
        let is_whole = audit.leaked == 0
            && audit.dangling == 0
            && audit.leased == audit.free + audit.live + audit.quarantined
            && audit.live == audit.index + audit.records + audit.superseded + audit.untold;
        if is_whole { Ok(()) } else { Err(format!("memory is not accounted for: {audit:?}")) }
    };
    run_on_node(network, &name, audited).await
}

/// The orderer's blocks; checks that every other orderer has the same.
pub fn orderer_blocks(network: &Network) -> Result<Vec<Bytes>, String> {
    let mut all = network.orderer_channels().into_iter().map(|chain| blocks_of(&*chain.ok_or("an orderer went away")?));
    let first = all.next().expect("somebody orders")?;
    for blocks in all {
        let blocks = blocks?;
        if let Some(number) = (0..first.len().max(blocks.len())).find(|at| first.get(*at) != blocks.get(*at)) {
            return Err(format!("block {number} is not the same at all orderers"));
        }
    }
    Ok(first)
}

fn blocks_of(chain: &OrdererChannel) -> Result<Vec<Bytes>, String> {
    let block = |number| match chain.block(number) {
        Ok(Some(block)) => Ok(block),
        other => Err(format!("the orderer's block {number}: {other:?}")),
    };
    (0..chain.height()).map(block).collect()
}

/// The data of all peers, with the digests of their states before and after the last crash.
pub async fn peers(network: &Network, before: Vec<Hash>, after: Vec<Hash>) -> Result<Vec<PeerEvidence>, String> {
    let mut peers = Vec::new();
    for place in 0..ORGANIZATIONS {
        let name = primary(network, place).await;
        let channel = channel(network, &name)?;
        let blocks = run_on_node(network, &name, async move { read_all(&channel).await }).await?;
        peers.push(PeerEvidence { name, blocks, digests: [before[place], after[place]] });
    }
    Ok(peers)
}

async fn read_all(channel: &Channel) -> Result<Vec<Bytes>, String> {
    let mut blocks = Vec::new();
    for number in 0..channel.height() {
        match channel.read_block(number).await {
            Ok(Some(block)) => blocks.push(block),
            other => return Err(format!("its block {number}: {other:?}")),
        }
    }
    Ok(blocks)
}

/// Stops the peers, the storage nodes and the orderers, and verifies their data on disk, and in memory.
pub async fn verify_on_disk(network: &Network) -> Result<(), String> {
    for (place, name) in network.primaries().into_iter().enumerate() {
        if network.has_automatic_failover(place) {
            stop_compute_nodes(network, place, &name).await?;
        } else {
            let peer = network.peer(&name).ok_or_else(|| format!("{name} does not run"))?;
            run_on_node(network, &name, async move { peer.stop().await.map_err(|error| format!("stopping: {error}")) })
                .await?;
        }
        if !wait_until(HEALTHY_MAX, || network.peer(&name).is_none()).await {
            return Err(format!("{name} was stopped and keeps running"));
        }
        let disk = match network.scenario.peer_modes[place].pools() {
            None => name,
            Some(_) => {
                let donors = network.scenario.memory_nodes(place);
                let given = || donors.iter().filter_map(|donor| network.provider.registered_bytes(donor)).sum::<u64>();
                if !wait_until(HEALTHY_MAX, || network.primary_memory.get(&name).is_none() && given() == 0).await {
                    return Err(format!("{name} was stopped, and has {} bytes of memory", given()));
                }
                stop_storage(network, place).await?
            }
        };
        let epochs = verify_one(network, &disk, true).await?;
        for (number, epoch) in epochs.into_iter().enumerate() {
            network.recorder.check_epoch(&scenario::peer(place), number as u64, epoch)?;
        }
    }
    // Orderers are not stopped in order here; their logs are read as a crash leaves them.
    for name in network.scenario.orderers() {
        network.node(&name).crash();
        verify_one(network, &name, false).await?;
    }
    Ok(())
}

/// Stops the compute nodes of a peer, its primary last, so that no other node takes over.
async fn stop_compute_nodes(network: &Network, organization: usize, primary: &str) -> Result<(), String> {
    let mut names = network.scenario.compute_nodes(organization);
    names.sort_by_key(|name| name == primary);
    for name in names {
        network.compute_nodes.get(&name).ok_or_else(|| format!("{name} does not run"))?.stop.cancel();
        if !wait_until(HEALTHY_MAX, || network.compute_nodes.get(&name).is_none()).await {
            return Err(format!("{name} was stopped and keeps running"));
        }
    }
    Ok(())
}

async fn stop_storage(network: &Network, organization: usize) -> Result<String, String> {
    let name = scenario::storage(organization);
    let store = network.storage_nodes.get(&name).ok_or_else(|| format!("{name} does not run"))?;
    store.stop.cancel();
    drop(store);
    if !wait_until(HEALTHY_MAX, || network.storage_nodes.get(&name).is_none()).await {
        return Err(format!("{name} was stopped and keeps running"));
    }
    Ok(name)
}

/// Verifies the ledger on a node's disk; returns the epoch of each block.
async fn verify_one(network: &Network, node: &str, validated: bool) -> Result<Vec<base::Epoch>, String> {
    let options = VerifyConfig { validated, creators: false };
    let verified = async move {
        let directory = Directory::open(format!("{DATA}/{BLOCKS}/{CHANNEL}")).await;
        let directory = directory.map_err(|error| error.to_string())?;
        let store = BlockStore::open(directory, GroupSync::new(), BlockStoreConfig::default()).await;
        let (store, _) = store.map_err(|error| error.to_string())?;
        let report = verify(&store, options, |_| {}).await.map_err(|error| error.to_string());
        report.map_err(|reason| format!("the ledger on disk: {reason}"))?;
        let stored = store.iterate(BlockNumber(0)).map(|block| block.map(|block| block.epoch));
        stored.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())
    };
    run_on_node(network, node, verified).await
}
