//! Checks the transactions that a peer would not have had ordered, because they can never be valid ([`chain::early_abort`]).
//!
//! The peer names a version of a key that the transaction read. A valid transaction must have written that version, after
//! the version that was read. And the transaction must be in no block.

use std::collections::BTreeSet;

use base::Bytes;
use chain::commit::recent_writes::OutdatedRead;
use prost::Message;
use proto::kvrwset::KvrwSet;
use proto::rwset::TxReadWriteSet;

use crate::client::envelope;
use crate::oracle::{Oracle, StateKey, StateVersion};
use crate::reads::hashed_reads;

/// A transaction that a node would not have had ordered.
#[derive(Clone, Debug)]
pub struct EarlyAbort {
    /// The node.
    pub node: String,
    /// The transaction.
    pub tx_id: String,
    /// Its reads and writes.
    pub set: TxReadWriteSet,
    /// The newer version that the node names.
    pub newest: StateVersion,
}

impl EarlyAbort {
    /// What a node answered about an envelope.
    ///
    /// # Panics
    /// If the answer has not 16 bytes: the simulated network changes no message.
    pub fn new(node: &str, envelope: &Bytes, answer: &[u8]) -> EarlyAbort {
        let number = |place: usize| {
            let bytes = answer[8 * place..8 * place + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        EarlyAbort {
            node: node.to_owned(),
            tx_id: envelope::claimed_id(envelope),
            set: envelope::read_write_set_of(envelope).unwrap_or_default(),
            newest: (number(0), number(1)),
        }
    }
}

/// The answer of a node: the version that it names.
pub fn encode(outdated: &OutdatedRead) -> Bytes {
    let OutdatedRead { newest, .. } = outdated;
    [newest.block.to_le_bytes(), newest.transaction.to_le_bytes()].concat().into()
}

/// Checks one of them. `valid` are the valid transactions of the ledger.
///
/// # Errors
/// If the transaction could have been valid.
pub fn check(oracle: &Oracle, valid: &BTreeSet<&str>, abort: &EarlyAbort) -> Result<(), String> {
    let EarlyAbort { node, tx_id, set, newest } = abort;
    if valid.contains(tx_id.as_str()) {
        return Err(format!("{node} aborts {tx_id} early, which is valid"));
    }
    let public = set.ns_rwset.iter().flat_map(|namespace| {
        let reads = KvrwSet::decode(namespace.rwset.clone()).unwrap_or_default().reads;
        reads.into_iter().map(|read| {
            let version = read.version.map(|version| (version.block_num, version.tx_num));
            ((namespace.namespace.clone(), read.key), version)
        })
    });
    let is_outdated = |(key, seen): (StateKey, Option<StateVersion>)| {
        // A delete has no version of its own in the history.
        let written = |(block, version): &(u64, Option<StateVersion>)| match version {
            Some(version) => version == newest,
            None => *block == newest.0,
        };
        seen.is_some_and(|seen| seen < *newest) && oracle.history(&key).iter().any(written)
    };
    match public.chain(hashed_reads(set)).any(is_outdated) {
        true => Ok(()),
        false => {
            Err(format!("{node} aborts {tx_id} early because of version {newest:?}, which replaced none of its reads"))
        }
    }
}
