//! Attacks on every decoder that reads bytes of a client, a peer, a disk or a remote region.
//!
//! 1. [`targets`] lists the decoders. The harness of a public decoder is here; a private one has its harness in its crate's
//!    module `fuzz`, next to what it may not show.
//! 2. `cargo xtask fuzz` builds [`fuzz_all`](../fuzz_all/index.html), with libFuzzer and with coverage counters in every
//!    crate, and searches. What it finds to be new it keeps, minimised, in `fuzz/corpus/TARGET/`.
//! 3. `tests/corpus.rs` replays seeds, corpus and a fixed number of changed seeds in every test run, without libFuzzer.
//!
//! A member of the workspace and not one of its own, so that what is attacked has the dependencies, at the versions, that
//! nodes have; the flags are in a profile and a target folder of their own, and libFuzzer is behind the feature `engine`.

pub mod allocator;
pub mod chain;
pub mod identity;
pub mod ledger;
pub mod mutate;
pub mod node;
pub mod p256_verify;
#[cfg(feature = "verbs")]
pub mod verbs;

use base::fuzz::Target;

/// All targets, by name.
pub fn targets() -> Vec<Target> {
    let mut all: Vec<Target> = [
        base::rt::net::call::fuzz::TARGETS.to_vec(),
        chain::TARGETS.to_vec(),
        consensus::fuzz::targets(),
        identity::TARGETS.to_vec(),
        ledger::TARGETS.to_vec(),
        node::TARGETS.to_vec(),
        node::gateway_targets(),
        p256_verify::TARGETS.to_vec(),
        pool::fuzz::TARGETS.to_vec(),
        rma::fuzz::targets(),
        state::fuzz::targets(),
        storage::fuzz::targets(),
        #[cfg(feature = "verbs")]
        verbs::TARGETS.to_vec(),
    ]
    .concat();
    all.sort_by_key(|target| target.name);
    all
}
