//! Fuzz targets for every decoder that reads bytes of a client, a peer, a disk or a remote region.
//!
//! ```
//! use heddle_fuzz::mutate::{Random, mutated};
//!
//! let targets = heddle_fuzz::targets();
//! let target = targets.iter().find(|target| target.name == "ledger-block").expect("peers decode blocks of orderers");
//! let mut random = Random::new(7);
//! for seed in (target.seeds)() {
//!     (target.run)(&seed); // Panics where the decoder breaks a guarantee.
//!     for _ in 0..10 {
//!         let input = mutated(target.shape, &seed, 16 << 10, &mut random);
//!         (target.run)(&input);
//!     }
//! }
//! ```
//!
//! 1. [`targets`] lists the decoders. The harness of a public decoder is here; a private decoder has its harness in its
//!    crate's module `fuzz`, next to its private items.
//! 2. `cargo xtask fuzz` builds [`fuzz_all`](../fuzz_all/index.html), with libFuzzer and with coverage counters in
//!    every crate, and searches for failing inputs. It keeps new findings, minimised, in `fuzz/corpus/TARGET/`.
//! 3. `tests/corpus.rs` replays seeds, corpus and a fixed number of mutated seeds in every test run, without libFuzzer.
//!
//! This crate is a member of the workspace, so that the targets have the same dependencies, at the same versions, as
//! nodes have. The flags are in a separate profile and target folder, and libFuzzer is behind the feature `engine`.
//!
//! # Guarantees
//!
//! * A harness panics if its decoder panics, overflows, or accepts bytes that do not encode again to the same value.
//! * With the counting [`allocator`], a harness panics if its decoder takes more memory than a multiple of its input.
//!   Without it, as in the example above, memory is not measured.
//! * A seed of [`mutate::Random`] gives the same inputs on every machine.
//! * Every input that a search has kept in the corpus is part of every test run.
//!
//! # What it needs around it
//!
//! * Below: each crate that decodes bytes from outside, through its public decoders or its module `fuzz`; `base::fuzz`,
//!   which declares what a target is and measures memory.
//! * Above: `cargo xtask fuzz` and the test `corpus`. Nothing here runs in a node.
//! * `docs/fuzzing.md` says what a target promises and how to add one.
#![deny(missing_docs)]

pub mod allocator;
pub mod chain;
pub mod contract;
pub mod identity;
pub mod ledger;
pub mod mutate;
pub mod node;
pub mod p256_verify;
#[cfg(feature = "verbs")]
pub mod verbs;
pub mod wire;

use base::fuzz::FuzzTarget;

/// All targets, by name.
pub fn targets() -> Vec<FuzzTarget> {
    let mut all: Vec<FuzzTarget> = [
        base::rt::net::rpc::fuzz::TARGETS.to_vec(),
        chain::TARGETS.to_vec(),
        contract::TARGETS.to_vec(),
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        executor_relay::fuzz::TARGETS.to_vec(),
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        executors::fuzz::TARGETS.to_vec(),
        ::contract::shim::fuzz::TARGETS.to_vec(),
        identity::TARGETS.to_vec(),
        kv::fuzz::TARGETS.to_vec(),
        ledger::TARGETS.to_vec(),
        manager::fuzz::TARGETS.to_vec(),
        node::TARGETS.to_vec(),
        node::gateway_targets(),
        ordered_log::sift::fuzz::TARGETS.to_vec(),
        p256_verify::TARGETS.to_vec(),
        page_coherence::fuzz::TARGETS.to_vec(),
        pool::fuzz::TARGETS.to_vec(),
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        pushdown::fuzz::TARGETS.to_vec(),
        raft::fuzz::TARGETS.to_vec(),
        rma::fuzz::targets(),
        sift::fuzz::targets(),
        state::fuzz::targets(),
        storage::fuzz::targets(),
        wire::TARGETS.to_vec(),
        #[cfg(feature = "verbs")]
        verbs::TARGETS.to_vec(),
    ]
    .concat();
    all.sort_by_key(|target| target.name);
    all
}
