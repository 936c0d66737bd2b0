//! The private data of a committed block, for a reader who has signed a request for it.
//!
//! The peer that has the data verifies the reader's signature itself. So a gateway in another process gets only what a member has
//! asked it for, and no gateway can ask in the name of a member.

use std::sync::Arc;

use base::{Bytes, ErrorKind, Version};
use identity::Identity;
use ledger::Transaction;
use ledger::rwset::{PrivateSet, ReadWriteSet};
use private_data::PrivateChannel;
use private_data::collect::HashedSet;
use rules::access::ChannelPolicies;

use crate::Error;
use crate::commit::recent::CommittedBlock;

/// The resource whose policy says who may read whole blocks, and with them the private data of collections that are open to readers.
const BLOCK_EVENTS: &str = "event/Block";

/// The private sets of one transaction of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionPrivateData {
    /// The position of the transaction in the block.
    pub position: u32,
    /// The sets, in the order of contracts and collections.
    pub sets: Vec<PrivateSet>,
}

/// The reader who has signed a request: an encoded `Envelope`, as clients send it for a stream of blocks.
///
/// # Errors
/// `Rejected` if it is no such request, or its signer may not read the channel's blocks.
pub fn reader(request: &Bytes, policies: &ChannelPolicies) -> Result<Arc<Identity>, Error> {
    let refused = |reason: &str| Error::Rejected {
        name: "a request for private data".to_owned(),
        kind: ErrorKind::Rejected,
        reason: reason.to_owned(),
    };
    let parsed = Transaction::decode(request).map_err(|_| refused("it is no signed request"))?;
    if parsed.header().channel() != policies.channel().as_str() {
        return Err(refused("it is for another channel"));
    }
    let signer = policies.identify(&parsed.header().creator()).map_err(|_| refused("its signer is no member"))?;
    signer.verify(parsed.payload(), parsed.signature()).map_err(|_| refused("its signature is wrong"))?;
    policies.check_served(&signer, base::rt::wall_now()).map_err(|error| refused(&error.to_string()))?;
    match policies.may_use(BLOCK_EVENTS, &signer) {
        true => Ok(signer),
        false => Err(refused("its signer may not read blocks")),
    }
}

/// The private sets of a block that a reader may have and this peer has, transaction by transaction.
///
/// # Errors
/// The private store's.
pub async fn private_data_of(
    block: &CommittedBlock,
    reader: &Arc<Identity>,
    private: &PrivateChannel,
    policies: &ChannelPolicies,
    height: u64,
) -> Result<Vec<TransactionPrivateData>, Error> {
    let mut found = Vec::new();
    for (position, transaction) in (0_u32..).zip(block.transactions()) {
        let (Some(tx_id), Some(outcome)) = (&transaction.tx_id, &transaction.outcome) else { continue };
        let Ok(set) = ReadWriteSet::decode(outcome.results()) else { continue };
        let hashed = HashedSet::of_transaction(tx_id, Version::new(block.number(), position), &set);
        if hashed.is_empty() {
            continue;
        }
        let locations: Vec<_> = hashed.into_iter().map(|set| set.digest.location).collect();
        let sets = private.sets_for(reader, policies, height, &locations).await?;
        if !sets.is_empty() {
            let sets = sets.into_iter().map(|(location, writes)| PrivateSet {
                namespace: location.contract,
                collection: location.collection,
                writes,
            });
            found.push(TransactionPrivateData { position, sets: sets.collect() });
        }
    }
    Ok(found)
}
