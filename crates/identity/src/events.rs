//! What this crate counts.

/// Placeholder until `base::event` exists.
#[derive(Debug)]
pub struct Counter;

impl Counter {
    /// Counts.
    pub fn add(&self, _n: u64) {}
}

#[allow(non_upper_case_globals, missing_docs)]
pub const SignatureVerified: Counter = Counter;
#[allow(non_upper_case_globals, missing_docs)]
pub const SignatureMade: Counter = Counter;
#[allow(non_upper_case_globals, missing_docs)]
pub const IdentityValidated: Counter = Counter;
