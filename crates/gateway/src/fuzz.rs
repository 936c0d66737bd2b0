//! Harnesses of what clients send; see [`base::fuzz`].

use base::fuzz::Target;

/// The targets of this crate.
pub fn targets() -> Vec<Target> {
    [crate::rpc::fuzz::TARGETS, crate::service::fuzz::TARGETS].concat()
}

pub use crate::service::fuzz::NOW_SECONDS;
