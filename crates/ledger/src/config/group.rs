//! Names of a configuration's groups and values, and lookups among them.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;
use prost::Message;
use proto::common::ConfigGroup;

use crate::error::Error;

/// The path of the root group.
pub(super) const ROOT: &str = "/Channel";
pub(super) const APPLICATION: &str = "/Channel/Application";
pub(super) const ORDERER: &str = "/Channel/Orderer";
/// The path of the policy that blocks must satisfy.
pub const BLOCK_VALIDATION: &str = "/Channel/Orderer/BlockValidation";

pub(super) fn group<'a>(root: &'a ConfigGroup, name: &str, path: &str) -> Result<&'a ConfigGroup, Error> {
    root.groups.get(name).ok_or_else(|| Error::config(path, "the group is missing"))
}

/// A value of a group, decoded; `None` if the group has none of that name.
pub(super) fn value<M: Message + Default>(path: &str, group: &ConfigGroup, name: &str) -> Result<Option<M>, Error> {
    group.values.get(name).map(|value| decode(&format!("{path}/{name}"), &value.value)).transpose()
}

pub(super) fn decode<M: Message + Default>(path: &str, bytes: &Bytes) -> Result<M, Error> {
    M::decode(bytes.clone()).map_err(|cause| Error::config(path, cause.to_string()))
}
