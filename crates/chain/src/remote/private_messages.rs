//! The messages by which peers of different organisations exchange private data ([`private_data`]), and by which a gateway reads
//! them for its clients.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, ChannelId, MspId, TxId, Version};
use ledger::Hash;
use ledger::rwset::PrivateSet;

use private_data::SetDigest;
use private_data::rows::SetLocation;

use crate::private_block::TransactionPrivateData;

/// Private sets of a transaction, for a peer that keeps them until the transaction is ordered. Answered with no bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrivatePush {
    /// The channel's name.
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The sender's organisation. It counts only on links that prove no name, which stay within one process.
    #[prost(string, tag = "2")]
    pub organization: String,
    /// The transaction's id.
    #[prost(string, tag = "3")]
    pub tx_id: String,
    /// The sets.
    #[prost(message, repeated, tag = "4")]
    pub sets: Vec<PushedSet>,
}

/// The private writes of a transaction to one collection.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushedSet {
    /// The contract.
    #[prost(string, tag = "1")]
    pub contract: String,
    /// Its collection.
    #[prost(string, tag = "2")]
    pub collection: String,
    /// The encoded `KVRWSet`.
    #[prost(bytes = "bytes", tag = "3")]
    pub writes: Bytes,
}

/// A request for private sets, answered with a [`PrivatePullResponse`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrivatePull {
    /// The channel's name.
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The sender's organisation, as in [`PrivatePush`].
    #[prost(string, tag = "2")]
    pub organization: String,
    /// The sets.
    #[prost(message, repeated, tag = "3")]
    pub wanted: Vec<WantedSet>,
}

/// Names a private set.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WantedSet {
    /// The contract.
    #[prost(string, tag = "1")]
    pub contract: String,
    /// Its collection.
    #[prost(string, tag = "2")]
    pub collection: String,
    /// The block of the transaction.
    #[prost(uint64, tag = "3")]
    pub block: u64,
    /// Its position in the block.
    #[prost(uint32, tag = "4")]
    pub position: u32,
    /// Its id.
    #[prost(string, tag = "5")]
    pub tx_id: String,
    /// The SHA-256 of the set.
    #[prost(bytes = "bytes", tag = "6")]
    pub hash: Bytes,
}

/// The answer to [`PrivatePull`]: an item for each set, in order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrivatePullResponse {
    /// The sets.
    #[prost(message, repeated, tag = "1")]
    pub sets: Vec<ProvidedSet>,
}

/// A private set, if the peer has it and gives it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProvidedSet {
    /// The encoded `KVRWSet`.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub writes: Option<Bytes>,
}

/// A request of a gateway for the private data of a block, answered with a [`PrivateBlockResponse`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrivateBlock {
    /// The channel's name.
    #[prost(string, tag = "1")]
    pub channel: String,
    /// The block's number.
    #[prost(uint64, tag = "2")]
    pub number: u64,
    /// The `Envelope` that the reader has signed.
    #[prost(bytes = "bytes", tag = "3")]
    pub request: Bytes,
}

/// The answer to [`PrivateBlock`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct PrivateBlockResponse {
    /// The sets, each with the position of its transaction, in the order of transactions.
    #[prost(message, repeated, tag = "1")]
    pub sets: Vec<PositionedSet>,
}

/// A private set of a transaction of a block.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PositionedSet {
    /// The position of the transaction in the block.
    #[prost(uint32, tag = "1")]
    pub position: u32,
    /// The set.
    #[prost(message, optional, tag = "2")]
    pub set: Option<PushedSet>,
}

impl PrivateBlockResponse {
    /// An answer with these sets.
    pub fn new(found: Vec<TransactionPrivateData>) -> PrivateBlockResponse {
        let sets = found.into_iter().flat_map(|TransactionPrivateData { position, sets }| {
            sets.into_iter().map(move |set| PositionedSet { position, set: Some(PushedSet::of(set)) })
        });
        PrivateBlockResponse { sets: sets.collect() }
    }

    /// The sets, by transaction.
    pub fn into_private_data(self) -> Vec<TransactionPrivateData> {
        let mut found: Vec<TransactionPrivateData> = Vec::new();
        for PositionedSet { position, set } in self.sets {
            let Some(set) = set.map(PushedSet::into_set) else { continue };
            match found.last_mut().filter(|last| last.position == position) {
                Some(last) => last.sets.push(set),
                None => found.push(TransactionPrivateData { position, sets: vec![set] }),
            }
        }
        found
    }
}

impl PushedSet {
    fn of(set: PrivateSet) -> PushedSet {
        PushedSet { contract: set.namespace, collection: set.collection, writes: set.writes }
    }

    fn into_set(self) -> PrivateSet {
        PrivateSet { namespace: self.contract, collection: self.collection, writes: self.writes }
    }
}

impl PrivatePush {
    /// A push of these sets.
    pub fn new(channel: &ChannelId, own: &MspId, tx_id: &TxId, sets: &[PrivateSet]) -> PrivatePush {
        let sets = sets.iter().cloned().map(PushedSet::of);
        PrivatePush {
            channel: channel.to_string(),
            organization: own.to_string(),
            tx_id: tx_id.to_string(),
            sets: sets.collect(),
        }
    }

    /// The sets.
    pub fn into_sets(self) -> Vec<PrivateSet> {
        self.sets.into_iter().map(PushedSet::into_set).collect()
    }
}

impl PrivatePull {
    /// A request for these sets.
    pub fn new(channel: &ChannelId, own: &MspId, wanted: &[SetDigest]) -> PrivatePull {
        let wanted = wanted.iter().map(|SetDigest { location, tx_id, hash }| WantedSet {
            contract: location.contract.clone(),
            collection: location.collection.clone(),
            block: location.version.block,
            position: location.version.tx,
            tx_id: tx_id.to_string(),
            hash: Bytes::copy_from_slice(hash),
        });
        PrivatePull { channel: channel.to_string(), organization: own.to_string(), wanted: wanted.collect() }
    }

    /// The digests of the sets; `None` if one has no valid hash.
    pub fn into_digests(self) -> Option<Vec<SetDigest>> {
        let digests = self.wanted.into_iter().map(|wanted| {
            Some(SetDigest {
                location: SetLocation {
                    contract: wanted.contract,
                    collection: wanted.collection,
                    version: Version::new(wanted.block, wanted.position),
                },
                tx_id: TxId::new(wanted.tx_id),
                hash: Hash::try_from(&wanted.hash[..]).ok()?,
            })
        });
        digests.collect()
    }
}
