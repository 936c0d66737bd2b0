//! Harnesses of what remote memory and other compute nodes hold; see [`base::fuzz`].

use base::fuzz::Target;

/// The targets of this crate.
pub fn targets() -> Vec<Target> {
    crate::disaggregated::fuzz::TARGETS.to_vec()
}
