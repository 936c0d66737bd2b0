//! Who has private data at the end of a run, compared with the hashes on the ledger.
//!
//! 1. Every set that an honest member kept before it endorsed is at every member, whatever was lost meanwhile and whenever the
//!    organisation became a member. Sets of forged transactions, which nobody ever had, are nowhere.
//! 2. A member's value of a key has the hash that the state has. Values that nobody had may be missing.
//! 3. Members have no purged key in earlier sets, and no earlier value of it.
//! 4. Nobody has a set or a value that has expired.
//! 5. Others have neither sets nor values, apart from the sets that they endorsed themselves, and members give them none. An
//!    organisation that was a member keeps what it has, and gets nothing of later blocks.
//! 6. No set of a committed transaction waits any more, at members and others alike. So with rule 3 the earlier values of a
//!    purged key are in no table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::{BlockNumber, Bytes, ErrorKind, TxId, rt};
use chain::Channel;
use futures_util::FutureExt as _;
use identity::{hex, sha256};
use ledger::rwset::private_writes;
use private_data::rows::{self, FOREIGN, MISSING, PURGES, SETS, SWEEPS, SetLocation};
use private_data::{CollectionPolicies as _, SetDigest};
use prost::Message as _;
use proto::common::{MspPrincipal, MspRole};
use proto::lifecycle::StateData;
use proto::lifecycle::state_data::Type as Field;
use proto::protos::CollectionConfigPackage;
use proto::protos::collection_config::Payload;
use proto::protos::collection_policy_config::Payload as Members;
use storage::PrivateRows;
use storage::tables::{RangeEntry, RangeQuery};

use crate::client::ClientClaims;
use crate::client::envelope::claimed_id;
use crate::client::vault::{KEYS, key};
use crate::final_checks::{channel, read_from_primary, run_on_node};
use crate::network::Network;
use crate::network::members::ORGANIZATIONS;
use crate::network::private_links::organization;
use crate::oracle::{HashedWrites, Oracle, StateVersion};
use crate::vault::{MEMBERS, PAIR, VAULT};

/// Within this time after the faults a member has everything: it asks once a minute, and each request may take ten seconds.
const RECONCILED_WITHIN: Duration = Duration::from_secs(90);
/// How often the members are looked at meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Rows that are read at once.
const PAGE_ROWS: usize = 100;
/// How often a read that found the tables busy is repeated, and the pause before.
const READS_MAX: usize = 50;
const READ_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What the tables of a peer hold of the collection.
#[derive(Clone, Debug, Default)]
pub struct PrivateTables {
    /// Whether the peer's organisation is a member, by the newest definition that the peer has.
    is_member: bool,
    /// By transaction.
    sets: BTreeMap<StateVersion, Bytes>,
    /// By key: the newest value and its version.
    values: BTreeMap<String, (StateVersion, Bytes)>,
    /// The transactions whose sets the peer lacks.
    missing: BTreeSet<StateVersion>,
    /// The number of notes of sets that the peer need not have.
    foreign: usize,
    /// The number of sets that have expired.
    expired: usize,
    /// Purges that are not complete.
    sweeps: usize,
    /// Purged keys of which an older value can be read.
    unpurged: Vec<String>,
    /// The transactions of the sets that wait for their order.
    waiting: BTreeSet<String>,
    /// Those of them that are committed.
    unsettled: BTreeSet<String>,
    /// Sets that the peer gives an organisation that is no member.
    given_away: usize,
}

/// All rows of a namespace.
async fn all(rows: &dyn PrivateRows, namespace: &str) -> Result<Vec<RangeEntry>, String> {
    let (mut found, mut start) = (Vec::new(), Bytes::new());
    let mut retries = 0..READS_MAX;
    loop {
        let through = BlockNumber(u64::MAX);
        let query = RangeQuery { namespace, start: &start, end: &[], through, limit: PAGE_ROWS };
        match rows.range(query).await {
            Ok(page) => {
                found.extend(page.entries);
                match page.next {
                    Some(next) => start = next,
                    None => return Ok(found),
                }
            }
            Err(error) if error.kind() == ErrorKind::Retry && retries.next().is_some() => {
                rt::sleep(READ_RETRY_INTERVAL).await;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The locations in the collection that the keys of rows name.
fn locations(entries: Vec<RangeEntry>) -> impl Iterator<Item = (SetLocation, Bytes)> {
    let named = entries.into_iter().filter_map(|entry| Some((SetLocation::of_key(&entry.key)?, entry.value)));
    named.filter(|(at, _)| at.contract == VAULT && at.collection == PAIR)
}

fn version(at: &SetLocation) -> StateVersion {
    (at.version.block, at.version.tx.into())
}

async fn tables(channel: &Channel, place: usize, lifetime: u64) -> Result<PrivateTables, String> {
    let private = channel.private();
    let [committed, transient] = private.store().tables();
    // The notes first: the work that a note asks for is done before the note is removed.
    let missing = locations(all(committed.as_ref(), MISSING).await?).map(|(at, _)| version(&at)).collect();
    let foreign = locations(all(committed.as_ref(), FOREIGN).await?).count();
    let sweeps = all(committed.as_ref(), SWEEPS).await?.len();
    let sets: Vec<(SetLocation, Bytes)> = locations(all(committed.as_ref(), SETS).await?).collect();
    let digests = sets.iter().map(|(location, set)| SetDigest {
        location: location.clone(),
        tx_id: TxId::new(""),
        hash: sha256([&set[..]]),
    });
    let (digests, policies): (Vec<SetDigest>, _) = (digests.collect(), channel.policies());
    let access = policies.access(VAULT, PAIR).ok_or("a peer does not know the collection")?;
    let mut given_away = 0;
    for stranger in (0..=ORGANIZATIONS).map(organization).filter(|organization| !access.keeps(organization)) {
        let given = private.provide(&stranger, &*policies, channel.height(), &digests).await;
        given_away += given.map_err(|error| error.to_string())?.into_iter().flatten().count();
    }
    let expired = sets.iter().filter(|(at, _)| has_expired(version(at), lifetime, channel.height())).count();
    let values = all(committed.as_ref(), &rows::values(VAULT, PAIR)).await?.into_iter().map(|entry| {
        let at = (entry.version.block, entry.version.tx.into());
        (String::from_utf8_lossy(&entry.key).into_owned(), (at, entry.value))
    });
    let (mut waiting, mut unsettled) = (BTreeSet::new(), BTreeSet::new());
    for entry in all(transient.as_ref(), SETS).await? {
        let names = entry.key.split(|byte| *byte == 0).take(2).map(String::from_utf8_lossy).collect::<Vec<_>>();
        let [tx_id, contract] = &names[..] else { return Err("the key of a waiting set has no names".to_owned()) };
        if channel.tx_status(&TxId::new(&**tx_id)).await.map_err(|error| error.to_string())?.is_some() {
            unsettled.insert(tx_id.to_string());
        }
        if contract == VAULT {
            waiting.insert(tx_id.to_string());
        }
    }
    let mut found = PrivateTables {
        is_member: access.keeps(&organization(place)),
        values: values.collect(),
        missing,
        foreign,
        expired,
        sweeps,
        unpurged: Vec::new(),
        waiting,
        unsettled,
        given_away,
        sets: sets.into_iter().map(|(at, set)| (version(&at), set)).collect(),
    };
    for purge in all(committed.as_ref(), PURGES).await? {
        let Some((_, _, hash)) = rows::purged(&purge.key) else { continue };
        let Some(key) = (0..KEYS).map(key).find(|key| sha256([key.as_bytes()])[..] == hash[..]) else { continue };
        let before = BlockNumber(purge.version.block.saturating_sub(1));
        let older = committed.get_many(&[(&rows::values(VAULT, PAIR), key.as_bytes())], before).await;
        // The tables may also refuse to answer about an old block.
        if older.is_ok_and(|rows| rows.into_iter().flatten().any(|row| row.value.is_some())) {
            found.unpurged.push(key);
        }
    }
    Ok(found)
}

/// The private data of every peer.
///
/// # Errors
/// If a peer's tables cannot be read.
pub async fn read(network: &Network) -> Result<Vec<PrivateTables>, String> {
    let mut found = Vec::new();
    let lifetime = network.scenario.private_data.as_ref().map_or(0, |config| config.block_to_live);
    for place in 0..ORGANIZATIONS {
        let tables = read_from_primary(network, place, |name| {
            async move {
                let channel = channel(network, &name)?;
                run_on_node(network, &name, async move { tables(&channel, place, lifetime).await }).await
            }
            .boxed()
        });
        found.push(tables.await?);
    }
    Ok(found)
}

/// Waits until every member has the sets that honest members have kept, and has completed its purges. Returns the private data
/// of every peer; none in a seed without private data.
///
/// # Errors
/// If this takes too long.
pub async fn wait_until_reconciled(network: &Network, claims: &ClientClaims) -> Result<Vec<PrivateTables>, String> {
    if network.scenario.private_data.is_none() {
        return Ok(Vec::new());
    }
    let started = rt::now();
    loop {
        let found = read(network).await?;
        let mut lacking = Vec::new();
        for (place, tables) in found.iter().enumerate() {
            let PrivateTables { is_member, sweeps, expired, ref unsettled, .. } = *tables;
            let kept = |version: &&StateVersion| claims.kept.contains(&transaction(network, **version));
            let missing: Vec<&StateVersion> = tables.missing.iter().filter(|_| is_member).filter(kept).collect();
            let unasked = if is_member { tables.foreign } else { 0 };
            if !missing.is_empty() || sweeps + expired + unasked + unsettled.len() > 0 {
                lacking.push(format!(
                    "peer{} lacks {missing:?} and has {unasked} sets to ask for, {sweeps} purges to do, {expired} expired sets \
                     and waiting sets of the committed transactions {unsettled:?}",
                    place + 1
                ));
            }
        }
        if lacking.is_empty() {
            return Ok(found);
        }
        if rt::now() - started > RECONCILED_WITHIN {
            return Err(format!("private data are incomplete after {RECONCILED_WITHIN:?}: {}", lacking.join("; ")));
        }
        rt::sleep(POLL_INTERVAL).await;
    }
}

/// The id of a transaction of an orderer's block; empty if there is none.
fn transaction(network: &Network, (block, position): StateVersion) -> String {
    let chain = network.orderer_channels().into_iter().flatten().next();
    let block = chain.and_then(|chain| chain.block(block).ok().flatten());
    let block = block.and_then(|bytes| ledger::Block::parse(&bytes).ok());
    let envelope = block.filter(|block| (position as usize) < block.len());
    envelope.map(|block| claimed_id(&block.envelope(position as usize))).unwrap_or_default()
}

/// Whether a write at a version has expired in a ledger of this height.
fn has_expired((block, _): StateVersion, lifetime: u64, height: u64) -> bool {
    lifetime > 0 && block + lifetime + 1 < height
}

/// Compares the private data of every peer with the ledger. Writes expire after `lifetime` blocks, or never if that is 0.
///
/// # Errors
/// The first violation.
pub fn check(oracle: &Oracle, lifetime: u64, claims: &ClientClaims, found: &[PrivateTables]) -> Result<(), String> {
    let sets = oracle.private().sets();
    let sets: Vec<&HashedWrites> = sets.iter().filter(|set| set.contract == VAULT && set.collection == PAIR).collect();
    let has_expired = |version: StateVersion| has_expired(version, lifetime, oracle.height());
    let mut purges: BTreeMap<&str, StateVersion> = BTreeMap::new();
    for set in &sets {
        purges
            .extend(set.writes.iter().filter(|(_, write)| write.is_purge).map(|(key, _)| (key.as_str(), set.version)));
    }
    let lasting: Vec<&HashedWrites> = sets.iter().filter(|set| !has_expired(set.version)).copied().collect();
    for (place, tables) in found.iter().enumerate() {
        let memberships = memberships(oracle, place)?;
        let is_member = memberships.last().is_some_and(|(_, is_member)| *is_member);
        let checked = match is_member {
            _ if is_member != tables.is_member => Err("it has another definition than the ledger".to_owned()),
            true => lasting
                .iter()
                .try_for_each(|set| check_set(set, tables, &purges, claims))
                .and_then(|()| check_values(oracle, &sets, tables, &purges, claims)),
            false => check_stranger(tables, &memberships, claims),
        };
        checked
            .and_then(|()| check_expiry(tables, has_expired))
            .and_then(|()| check_waiting(tables, oracle))
            .map_err(|reason| format!("private data at peer{}: {reason}", place + 1))?;
    }
    Ok(())
}

/// From which block on, exclusive, the definitions on the ledger made an organisation a member of the collection, or did not.
fn memberships(oracle: &Oracle, place: usize) -> Result<Vec<(u64, bool)>, String> {
    let key = ("_lifecycle".to_owned(), format!("namespaces/fields/{VAULT}/Collections"));
    let name = format!("Org{}MSP", place + 1);
    let mut memberships = vec![(0, place < MEMBERS)];
    for ((block, _), _, value) in oracle.writes(&key) {
        let is_member = collection_members(value).map(|members| members.contains(&name));
        memberships.push((*block, is_member.ok_or("the ledger has a definition that is none")?));
    }
    Ok(memberships)
}

/// The members that a definition on the ledger gives the one collection.
fn collection_members(value: &Bytes) -> Option<BTreeSet<String>> {
    let Some(Field::Bytes(package)) = StateData::decode(value.clone()).ok()?.r#type else { return None };
    let package = CollectionConfigPackage::decode(package).ok()?;
    let Payload::StaticCollectionConfig(collection) = package.config.into_iter().next()?.payload?;
    let Members::SignaturePolicy(policy) = collection.member_orgs_policy?.payload?;
    let member = |principal: MspPrincipal| Some(MspRole::decode(principal.principal).ok()?.msp_identifier);
    policy.identities.into_iter().map(member).collect()
}

/// Rule 4.
fn check_expiry(tables: &PrivateTables, has_expired: impl Fn(StateVersion) -> bool) -> Result<(), String> {
    let values = tables.values.values().map(|(version, _)| version);
    match tables.sets.keys().chain(values).find(|version| has_expired(**version)) {
        Some(version) => Err(format!("what {version:?} wrote is still there and has expired")),
        None => Ok(()),
    }
}

/// Rule 6.
fn check_waiting(tables: &PrivateTables, oracle: &Oracle) -> Result<(), String> {
    // Those of any contract, and those of the collection's, as the peer knows them and as the ledger has them.
    match tables.unsettled.iter().chain(&tables.waiting).find(|tx_id| oracle.knows(tx_id)) {
        Some(tx_id) => Err(format!("a set of {tx_id} waits, which is committed")),
        None => Ok(()),
    }
}

/// Rules 1 and 3, for the set of a valid transaction at a member.
fn check_set(
    set: &HashedWrites,
    tables: &PrivateTables,
    purges: &BTreeMap<&str, StateVersion>,
    claims: &ClientClaims,
) -> Result<(), String> {
    let HashedWrites { version, tx_id, set_hash, writes, .. } = set;
    let Some(stored) = tables.sets.get(version) else {
        return match claims.kept.contains(tx_id) {
            true => Err(format!("the set of {tx_id} at {version:?} is lost")),
            false => Ok(()),
        };
    };
    let is_purged = |key: &str| purges.get(key).is_some_and(|purge| purge >= version);
    let kept: BTreeSet<&str> = writes.keys().map(String::as_str).filter(|key| !is_purged(key)).collect();
    if kept.len() == writes.len() {
        return match sha256([&stored[..]]) == *set_hash {
            true => Ok(()),
            false => Err(format!("the set of {tx_id} at {version:?} is another one")),
        };
    }
    let stored = private_writes(stored).map_err(|error| format!("the set of {tx_id}: {error}"))?;
    let stored: BTreeMap<String, Option<Bytes>> =
        stored.into_iter().map(|write| (hex::encode(sha256([write.key.as_bytes()])), write.value)).collect();
    if stored.keys().any(|key| is_purged(key)) {
        return Err(format!("the set of {tx_id} at {version:?} has a key that was purged"));
    }
    let is_right = |key: &&str| {
        let hash = stored.get(*key).map(|value| value.as_ref().map(|value| sha256([&value[..]]).to_vec()));
        hash == Some(writes[*key].value_hash.as_ref().map(|hash| hash.to_vec()))
    };
    match kept.iter().all(is_right) {
        true => Ok(()),
        false => Err(format!("the set of {tx_id} at {version:?} has lost more than the purged keys")),
    }
}

/// Rules 2 and 3, for the values of a member.
fn check_values(
    oracle: &Oracle,
    sets: &[&HashedWrites],
    tables: &PrivateTables,
    purges: &BTreeMap<&str, StateVersion>,
    claims: &ClientClaims,
) -> Result<(), String> {
    for key in (0..KEYS).map(key) {
        let hash = hex::encode(sha256([key.as_bytes()]));
        let writer = sets.iter().rfind(|set| set.writes.contains_key(&hash));
        let row = oracle.state().get(&(format!("{VAULT}$$h{PAIR}"), hash.clone()));
        let value = tables.values.get(&key);
        if let (Some(row), Some(writer)) = (row, writer)
            && claims.kept.contains(&writer.tx_id)
            && value.is_none_or(|(_, value)| sha256([&value[..]])[..] != row.value[..])
        {
            return Err(format!("{key} has not the value of {} at {:?}", writer.tx_id, writer.version));
        }
        if let (Some((version, _)), Some(purge)) = (value, purges.get(hash.as_str()))
            && version <= purge
        {
            return Err(format!("{key} has its value of {version:?}, and was purged at {purge:?}"));
        }
    }
    match tables.unpurged.first() {
        Some(key) => Err(format!("{key} was purged, and an older value can be read")),
        None if tables.given_away > 0 => Err(format!("{} sets were given to a stranger", tables.given_away)),
        None => Ok(()),
    }
}

/// Rule 5.
fn check_stranger(tables: &PrivateTables, memberships: &[(u64, bool)], claims: &ClientClaims) -> Result<(), String> {
    // The block that ends a membership is committed under it.
    let last_member = memberships.windows(2).filter(|pair| pair[0].1).map(|pair| pair[1].0).max();
    let values = tables.values.values().map(|(version, _)| version);
    if let Some(version) =
        tables.sets.keys().chain(values).find(|(block, _)| last_member.is_none_or(|last| *block > last))
    {
        return Err(format!("it is no member and has what {version:?} wrote"));
    }
    match tables
        .waiting
        .iter()
        .filter(|_| last_member.is_none())
        .find(|tx_id| !claims.shown_to_strangers.contains(*tx_id))
    {
        Some(tx_id) => Err(format!("it is no member and was sent the set of {tx_id}")),
        None => Ok(()),
    }
}
