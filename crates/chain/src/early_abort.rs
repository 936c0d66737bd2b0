//! Recognises, before they are ordered, transactions that can never be valid.
//!
//! A transaction that read a version of a key before the one which a committed transaction has written gets the code
//! MVCC_READ_CONFLICT in whichever block it is. So a gateway can answer its client at once, and spare the network the
//! transaction. Only what is certain counts:
//! 1. The table of [recent writes](crate::commit::recent_writes) has a newer version of a key that the transaction read.
//! 2. The envelope is from a member of the channel who may write to it, and who has signed it. Nobody else learns from the
//!    answer which keys were written.
//! 3. The transaction is in no committed block. If it is in one, for example because its client lost the answer and submits it again, it
//!    may be valid there: its own write is the newer version. A block that this peer has not committed yet cannot hold it
//!    as valid, since the newer version is committed.
//!
//! In any other case the transaction is ordered as usual, and the peers decide.

use base::Bytes;
use base::{TxId, rt};
use ledger::rwset::ReadWriteSet;
use ledger::transaction::{Transaction, results_of_valid};

use crate::commit::recent_writes::OutdatedRead;
use crate::view::ChannelView;

/// The longest read-write set that is judged, in bytes.
pub const RESULTS_BYTES_MAX: usize = 1 << 20;

/// A read because of which the transaction of this envelope can never be valid; `None` if there is none, as far as is known
/// here.
pub async fn outdated_read(channel: &dyn ChannelView, envelope: &Bytes) -> Option<OutdatedRead> {
    let recent = channel.recent_writes()?;
    let place = results_of_valid(envelope).ok()??;
    if place.len() > RESULTS_BYTES_MAX {
        return None;
    }
    let results = place.slice(envelope);
    let outdated = recent.outdated_read(&ReadWriteSet::decode(results.clone()).ok()?)?;
    let tx_id = signed_transaction(channel, envelope, &results)?;
    match channel.tx_status(&tx_id).await {
        Ok(None) => Some(outdated),
        Ok(Some(_)) if rt::fault_point("chain.commit.mutant.aborts_committed") => Some(outdated),
        // It was committed, or the peer cannot be asked now.
        Ok(Some(_)) | Err(_) => None,
    }
}

/// The id of a transaction with these results that a member has signed who may write to the channel.
fn signed_transaction(channel: &dyn ChannelView, envelope: &Bytes, results: &Bytes) -> Option<TxId> {
    let policies = channel.policies();
    let transaction = Transaction::parse(envelope).ok()?;
    let header = transaction.header();
    header.check_channel(policies.channel()).ok()?;
    header.check_tx_id().ok()?;
    let action = transaction.action().ok()?;
    if action.outcome(header).ok()?.results() != *results {
        return None;
    }
    let creator = policies.identify(&header.creator()).ok()?;
    let now = rt::wall_now();
    creator.check_expiry(now).ok()?;
    policies.check_denied(&creator, now).ok()?;
    creator.verify(transaction.payload(), transaction.signature()).ok()?;
    policies.may_order(&creator).then(|| header.to_tx_id())
}
