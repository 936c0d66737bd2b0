//! A client's calls of the contract with private data, and other organisations that send wrong private data for the same transactions.

use base::TxId;
use base::rt::simulation::Prng;
use ledger::rwset::PrivateSet;
use prost::Message as _;
use proto::kvrwset::{KvWrite, KvrwSet};

use super::SimulatedClient;
use super::envelope::Proposal;
use super::workload::{ContractCall, skewed};
use crate::network::members::{CHANNEL, ORGANIZATIONS};
use crate::network::private_links::organization;
use crate::vault::{MEMBERS, PAIR, VAULT};

/// Private keys.
pub const KEYS: u64 = 8;
/// Sets of one transaction that a hostile organisation sends at most.
const HOSTILE_SETS_MAX: u64 = 12;

/// A private key.
pub fn key(number: u64) -> String {
    format!("secret{number}")
}

/// Draws a call.
pub fn draw(rng: &mut Prng) -> ContractCall {
    let key = key(skewed(rng, KEYS));
    let value = format!("{:016x}", rng.number());
    match rng.below(10) {
        0..=3 => ContractCall::new(VAULT, "put", [key, value]),
        4 => ContractCall::new(VAULT, "replace", [key, value]),
        5..=7 => ContractCall::new(VAULT, "get", [key]),
        8 => ContractCall::new(VAULT, "delete", [key]),
        _ => ContractCall::new(VAULT, "purge", [key]),
    }
}

/// The places of the organisations whose peers endorse a call: only members can read, and a member must keep what is written.
pub fn endorsers(call: &ContractCall, needed: usize, rng: &mut Prng) -> Vec<usize> {
    let mut members: Vec<usize> = (0..MEMBERS).collect();
    if call.reads_private() {
        // Where all organisations must endorse, the transaction is invalid.
        while members.len() > needed {
            members.remove(rng.index(members.len()));
        }
        return members;
    }
    let member = members.remove(rng.index(members.len()));
    let mut others: Vec<usize> = (0..ORGANIZATIONS).filter(|place| *place != member).collect();
    while others.len() + 1 > needed {
        others.remove(rng.index(others.len()));
    }
    others.push(member);
    others.sort_unstable();
    others
}

impl SimulatedClient {
    /// Notes who will see the private writes of a proposal. Sometimes a hostile organisation sends wrong sets for the same transaction
    /// before.
    pub(super) fn prepare_private(&mut self, proposal: &Proposal, call: &ContractCall, places: &[usize]) {
        if !call.writes_private() {
            return;
        }
        if places.iter().any(|place| *place >= MEMBERS) {
            self.claims.shown_to_strangers.insert(proposal.tx_id.clone());
        }
        if self.rng.one_in(4) {
            let (from, to) = (self.rng.index(ORGANIZATIONS), self.rng.index(ORGANIZATIONS));
            let sets = 1 + self.rng.below(HOSTILE_SETS_MAX);
            self.send_hostile_sets(&proposal.tx_id, from, to, sets, call);
        }
    }

    /// Has the peer of an organisation take wrong sets for a transaction.
    fn send_hostile_sets(&self, tx_id: &str, from: usize, to: usize, sets: u64, call: &ContractCall) {
        let node = self.network.node(&self.network.primary(to));
        let Some(channel) = self.network.peer(node.name()).and_then(|peer| peer.channel(CHANNEL)) else { return };
        let key = call.args.get(1).map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default();
        let tx_id = TxId::new(tx_id);
        let set = move |number: u64| {
            let write = KvWrite { key: key.clone(), is_delete: false, value: format!("hostile {number}").into() };
            let set = KvrwSet { writes: vec![write], ..KvrwSet::default() };
            PrivateSet { namespace: VAULT.to_owned(), collection: PAIR.to_owned(), writes: set.encode_to_vec().into() }
        };
        let sets: Vec<PrivateSet> = (0..sets).map(set).collect();
        let from = organization(from);
        drop(node.spawn(async move {
            let (policies, height) = (channel.policies(), channel.height());
            let taken = channel.private().accept(&from, &*policies, height, &tx_id, &sets).await;
            taken.is_ok()
        }));
    }
}
