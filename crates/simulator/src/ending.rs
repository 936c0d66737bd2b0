//! What a run looks at when all faults are over: heights, states, pooled memory, ledgers on disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::rt;
use base::rt::disk::Directory;
use base::{BlockNumber, Bytes, ErrorKind};
use chain::Channel;
use chain::order::chain::Chain;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use identity::Hash;
use ledger::verify::{VerifyOptions, verify};
use state::WorldState;
use storage::GroupSync;
use storage::blocks::{BlockOptions, BlockStore};

use crate::client::wait_until;
use crate::client::workload::keys;
use crate::network::Network;
use crate::network::members::{CHANNEL, ORGANIZATIONS};
use crate::network::nodes::{BLOCKS, DATA};
use crate::scenario;
use crate::seed::HEALTHY_MAX;
use crate::verdict::PeerEvidence;

/// Keys of a range that are read at once.
const PAGE_ENTRIES: usize = 200;
/// The pause before a read that found the state busy.
const READ_AGAIN: Duration = Duration::from_millis(20);
/// How often a state is looked at whose node may be replaced meanwhile.
const LOOKS_MAX: usize = 5;
/// Within this a node that has replaced another commits.
const REPLACED_MAX: Duration = Duration::from_secs(5);
/// How often such a read is tried again.
const READS_MAX: usize = 50;

fn channel(network: &Network, node: &str) -> Result<Arc<Channel>, String> {
    let channel = network.peer(node).and_then(|peer| peer.channel(CHANNEL));
    channel.ok_or_else(|| format!("{node} does not run"))
}

/// How many blocks an orderer shows, once it has no others.
fn orderer_heights(network: &Network) -> Vec<Option<u64>> {
    let height = |chain: &Chain| Some(chain.height()).filter(|height| *height == chain.store().height());
    network.orders().iter().map(|chain| height(chain.as_ref()?)).collect()
}

/// Waits until all peers have as many blocks as every orderer.
pub async fn caught_up(network: &Network) -> Result<u64, String> {
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

/// Waits until all peers have as many blocks as the orderers of a group, of which one is away.
pub async fn caught_up_without(network: &Network, away: &str) -> Result<(), String> {
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
async fn on<T: Send + 'static>(
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
        digests.push(look(network, place, |name| digest(network, name).boxed()).await?);
    }
    Ok(digests)
}

/// Looks at the node that commits for a peer. Where nodes replace one another by themselves, that may happen meanwhile: what was
/// found wrong counts unless another reign begins soon.
async fn look<'a, T>(
    network: &'a Network,
    place: usize,
    look: impl Fn(String) -> BoxFuture<'a, Result<T, String>>,
) -> Result<T, String> {
    for _ in 1..LOOKS_MAX {
        let name = primary(network, place).await;
        let reign = network.reign(place);
        let found = look(name).await;
        let is_final = found.is_ok() || !network.follows(place);
        if is_final || !wait_until(REPLACED_MAX, || network.reign(place) > reign).await {
            return found;
        }
    }
    look(primary(network, place).await).await
}

/// The node that commits for a peer, once there is one.
async fn primary(network: &Network, place: usize) -> String {
    wait_until(HEALTHY_MAX, || network.peer(&network.primary(place)).is_some()).await;
    network.primary(place)
}

async fn digest(network: &Network, name: String) -> Result<Hash, String> {
    let channel = channel(network, &name)?;
    let known = keys(&network.scenario);
    let looked_at = async move {
        let state = channel.state();
        check_reads(&**state, known).await?;
        state.digest().await.map_err(|error| format!("its state: {error}"))
    };
    on(network, &name, looked_at).await
}

async fn check_reads(state: &dyn WorldState, known: BTreeMap<&'static str, Vec<String>>) -> Result<(), String> {
    let snapshot = state.snapshot();
    for (namespace, keys) in known {
        let mut live = BTreeMap::new();
        let mut start = String::new();
        loop {
            let page = patiently(|| snapshot.range(namespace, &start, "", PAGE_ENTRIES)).await?;
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
            let found = patiently(|| snapshot.get(namespace, &key)).await?;
            if found != expected {
                return Err(format!("{namespace} {key} reads as {found:?}, and in a range as {expected:?}"));
            }
        }
    }
    Ok(())
}

async fn patiently<T, F>(mut read: impl FnMut() -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, state::Error>>,
{
    for _ in 0..READS_MAX {
        match read().await {
            Err(error) if error.kind() == ErrorKind::Retry => rt::sleep(READ_AGAIN).await,
            other => return other.map_err(|error| format!("its state: {error}")),
        }
    }
    Err("its state cannot be read".to_owned())
}

/// Whether all pooled memory that is given is its owner's, and all that an owner has is accounted for.
pub async fn check_memory(network: &Network) -> Result<(), String> {
    for place in 0..ORGANIZATIONS {
        if network.scenario.forms[place].pools().is_none() {
            continue;
        }
        look(network, place, |name| check_memory_of(network, place, name).boxed()).await?;
    }
    Ok(())
}

async fn check_memory_of(network: &Network, place: usize, name: String) -> Result<(), String> {
    let pooled = network.pooled.of(&name).and_then(|pooled| pooled.opened());
    let opened = pooled.or_else(|| network.computes.of(&name)?.opened());
    let (space, state) = opened.ok_or_else(|| format!("{name} does not run"))?;
    let donors = network.scenario.memory_nodes(place);
    let accounts = || {
        let given = donors.iter().map(|donor| network.fabric.registered_bytes(donor).unwrap_or_default());
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
    on(network, &name, audited).await
}

/// The orderer's blocks, which every other orderer has as well.
pub fn orderer_blocks(network: &Network) -> Result<Vec<Bytes>, String> {
    let mut all = network.orders().into_iter().map(|chain| blocks_of(&*chain.ok_or("an orderer went away")?));
    let first = all.next().expect("somebody orders")?;
    for blocks in all {
        let blocks = blocks?;
        if let Some(number) = (0..first.len().max(blocks.len())).find(|at| first.get(*at) != blocks.get(*at)) {
            return Err(format!("block {number} is not the same at all orderers"));
        }
    }
    Ok(first)
}

fn blocks_of(chain: &Chain) -> Result<Vec<Bytes>, String> {
    let block = |number| match chain.block(number) {
        Ok(Some(block)) => Ok(block),
        other => Err(format!("the orderer's block {number}: {other:?}")),
    };
    (0..chain.height()).map(block).collect()
}

/// What all peers have, with the digests of their states before and after the last crash.
pub async fn peers(network: &Network, before: Vec<Hash>, after: Vec<Hash>) -> Result<Vec<PeerEvidence>, String> {
    let mut peers = Vec::new();
    for place in 0..ORGANIZATIONS {
        let name = primary(network, place).await;
        let channel = channel(network, &name)?;
        let blocks = on(network, &name, async move { read_all(&channel).await }).await?;
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

/// Stops the peers, the storage nodes and the orderers, and verifies what they leave on disk, and in memory.
pub async fn verify_on_disk(network: &Network) -> Result<(), String> {
    for (place, name) in network.primaries().into_iter().enumerate() {
        if network.follows(place) {
            stop_following(network, place, &name).await?;
        } else {
            let peer = network.peer(&name).ok_or_else(|| format!("{name} does not run"))?;
            on(network, &name, async move { peer.stop().await.map_err(|error| format!("stopping: {error}")) }).await?;
        }
        if !wait_until(HEALTHY_MAX, || network.peer(&name).is_none()).await {
            return Err(format!("{name} was stopped and runs on"));
        }
        let disk = match network.scenario.forms[place].pools() {
            None => name,
            Some(_) => {
                let donors = network.scenario.memory_nodes(place);
                let given = || donors.iter().filter_map(|donor| network.fabric.registered_bytes(donor)).sum::<u64>();
                if !wait_until(HEALTHY_MAX, || network.pooled.of(&name).is_none() && given() == 0).await {
                    return Err(format!("{name} was stopped, and has {} bytes of memory", given()));
                }
                stop_storage(network, place).await?
            }
        };
        let epochs = verify_one(network, &disk, true).await?;
        for (number, epoch) in epochs.into_iter().enumerate() {
            network.witness.check_epoch(&scenario::peer(place), number as u64, epoch)?;
        }
    }
    // They have no orderly way to end here; their logs are read as a crash leaves them.
    for name in network.scenario.orderers() {
        network.node(&name).crash();
        verify_one(network, &name, false).await?;
    }
    Ok(())
}

/// Stops the compute nodes of a peer, its primary last, so that nobody takes its place.
async fn stop_following(network: &Network, place: usize, primary: &str) -> Result<(), String> {
    let mut names = network.scenario.compute_nodes(place);
    names.sort_by_key(|name| name == primary);
    for name in names {
        network.computes.of(&name).ok_or_else(|| format!("{name} does not run"))?.stop.stop();
        if !wait_until(HEALTHY_MAX, || network.computes.of(&name).is_none()).await {
            return Err(format!("{name} was stopped and runs on"));
        }
    }
    Ok(())
}

async fn stop_storage(network: &Network, place: usize) -> Result<String, String> {
    let name = scenario::storage(place);
    let store = network.stores.of(&name).ok_or_else(|| format!("{name} does not run"))?;
    store.stop.stop();
    drop(store);
    if !wait_until(HEALTHY_MAX, || network.stores.of(&name).is_none()).await {
        return Err(format!("{name} was stopped and runs on"));
    }
    Ok(name)
}

/// Verifies the ledger on a node's disk; gives the epoch of each block.
async fn verify_one(network: &Network, node: &str, validated: bool) -> Result<Vec<base::Epoch>, String> {
    let options = VerifyOptions { validated, creators: false };
    let verified = async move {
        let directory = Directory::open(format!("{DATA}/{BLOCKS}/{CHANNEL}")).await;
        let directory = directory.map_err(|error| error.to_string())?;
        let store = BlockStore::open(directory, GroupSync::new(), BlockOptions::default()).await;
        let (store, _) = store.map_err(|error| error.to_string())?;
        let report = verify(&store, options, |_| {}).await.map_err(|error| error.to_string());
        report.map_err(|reason| format!("the ledger on disk: {reason}"))?;
        let stored = store.iterate(BlockNumber(0)).map(|block| block.map(|block| block.epoch));
        stored.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())
    };
    on(network, node, verified).await
}
