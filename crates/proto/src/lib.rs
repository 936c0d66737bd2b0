//! The wire types that Hyperledger Fabric's clients, tools and chaincode speak.
//!
//! # Finding a message
//! A folder of `proto/` is a protobuf package and a module of the same name: `common.Envelope` is defined in
//! `proto/common/` and is [`common::Envelope`]. Nested packages are nested modules ([`orderer::smartbft`],
//! [`google::rpc`]), and what belongs to one message sits in a module in its snake case
//! ([`protos::chaincode_message::Type`]). Names are put into Rust's case: `KVRWSet` is [`kvrwset::KvrwSet`],
//! `MSPConfig` is [`msp::MspConfig`]. A field of type `bytes` that holds another message says so in its comment.
//!
//! # Invariants
//! 1. There is no logic here, and there are no services: code for those is generated where they are served, from the
//!    same files, with each package mapped to its module (`extern_path(".common", "::proto::common")`).
//! 2. Names, numbers and types of packages, messages, fields and enumerations are Fabric's and never change. Only
//!    [`commit_hash`] is not a package of Fabric's API; its numbers are Fabric's all the same. [`heddle`] is ours.
//! 3. Encoding is deterministic: fields by number, map entries by key.
//! 4. A message that is decoded and encoded again need not have the same bytes: decoding drops fields it does not know,
//!    Fabric writes map entries in any order, and it writes an entry's default value where we leave it out. **Hash and
//!    verify bytes as they were received.**
//! 5. `bytes` fields are [`bytes::Bytes`]: decoded from a `Bytes`, a message shares its memory and keeps all of it alive.

/// All files of `proto/` and the well-known ones they import, as an encoded `google.protobuf.FileDescriptorSet`.
///
/// Without comments. For gRPC reflection and for code generators.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

macro_rules! generated {
    ($file:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $file));
    };
}

/// Envelopes, blocks, policies and channel configuration.
#[allow(clippy::all)]
pub mod common {
    generated!("common.rs");
}

/// Proposals, transactions, events and the chaincode protocol: what Fabric calls its peer messages.
#[allow(clippy::all)]
pub mod protos {
    generated!("protos.rs");
}

/// Ordering and seeking blocks; values of the configuration group `Orderer`.
#[allow(clippy::all)]
pub mod orderer {
    generated!("orderer.rs");

    /// Options of Byzantine fault-tolerant ordering.
    pub mod smartbft {
        generated!("orderer.smartbft.rs");
    }
}

/// Options and block metadata of Raft ordering.
#[allow(clippy::all)]
pub mod etcdraft {
    generated!("etcdraft.rs");
}

/// Identities and the rules of membership.
#[allow(clippy::all)]
pub mod msp {
    generated!("msp.rs");
}

/// The service of the client libraries.
#[allow(clippy::all)]
pub mod gateway {
    generated!("gateway.rs");
}

/// The chaincode `_lifecycle`.
#[allow(clippy::all)]
pub mod lifecycle {
    generated!("lifecycle.rs");
}

/// Read-write sets of whole transactions.
#[allow(clippy::all)]
pub mod rwset {
    generated!("rwset.rs");
}

/// Read-write sets of one namespace.
#[allow(clippy::all)]
pub mod kvrwset {
    generated!("kvrwset.rs");
}

/// Records that chaincode queries return.
#[allow(clippy::all)]
pub mod queryresult {
    generated!("queryresult.rs");
}

/// The input of a block's commit hash.
#[allow(clippy::all)]
pub mod commit_hash {
    generated!("commit_hash.rs");
}

/// Heddle's own services.
pub mod heddle {
    /// The replicated key-value store.
    #[allow(clippy::all)]
    pub mod kv {
        generated!("heddle.kv.rs");
    }
}

/// Google's common types, as far as gRPC errors need them.
pub mod google {
    /// Errors with details.
    #[allow(clippy::all)]
    pub mod rpc {
        generated!("google.rpc.rs");
    }
}
