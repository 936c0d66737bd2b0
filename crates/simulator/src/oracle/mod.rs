//! The oracle computes the correct result of a ledger, one transaction after the other, on plain maps.
//!
//! Its input is the blocks as the orderer stored them. For each block it computes which transactions are valid, the
//! commit hash, and the state afterwards. It shares only the signature check, the hash function and the generated wire
//! types with the code under test. A protobuf library decodes the messages; nothing is cached; nothing runs in
//! parallel; and the rules are in Fabric's order of checks ([`Oracle::validate`]).
//!
//! From a new configuration the oracle takes only how many organisations must endorse; for it, all else stays as it was
//! at the start. Range summaries of more than one level are not supported: they are an error. Of private data the oracle
//! knows what the ledger says, which are hashes ([`PrivateHistory`]).

mod configuration;
mod endorsement;
mod hashes;
mod private;
mod ranges;
mod sequential;
mod state_row;

pub use private::{HashedWrite, HashedWrites, PrivateHistory};
pub use sequential::{ChannelPolicies, Oracle, ValidatedBlock};
pub use state_row::{StateKey, StateRow, StateVersion};
