//! Decodes the protobuf messages of policies.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use bytes::Bytes;

use crate::error::Error;

pub(super) fn decode<M: prost::Message + Default>(bytes: &Bytes, what: &str) -> Result<M, Error> {
    M::decode(bytes.clone()).map_err(|e| Error::MalformedPolicy(format!("not a {what}: {e}")))
}

pub(super) fn malformed<T>(reason: impl Into<String>) -> Result<T, Error> {
    Err(Error::MalformedPolicy(reason.into()))
}
