//! The expiry of private data: the hashes of a collection leave the state after a number of blocks.
//!
//! As in Fabric, what block n writes to a collection with `block_to_live` b is removed by block n + b + 1, unless a later block has
//! written the key again. The removal takes effect after the transactions of its block, and no commit hash covers it.
//!
//! 1. A block that writes to such a collection adds a row to the schedule for each key ([`ledger::namespace::EXPIRY`]). The row's
//!    version is that of the write.
//! 2. Each block removes the hashes that the schedule names for it, if their versions are still those of the schedule, together
//!    with the keys' metadata, and the rows of the schedule.

use base::{Bytes, Version};
use ledger::namespace::{self, EXPIRY, MARKER, NamespaceContent};
use state::UpdateBatch;

use super::known_rows::KnownRows;
use super::view::BlockStateView;
use crate::access::ChannelPolicies;

/// Adds what a block schedules and what it removes to its changes. Returns whether there is anything. `version` is that of what the
/// block changes by itself.
///
/// # Errors
/// The state's.
pub async fn expire(
    batch: &mut UpdateBatch,
    version: Version,
    policies: &ChannelPolicies,
    view: &BlockStateView,
    known: &mut KnownRows,
) -> Result<bool, state::Error> {
    // A definition may have lost a collection whose hashes are yet to expire.
    if !policies.has_expiring_collections() && !known.may_have_schedule(view).await? {
        return Ok(false);
    }
    let number = version.block;
    let removed = due(number, batch, view).await?;
    let scheduled = schedule(number, batch, policies);
    let schedule = EXPIRY.into();
    let is_anything = !removed.is_empty() || !scheduled.is_empty();
    for (key, expired) in removed {
        batch.put(&schedule, key.as_str().into(), None, version);
        let Some((namespace, hash)) = expired else { continue };
        batch.put(&namespace.as_str().into(), hash.as_str().into(), None, version);
        if let NamespaceContent::Hashes(contract, collection) = namespace::content(&namespace) {
            let metadata = namespace::metadata_of(contract, collection);
            if view.get(&metadata, &hash).await?.is_some() {
                batch.put(&metadata.into(), hash.into(), None, version);
            }
        }
    }
    for (key, written) in scheduled {
        batch.put(&schedule, key.into(), Some(Bytes::from_static(MARKER)), written);
    }
    Ok(is_anything)
}

/// Step 1: the rows of the schedule that a block adds.
fn schedule(number: u64, batch: &UpdateBatch, policies: &ChannelPolicies) -> Vec<(String, Version)> {
    let mut rows = Vec::new();
    for written in batch.namespaces() {
        let NamespaceContent::Hashes(contract, collection) = namespace::content(written) else { continue };
        let blocks = policies.contract_rules(contract).map_or(0, |rules| rules.block_to_live(collection));
        let Some(expiry) = (blocks > 0).then(|| number.checked_add(blocks)?.checked_add(1)).flatten() else { continue };
        for (hash, update) in batch.range(written, "", "") {
            if update.value.is_some() {
                rows.push((namespace::expiry_key(expiry, written, hash), update.version));
            }
        }
    }
    rows
}

/// A row of the schedule, and the hash that it removes, if it removes one.
type DueRow = (String, Option<(String, String)>);

/// Step 2: the rows of the schedule that name this block.
async fn due(number: u64, batch: &UpdateBatch, view: &BlockStateView) -> Result<Vec<DueRow>, state::Error> {
    let prefix = namespace::expiry_prefix(number);
    let end = namespace::expiry_prefix(number.saturating_add(1));
    let mut rows = view.scan(EXPIRY, &prefix, &end, &UpdateBatch::default());
    let mut due = Vec::new();
    while let Some((key, scheduled)) = rows.next().await? {
        let Some((namespace, hash)) = namespace::expiring(&key) else { continue };
        let is_rewritten = batch.get(namespace, hash).is_some();
        let current = if is_rewritten { None } else { view.get(namespace, hash).await?.map(|found| found.version) };
        let expired = (current == Some(scheduled)).then(|| (namespace.to_owned(), hash.to_owned()));
        due.push((key.to_string(), expired));
    }
    Ok(due)
}
