//! From a received block to a committed one.
//!
//! Each channel has one pipeline of four stages, so that the cores verify signatures of later blocks while earlier
//! blocks wait for the disk:
//!
//! 1. **Receive** ([`block_transport::receive_blocks`], [`delivery`]): a connection to an orderer asks for blocks from
//!    the first one that is missing. The stage parses each block and checks that it continues the chain (number and
//!    hash), that the hash of its data equals the data hash in its header, and that it is signed as the channel's
//!    policy requires. If a check fails, the connection ends, and the peer asks another orderer.
//! 2. **Verify** ([`verifying`]): the block goes to the most idle compute node of the peer ([`validation::offload`]).
//!    There its transactions are split into chunks, and a separate task verifies the signatures and
//!    policies of each chunk ([`validation::verify`]). Up to [`pipeline::VERIFIED_AHEAD_MAX`] blocks are verified
//!    ahead.
//! 3. **Validate**: in the order of blocks, the stage finds duplicates, checks policies of keys and conflicts against
//!    the state and the batches of earlier blocks that are not applied yet, and computes the commit hash. It appends
//!    the block to the block store with filter, commit hash and derived updates; the block is not durable yet. Up to
//!    [`pipeline::VALIDATED_AHEAD_MAX`] blocks wait here.
//! 4. **Commit**: one group fsync covers all blocks that wait. During the fsync the state may already prepare the
//!    changes of the first of these blocks, which no reader sees yet ([`state::WorldState::apply_when`]). Then each
//!    block in turn is applied to the state and published.
//!
//! A configuration block changes the rules by which later blocks are received and verified. So after a configuration
//! block, stage 1 holds back the next block until stage 3 has validated and appended the configuration block and has
//! replaced the policies of stages 1 to 3. A block that changes the definition of a contract changes the rules of
//! stages 2 and 3 only, and only its validation shows that it does. So stage 3 replaces the policies, and repeats the
//! verification of blocks that were verified by older ones. Callers see the new policies when the block is published.
//! The newest configuration and the definitions are also rows of the world state. A peer reads those rows when it
//! starts; the other compute nodes of the peer read them while they follow.
//!
//! A block is published in this order: its policies replace the old ones if it changes them, the block joins the ring
//! of recent blocks ([`recent`]), the height moves, the rows that it wrote are noted ([`recent_writes`], an option), and
//! the callers that wait for its transactions are notified ([`waiters`]).
//!
//! Invariants:
//! 1. A block counts as committed, and its writes are visible, only once the block and its filter are durable here.
//! 2. The state applies exactly the blocks `savepoint..height`, in order. After a crash, the stored blocks from the
//!    savepoint on are applied by the same function as new blocks, with the filter that was stored with them
//!    ([`replay`]).
//! 3. The first error of any stage ends the pipeline of that channel: no block is skipped. All stored blocks stay
//!    readable, and a restart continues from the durable ones.
//! 4. A block is received, verified and validated by the newest configuration below it, and by the definitions of the
//!    state before it. A configuration comes into force only if an authorised update leads to it from the previous one
//!    ([`ledger::ChannelConfig::successor`]). Otherwise the channel ends before the block is stored.
//! 5. No stage holds more blocks than its bound; a slow disk or state slows the connection to the orderer.
//!
//! A background task moves the state's own savepoint ([`pipeline`]).

pub mod context;
pub mod delivery;
pub mod pipeline;
pub mod recent;
pub mod recent_writes;
pub mod replay;
mod verifying;
pub mod waiters;

#[cfg(test)]
mod tests;
