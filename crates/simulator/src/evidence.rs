//! Evaluates the end of a run: compares every peer's ledger and state with the oracle, and the clients' claims with the ledger.

use std::collections::{BTreeMap, BTreeSet};

use base::Bytes;
use contract::contracts::smallbank::balance_of;
use identity::Hash;
use ledger::Block;
use proto::protos::TxValidationCode as Code;

use crate::client::{ClientClaims, short};
use crate::early_aborts;
use crate::network::Network;
use crate::network::members::CHANNEL;
use crate::oracle::{ChannelPolicies, Oracle, ValidatedBlock};
use crate::private_evidence::{self, PrivateTables};
use crate::reads;
use crate::vault::{PAIR, VAULT};

/// The data of a peer at the end.
pub struct PeerEvidence {
    /// The peer's name.
    pub name: String,
    /// The peer's encoded blocks, from block 0 on.
    pub blocks: Vec<Bytes>,
    /// The digest of the world state before and after the last crash.
    pub digests: [Hash; 2],
}

/// The data of the network at the end.
pub struct RunEvidence {
    /// The orderer's blocks.
    pub blocks: Vec<Bytes>,
    /// Each organisation's peer.
    pub peers: Vec<PeerEvidence>,
    /// The private data of each organisation's peer, before and after the last crash; none in a seed without private data.
    pub private: [Vec<PrivateTables>; 2],
    /// The claims of all clients together.
    pub claims: ClientClaims,
}

/// How often each code occurs in the ledger.
pub type CodeCounts = BTreeMap<u8, u64>;

/// Checks everything.
///
/// # Errors
/// The first violation.
pub fn check_evidence(network: &Network, evidence: &RunEvidence) -> Result<CodeCounts, String> {
    let genesis = ledger::ChannelConfig::from_block(&network.members.genesis).map_err(|error| error.to_string())?;
    let private_data = network.scenario.private_data.as_ref();
    let mut oracle = Oracle::new(ChannelPolicies {
        channel: CHANNEL.to_owned(),
        members: genesis.msps().clone(),
        endorsements_min: network.scenario.endorsements_min,
        organizations: crate::network::members::ORGANIZATIONS,
        contracts: network.registry().names().map(str::to_owned).collect(),
        collections: private_data.iter().map(|of| ((VAULT.to_owned(), PAIR.to_owned()), of.block_to_live)).collect(),
    });
    let validated: Vec<ValidatedBlock> =
        evidence.blocks.iter().map(|block| oracle.add(block)).collect::<Result<_, _>>()?;
    check_last_configs(&evidence.blocks, &validated)?;
    for peer in &evidence.peers {
        check_ledger(peer, &evidence.blocks, &validated)?;
        for (digest, when) in peer.digests.iter().zip(["", " after a crash and a replay"]) {
            if *digest != oracle.digest() {
                return Err(format!("the state of {}{when} is not the oracle's", peer.name));
            }
        }
    }
    for endorsed in network.recorder.endorsements() {
        reads::check(&oracle, &endorsed)?;
    }
    for history in network.recorder.histories() {
        reads::check_history(&oracle, &history)?;
    }
    for answer in network.recorder.private_answers() {
        reads::check_private(&oracle, &answer)?;
    }
    let lifetime = private_data.map_or(0, |config| config.block_to_live);
    for (found, when) in evidence.private.iter().zip(["", ", after a crash and a replay"]) {
        private_evidence::check(&oracle, lifetime, &evidence.claims, found)
            .map_err(|reason| format!("{reason}{when}"))?;
    }
    check_claims(network, &evidence.claims, &validated)?;
    let transactions = validated.iter().flat_map(|block| &block.transactions);
    let valid = transactions.filter(|(_, code)| *code == Code::Valid).map(|(tx_id, _)| tx_id.as_str()).collect();
    for abort in &evidence.claims.aborted {
        early_aborts::check(&oracle, &valid, abort)?;
    }
    check_money(&evidence.claims, &oracle, &validated)?;
    let mut codes = CodeCounts::new();
    for (_, code) in validated.iter().flat_map(|block| &block.transactions) {
        *codes.entry(*code as u8).or_default() += 1;
    }
    Ok(codes)
}

/// Checks that each block names the newest configuration block up to and including it.
fn check_last_configs(ordered: &[Bytes], validated: &[ValidatedBlock]) -> Result<(), String> {
    let mut last_config = 0;
    for (number, (bytes, validated)) in (0..).zip(ordered.iter().zip(validated)) {
        if validated.config_update.is_some() {
            last_config = number;
        }
        let metadata = Block::parse(bytes).and_then(|block| block.orderer_metadata());
        let named = metadata.map_err(|error| format!("block {number} of the orderer: {error}"))?.last_config;
        if named != last_config {
            return Err(format!("block {number} names {named} as its last configuration block, not {last_config}"));
        }
    }
    Ok(())
}

fn check_ledger(peer: &PeerEvidence, ordered: &[Bytes], validated: &[ValidatedBlock]) -> Result<(), String> {
    let name = &peer.name;
    if peer.blocks.len() != ordered.len() {
        return Err(format!("{name} has {} blocks and the orderer {}", peer.blocks.len(), ordered.len()));
    }
    for (number, (bytes, (ordered, validated))) in peer.blocks.iter().zip(ordered.iter().zip(validated)).enumerate() {
        let parse = |bytes| Block::parse(bytes).map_err(|error| format!("block {number} of {name}: {error}"));
        let (block, ordered) = (parse(bytes)?, parse(ordered)?);
        let (have, want) = (block.encoded(), ordered.encoded());
        if have.header != want.header || have.data != want.data {
            return Err(format!("block {number} of {name} is not the orderer's"));
        }
        if block.metadata().signatures() != ordered.metadata().signatures() {
            return Err(format!("block {number} of {name} has other signatures than the orderer gave it"));
        }
        let filter = validated.filter();
        if block.metadata().filter()[..] != filter[..] {
            let have = block.metadata().filter();
            let place = have.iter().zip(&filter).position(|(have, want)| have != want).unwrap_or_default();
            let tx_id = validated.transactions.get(place).map(|(tx_id, _)| short(tx_id)).unwrap_or_default();
            return Err(format!(
                "{name} gives block {number} the filter {:?}, the oracle {filter:?}; first differs {place}, {tx_id}",
                &have[..]
            ));
        }
        let commit_hash = block.metadata().commit_hash().map_err(|error| error.to_string())?;
        if commit_hash != validated.commit_hash {
            return Err(format!("{name} has another commit hash for block {number} than the oracle"));
        }
    }
    Ok(())
}

fn check_claims(network: &Network, claims: &ClientClaims, validated: &[ValidatedBlock]) -> Result<(), String> {
    let mut first: BTreeMap<&str, (u8, u64)> = BTreeMap::new();
    for (number, block) in validated.iter().enumerate().skip(1) {
        for (tx_id, code) in block.transactions.iter().filter(|_| block.config_update.is_none()) {
            first.entry(tx_id).or_insert((*code as u8, number as u64));
        }
    }
    for (tx_id, commit) in network.recorder.commits() {
        match first.get(tx_id.as_str()) {
            Some((code, block)) if (*code, *block) == (commit.code, commit.block) => {}
            Some((code, block)) => {
                return Err(format!("a client was told {commit:?} of {tx_id}, which has code {code} in block {block}"));
            }
            None => return Err(format!("a client was told {commit:?} of {tx_id}, which is not on the ledger")),
        }
    }
    if let Some((tx_id, _)) = first.iter().find(|(tx_id, _)| !claims.submitted.contains(**tx_id)) {
        return Err(format!("transaction {tx_id} is on the ledger, but was never submitted"));
    }
    for update in validated.iter().filter_map(|block| block.config_update.as_ref()) {
        match claims.changes.get(update) {
            Some(true) => {}
            Some(false) => {
                return Err("the configuration was changed without the signatures that this needs".to_owned());
            }
            None => return Err("the configuration was changed, and no client had asked for it".to_owned()),
        }
    }
    let mut ordered: BTreeMap<&str, u64> = BTreeMap::new();
    for (tx_id, _) in
        validated.iter().skip(1).filter(|block| block.config_update.is_none()).flat_map(|block| &block.transactions)
    {
        *ordered.entry(tx_id).or_default() += 1;
    }
    let repeated = ordered.iter().find(|(tx_id, count)| claims.sent.get(**tx_id).is_none_or(|sent| *count > sent));
    if let Some((tx_id, count)) = repeated {
        return Err(format!("transaction {tx_id} is {count} times on the ledger, more often than it was sent"));
    }
    if let Some(tx_id) = claims.rejected.iter().find(|tx_id| first.contains_key(tx_id.as_str())) {
        return Err(format!("transaction {tx_id} is on the ledger, but the orderer had rejected it"));
    }
    let lost = claims.acknowledged.iter().find(|tx_id| !first.contains_key(tx_id.as_str()));
    match lost.filter(|_| network.scenario.durable_acknowledgements) {
        Some(tx_id) => Err(format!("transaction {tx_id} was acknowledged as durable and is not on the ledger")),
        None => Ok(()),
    }
}

/// Checks that the amount of money is the one that the valid transactions result in.
fn check_money(claims: &ClientClaims, oracle: &Oracle, validated: &[ValidatedBlock]) -> Result<(), String> {
    let accounts = oracle.state().iter().filter(|((namespace, key), _)| {
        namespace == "smallbank" && (key.starts_with("checking_") || key.starts_with("savings_"))
    });
    let mut there = 0;
    for ((_, key), row) in accounts {
        there += balance_of(&row.value).map_err(|error| format!("account {key}: {error}"))?;
    }
    let transactions = validated.iter().flat_map(|block| &block.transactions);
    let valid: BTreeSet<&str> =
        transactions.filter(|(_, code)| *code == Code::Valid).map(|(tx_id, _)| tx_id.as_str()).collect();
    let made = valid.iter().filter_map(|tx_id| claims.money.get(*tx_id));
    let (mut due, mut fees_max) = (0, 0);
    for (money, may_cost) in made {
        due += money;
        fees_max += i64::from(*may_cost);
    }
    if (due - fees_max..=due).contains(&there) {
        return Ok(());
    }
    Err(format!("the accounts hold {there} in all; they must hold {due}, less up to {fees_max} in fees"))
}
