//! A conformance suite for providers: each guarantee that a provider must give is a claim, and the suite tests every
//! claim.
//!
//! 1. A [`Fixture`] has a host of the provider under test and connects endpoints to that host. The host's tasks run in
//!    this process.
//! 2. [`run`] checks all [`CLAIMS`], one after the other, and reports the broken ones; a test then calls
//!    [`ConformanceReport::assert_held`]. [`Claim::check`] checks a single claim.
//! 3. The test of each claim creates its own regions, grants and endpoints, and frees them. The last claim closes the
//!    host; the fixture cannot be used afterwards.
//!
//! Invariants:
//! * The verdict on a claim does not depend on timing, with one exception: a claim counts as broken if its test takes
//!   longer than [`FixtureFeatures::patience`], for example because a verb never completes.
//! * No claim panics: a broken claim reports what it observed.
//!
//! Claims run on the ambient runtime, real or simulated. `tests/rma/mutants.rs` runs the suite on deliberately broken
//! providers, to test that the suite finds each defect.

mod atomics;
mod claims;
mod connections;
mod fences;
mod fixture;
mod rejections;
mod transfers;

pub use claims::{CLAIMS, Claim, ClaimVerdict, ConformanceReport, run};
use fixture::{
    EndpointPair, REGION_BYTES, TestRegion, difference, ensure, number, pattern, read_word, while_doing, word,
};
pub use fixture::{Fixture, FixtureFeatures};
