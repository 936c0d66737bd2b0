//! Checks a whole ledger: that it is unchanged since it was written, and that it conforms to the channel's rules.
//!
//! [`LedgerVerifier`] takes the blocks of one ledger in order; [`verify`] feeds it from a block store. For each block it
//! checks:
//! 1. its number, its previous hash and its data hash;
//! 2. from block 1 on, that the orderers' signatures are valid under the configuration in force at that block, and that
//!    the signed metadata names the newest configuration block (possibly the block itself);
//! 3. in a peer's ledger, that there is one validation code per transaction, and for each transaction that is marked valid
//!    everything that can be checked without state: form, transaction id, proposal hash, channel, chaincode, and the
//!    creator's signature;
//! 4. in a peer's ledger, the commit hash, computed from the writes of the valid transactions.
//!
//! Block 0 is the root of trust: the caller must compare its hash with a hash that is known to be good. A later
//! configuration block takes effect from the next block on.
//!
//! Not checked: endorsement policies of contracts and conflicts between transactions, which need state. If a
//! transaction changes only the metadata of a key, the commit hash covers the key's value, which the transaction does not
//! hold. Our peers note it with the block ([`crate::block::derived`]), Fabric's do not. The verifier then accepts the recorded
//! commit hash unchecked, and counts it in [`LedgerReport::commit_hashes_unchecked`].

mod store;
mod verifier;

pub use store::{VerifyProgress, verify};
pub use verifier::{LedgerReport, LedgerVerifier, VerifyConfig, VerifyError};
