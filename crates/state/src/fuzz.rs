//! Fuzz harnesses for bytes from remote memory and from other compute nodes; see [`base::fuzz`].

use base::fuzz::FuzzTarget;

/// The targets of this crate.
pub fn targets() -> Vec<FuzzTarget> {
    crate::disaggregated::fuzz::TARGETS.to_vec()
}
