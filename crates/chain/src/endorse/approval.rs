//! Whether the peer's own organisation has approved the definition of a contract, and which package it approved.
//!
//! As in Fabric, a peer runs a contract only if its organisation has approved the definition on the ledger. The hashes of an
//! approval are in the state, and the approval itself is private data of the organisation. Nothing here is recorded as a read: an
//! approval changes what one peer runs, and not what is valid.
//!
//! 1. The parameters of an approval count if their hashes are those of the definition. Once they do, they stay: nobody can approve
//!    other parameters for a sequence that is committed.
//! 2. The package may be approved again at any time. Its row's version tells whether it was.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use base::{ChannelId, ErrorKind, Map, MspId, Version};
use identity::hex;
use ledger::hash::sha256;
use ledger::lifecycle::{self, ContractDefinition, LIFECYCLE};
use ledger::namespace;
use private_data::PrivateValues;
use state::Snapshot;

use super::channels::EndorsingChannel;
use super::lifecycle::{Approval, implicit_collection};
use crate::Error;

/// Approvals that are remembered.
const REMEMBERED_MAX: usize = 4096;

/// What an organisation has approved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnApproval {
    /// The id of the package; empty for a contract that the peers run without one.
    pub package: String,
}

/// Where an approval is looked for.
#[derive(Clone, Copy)]
pub struct ApprovalQuery<'a> {
    /// The channel.
    pub channel: &'a ChannelId,
    /// The peer's organisation.
    pub own: &'a MspId,
    /// The contract.
    pub contract: &'a str,
    /// Its definition on the ledger.
    pub definition: &'a ContractDefinition,
    /// The state.
    pub snapshot: &'a dyn Snapshot,
    /// The organisation's private values.
    pub private: &'a dyn PrivateValues,
}

/// The approvals that a peer has found lately.
#[derive(Default)]
pub struct OwnApprovals(Mutex<Map<(ChannelId, String), KnownApproval>>);

#[derive(Clone)]
struct KnownApproval {
    sequence: i64,
    /// The hash of the key of the package's row, in hexadecimal.
    package_key: String,
    /// The version of that row.
    version: Option<Version>,
    approval: OwnApproval,
}

impl OwnApprovals {
    /// The organisation's approval of a definition; `None` if it has not approved it.
    ///
    /// # Errors
    /// The state's and the private store's; `Retry` if the peer lacks its organisation's approval.
    pub async fn find(&self, query: ApprovalQuery<'_>) -> Result<Option<OwnApproval>, Error> {
        let place = (query.channel.clone(), query.contract.to_owned());
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&place).cloned();
        let known = known.filter(|known| known.sequence == query.definition.sequence);
        let collection = implicit_collection(query.own);
        let hashes = namespace::values_of(LIFECYCLE, &collection);
        if let Some(known) = &known
            && query.snapshot.version(&hashes, &known.package_key).await? == known.version
        {
            return Ok(Some(known.approval.clone()));
        }
        let approval = Approval { name: query.contract, definition: query.definition, package: "" };
        let [parameters, package] = approval.rows();
        for (key, value) in parameters.all() {
            let found = query.snapshot.get(&hashes, &hex::encode(sha256(key.as_bytes()))).await?;
            if found.is_none_or(|found| found.value[..] != sha256(value)[..]) {
                return Ok(None);
            }
        }
        let (_, key, _) = package.fields().next().expect("the package has one field");
        let package_key = hex::encode(sha256(key.as_bytes()));
        let found = query.snapshot.get(&hashes, &package_key).await?;
        let package = match &found {
            None => String::new(),
            Some(hash) => {
                let height = query.snapshot.height();
                let value = query.private.value(LIFECYCLE, &collection, key, height).await?;
                let value = value.filter(|value| sha256(value)[..] == hash.value[..]).ok_or_else(|| lost(&query))?;
                lifecycle::text_of_field(&value).unwrap_or_default()
            }
        };
        let approval = OwnApproval { package };
        let version = found.map(|found| found.version);
        let sequence = query.definition.sequence;
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(place, KnownApproval { sequence, package_key, version, approval: approval.clone() });
        Ok(Some(approval))
    }
}

/// The definitions that run each package: by package and channel, names and versions.
pub type PackageUses = BTreeMap<String, BTreeMap<String, Vec<(String, String)>>>;

impl OwnApprovals {
    /// The definitions on the ledgers of these channels that the organisation has approved with a package.
    ///
    /// # Errors
    /// As [`OwnApprovals::find`]. An approval that this peer lacks is left out.
    pub async fn uses(&self, own: &MspId, channels: &[Arc<dyn EndorsingChannel>]) -> Result<PackageUses, Error> {
        let mut uses = PackageUses::new();
        for channel in channels {
            let (snapshot, policies) = (channel.snapshot().await?, channel.policies());
            let (private, snapshot) = (channel.private().values(), &*snapshot);
            for (contract, definition) in policies.on_ledger().iter() {
                let Some(definition) = definition else { continue };
                let channel = policies.channel();
                let query = ApprovalQuery { channel, own, contract, definition, snapshot, private: &*private };
                let package = match self.find(query).await {
                    Ok(Some(OwnApproval { package })) if !package.is_empty() => package,
                    Ok(_) | Err(Error::Rejected { .. }) => continue,
                    Err(error) => return Err(error),
                };
                let version = definition.endorsement.version.clone();
                let uses = uses.entry(package).or_default().entry(channel.to_string()).or_default();
                uses.push((contract.to_owned(), version));
            }
        }
        Ok(uses)
    }
}

/// The peer has only the hash of its organisation's approval.
fn lost(query: &ApprovalQuery<'_>) -> Error {
    Error::Rejected {
        name: format!("contract {}", query.contract),
        kind: ErrorKind::Retry,
        reason: format!(
            "this peer lacks the private approval of its organisation {}; approve the definition again at this peer, or wait until \
             it gets the approval from another one",
            query.own
        ),
    }
}
