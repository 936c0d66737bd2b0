//! From a received block to a committed one.
//!
//! Each channel has one pipeline of three stages, so that the processors check signatures of later blocks while earlier
//! ones wait for the disk:
//!
//! 1. **Receive** ([`deliver`]): a connection to an orderer asks for blocks from the first one missing. Each is parsed,
//!    must follow the block before it (number and hash), must hash to what its header says, and must be signed as the
//!    channel demands. Anything else ends the connection, and another orderer is asked.
//! 2. **Examine**: the block's transactions are split into chunks, and each chunk's signatures are checked by a task of
//!    its own ([`crate::validate::examine`]). Up to [`pipeline::EXAMINED_AHEAD_MAX`] blocks are examined ahead.
//! 3. **Judge**: in the order of blocks: duplicates, conflicts against the state and the batches of earlier blocks that
//!    are not applied yet, commit hash. The block is appended to the block store with filter and commit hash; nothing is
//!    durable yet. Up to [`pipeline::JUDGED_AHEAD_MAX`] blocks wait here.
//! 4. **Finish**: one group fsync for all blocks that wait, during which the state does what nobody sees of the first of them
//!    ([`state::WorldState::apply_when`]); then, block by block: apply to the state, publish.
//!
//! Publishing, in this order: the block joins the ring of recent ones ([`recent`]), the height moves, who waits for its
//! transactions is told ([`waiters`]).
//!
//! Invariants:
//! 1. A block counts as committed, and its writes are visible, only once it and its filter are durable here.
//! 2. The state applies exactly the blocks `savepoint..height`, in order. After a crash the same function that applies a
//!    new block applies the stored ones from the savepoint on, with the filter that was stored with them ([`replay`]).
//! 3. The first error of any stage ends the pipeline of that channel: nothing is skipped. Everything stored before stays
//!    readable; a restart goes on from what is durable.
//! 4. No stage holds more blocks than its bound; a slow disk or state slows the connection to the orderer.
//!
//! The state's own savepoint is moved in the background, see [`pipeline`].

pub mod deliver;
pub mod pipeline;
pub mod recent;
pub mod replay;
pub mod waiters;

#[cfg(test)]
mod tests;
