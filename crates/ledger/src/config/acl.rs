//! Access control lists (Fabric's ACLs): the policy that a caller must satisfy for each resource of a channel.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use proto::common::ConfigGroup;
use proto::protos::AcLs;

use super::{APPLICATION, value};
use crate::error::Error;

/// The most entries a channel may have.
const ENTRIES_MAX: usize = 4096;

const READERS: &str = "/Channel/Application/Readers";
const WRITERS: &str = "/Channel/Application/Writers";

/// Reads the entries of the application group, names of policies turned into paths.
pub(super) fn read(application: &ConfigGroup) -> Result<BTreeMap<String, String>, Error> {
    let acls = value::<AcLs>(APPLICATION, application, "ACLs")?.unwrap_or_default().acls;
    if acls.len() > ENTRIES_MAX {
        return Err(Error::config("/Channel/Application/ACLs", format!("there are more than {ENTRIES_MAX} entries")));
    }
    let path = |policy: String| if policy.starts_with('/') { policy } else { format!("{APPLICATION}/{policy}") };
    // An entry without a policy counts as none, as in Fabric.
    Ok(acls
        .into_iter()
        .filter(|(_, resource)| !resource.policy_ref.is_empty())
        .map(|(name, resource)| (name, path(resource.policy_ref)))
        .collect())
}

/// The policy of a resource that no entry names: proposing and the chaincode life cycle take writers, the rest readers.
pub(super) fn default_path(resource: &str) -> &'static str {
    match resource.split_once('/') {
        Some(("peer" | "_lifecycle", _)) => WRITERS,
        _ => READERS,
    }
}
