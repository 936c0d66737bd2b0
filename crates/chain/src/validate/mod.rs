//! Which transactions of a block are valid.
//!
//! 1. [`examine`]: everything that depends on the transaction and the channel's configuration alone: its form, its
//!    creator's signature, its endorsements. Any transactions of any blocks can be examined at once, in any order.
//! 2. [`block::Judge`]: transaction ids that were there before, in the order of blocks.
//! 3. [`conflicts`]: what a transaction read against what earlier transactions wrote, in the order of the block, giving the
//!    batch that the state applies.
//!
//! The code that a transaction gets is the first that applies, in this order, which is Fabric's:
//!
//! | step | check | code |
//! |---|---|---|
//! | 1 | envelope, payload, headers, type, epoch, nonce, creator | 255, 2, 3 |
//! | 2 | the creator is a member, and signed | 4 |
//! | 3 | the type is one for a block; a configuration is refused | 7, 6 |
//! | 4 | the transaction id | 8 |
//! | 5 | one action, endorsed for this proposal | 5 |
//! | 6 | the channel | 14 |
//! | 7 | no committed block has the transaction id | 9 |
//! | 8 | header extension, result, read-write set, chaincode, event | 19, 21, 22, 255, 25 |
//! | 9 | namespaces: none twice, none of the system's written; keys the state can hold; namespaces known | 23, 24, 25 |
//! | 10 | the endorsement policy of the chaincode and of each namespace it writes to | 10 |
//! | 11 | no earlier transaction of this block that passed steps 1 to 10 has the transaction id | 9 |
//! | 12 | conflicts | 11, 12 |
//!
//! Signatures may be verified by other compute nodes of the same peer: [`borrow`].
//!
//! Invariant: a verdict depends on the chain up to the transaction and on nothing else, so that all peers agree. No
//! signature is verified twice, and none on another organisation's word.

pub mod block;
pub mod borrow;
pub mod code;
pub mod conflicts;
pub mod examine;
pub mod view;

#[cfg(test)]
mod tests;

pub use code::Code;
