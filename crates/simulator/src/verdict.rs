//! The end of a run: every peer's ledger and state against the oracle, and what clients know against the ledger.

use std::collections::{BTreeMap, BTreeSet};

use base::Bytes;
use contract::contracts::smallbank::balance_of;
use identity::Hash;
use ledger::Block;
use proto::protos::TxValidationCode as Code;

use crate::client::{Claims, short};
use crate::network::Network;
use crate::network::members::CHANNEL;
use crate::oracle::{Judged, Oracle, Rules};
use crate::reads;

/// What a peer has at the end.
pub struct PeerEvidence {
    pub name: String,
    pub blocks: Vec<Bytes>,
    /// The digest of the world state before and after the last crash.
    pub digests: [Hash; 2],
}

/// What there is at the end.
pub struct Evidence {
    /// The orderer's blocks.
    pub blocks: Vec<Bytes>,
    pub peers: Vec<PeerEvidence>,
    pub claims: Claims,
}

/// How often each code stands in the ledger.
pub type Codes = BTreeMap<u8, u64>;

/// Checks everything.
///
/// # Errors
/// The first thing that is wrong.
pub fn reach(network: &Network, evidence: &Evidence) -> Result<Codes, String> {
    let genesis = ledger::ChannelConfig::from_block(&network.members.genesis).map_err(|error| error.to_string())?;
    let mut oracle = Oracle::new(Rules {
        channel: CHANNEL.to_owned(),
        members: genesis.msps().clone(),
        endorsements_min: network.scenario.endorsements_min,
        contracts: contract::Registry::native().names().map(str::to_owned).collect(),
    });
    let judged: Vec<Judged> = evidence.blocks.iter().map(|block| oracle.add(block)).collect::<Result<_, _>>()?;
    for peer in &evidence.peers {
        check_ledger(peer, &evidence.blocks, &judged)?;
        for (digest, when) in peer.digests.iter().zip(["", " after a crash and a replay"]) {
            if *digest != oracle.digest() {
                return Err(format!("the state of {}{when} is not the oracle's", peer.name));
            }
        }
    }
    for endorsed in network.witness.endorsements() {
        reads::check(&oracle, &endorsed)?;
    }
    for history in network.witness.histories() {
        reads::check_history(&oracle, &history)?;
    }
    check_claims(network, &evidence.claims, &judged)?;
    check_money(&evidence.claims, &oracle, &judged)?;
    let mut codes = Codes::new();
    for (_, code) in judged.iter().flat_map(|block| &block.transactions) {
        *codes.entry(*code as u8).or_default() += 1;
    }
    Ok(codes)
}

fn check_ledger(peer: &PeerEvidence, ordered: &[Bytes], judged: &[Judged]) -> Result<(), String> {
    let name = &peer.name;
    if peer.blocks.len() != ordered.len() {
        return Err(format!("{name} has {} blocks and the orderer {}", peer.blocks.len(), ordered.len()));
    }
    for (number, (bytes, (ordered, judged))) in peer.blocks.iter().zip(ordered.iter().zip(judged)).enumerate() {
        let parse = |bytes| Block::parse(bytes).map_err(|error| format!("block {number} of {name}: {error}"));
        let (block, ordered) = (parse(bytes)?, parse(ordered)?);
        let (have, want) = (block.encoded(), ordered.encoded());
        if have.header != want.header || have.data != want.data {
            return Err(format!("block {number} of {name} is not the orderer's"));
        }
        if block.metadata().signatures() != ordered.metadata().signatures() {
            return Err(format!("block {number} of {name} has other signatures than the orderer gave it"));
        }
        let filter = judged.filter();
        if block.metadata().filter()[..] != filter[..] {
            let have = block.metadata().filter();
            let place = have.iter().zip(&filter).position(|(have, want)| have != want).unwrap_or_default();
            let tx_id = judged.transactions.get(place).map(|(tx_id, _)| short(tx_id)).unwrap_or_default();
            return Err(format!(
                "{name} gives block {number} the filter {:?}, the oracle {filter:?}; first differs {place}, {tx_id}",
                &have[..]
            ));
        }
        let commit_hash = block.metadata().commit_hash().map_err(|error| error.to_string())?;
        if commit_hash != judged.commit_hash {
            return Err(format!("{name} has another commit hash for block {number} than the oracle"));
        }
    }
    Ok(())
}

fn check_claims(network: &Network, claims: &Claims, judged: &[Judged]) -> Result<(), String> {
    let mut first: BTreeMap<&str, (u8, u64)> = BTreeMap::new();
    for (number, block) in judged.iter().enumerate().skip(1) {
        for (tx_id, code) in &block.transactions {
            first.entry(tx_id).or_insert((*code as u8, number as u64));
        }
    }
    for (tx_id, commit) in network.witness.commits() {
        match first.get(tx_id.as_str()) {
            Some((code, block)) if (*code, *block) == (commit.code, commit.block) => {}
            Some((code, block)) => {
                return Err(format!("a client was told {commit:?} of {tx_id}, which has code {code} in block {block}"));
            }
            None => return Err(format!("a client was told {commit:?} of {tx_id}, which is not on the ledger")),
        }
    }
    if let Some((tx_id, _)) = first.iter().find(|(tx_id, _)| !claims.submitted.contains(**tx_id)) {
        return Err(format!("transaction {tx_id} is on the ledger, and nobody submitted it"));
    }
    if let Some(tx_id) = claims.refused.iter().find(|tx_id| first.contains_key(tx_id.as_str())) {
        return Err(format!("transaction {tx_id} is on the ledger, and the orderer refused it"));
    }
    let lost = claims.acknowledged.iter().find(|tx_id| !first.contains_key(tx_id.as_str()));
    match lost.filter(|_| network.scenario.durable_acknowledgements) {
        Some(tx_id) => Err(format!("transaction {tx_id} was acknowledged as durable and is not on the ledger")),
        None => Ok(()),
    }
}

/// Whether there is as much money as valid transactions made of it.
fn check_money(claims: &Claims, oracle: &Oracle, judged: &[Judged]) -> Result<(), String> {
    let accounts = oracle.state().iter().filter(|((namespace, key), _)| {
        namespace == "smallbank" && (key.starts_with("checking_") || key.starts_with("savings_"))
    });
    let mut there = 0;
    for ((_, key), row) in accounts {
        there += balance_of(&row.value).map_err(|error| format!("account {key}: {error}"))?;
    }
    let transactions = judged.iter().flat_map(|block| &block.transactions);
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
    Err(format!("there is money of {there}, and there must be {due} less up to {fees_max} in fees"))
}
