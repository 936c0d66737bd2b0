//! Fuzz harnesses of the decoders of clients' bytes; see [`base::fuzz`].

use base::fuzz::FuzzTarget;

/// The targets of this crate.
pub fn targets() -> Vec<FuzzTarget> {
    [crate::grpc::fuzz::TARGETS, crate::service::fuzz::TARGETS].concat()
}

pub use crate::service::fuzz::NOW_SECONDS;
