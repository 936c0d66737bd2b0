//! The list of all attacks, in the order in which a campaign runs them.

use super::Attack;

/// Every attack, in the order of running.
pub fn all() -> Vec<Attack> {
    let mut all = Vec::new();
    all.extend(super::connections::attacks());
    all.extend(super::frames::attacks());
    all.extend(super::streams::attacks());
    all.extend(super::messages::attacks());
    all.extend(super::amplification::attacks());
    all.extend(super::certificates::attacks());
    all.extend(super::memory::attacks());
    all.extend(super::followers::attacks());
    all
}
