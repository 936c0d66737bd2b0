//! The expiry of private data: the hashes of a collection leave the state after a number of blocks.
//!
//! As in Fabric, block n + b + 1 removes the hashes that block n writes to a collection with `block_to_live` b, unless
//! a later block, up to and including block n + b + 1, writes the key again. The removal takes effect after the
//! transactions of its block, and no commit hash covers it.
//!
//! 1. A block that writes to such a collection adds a row to the schedule for each key ([`ledger::namespace::EXPIRY`]).
//!    The row has the version of the write.
//! 2. Each block removes the rows of the schedule that name it. It also removes the hashes in these rows, with their
//!    keys' metadata, if the hashes still have the scheduled versions and no transaction of the block writes them.

use base::{Bytes, Version, rt};
use ledger::namespace::{self, EXPIRY, MARKER, NamespaceContent};
use rules::access::ChannelPolicies;
use state::UpdateBatch;

use crate::known_rows::KnownRows;
use crate::view::BlockStateView;

/// Adds the expiries that a block schedules and the rows that it removes to its changes. Returns whether there were
/// any. `version` is the version of changes by the block itself.
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
    // Hashes may be scheduled to expire although the newest definition no longer has their collection.
    if !policies.has_expiring_collections() && !known.may_have_schedule(view).await? {
        return Ok(false);
    }
    let number = version.block;
    let is_late = rt::fault_point("chain.validate.mutant.expires_late");
    let removed = due(number.saturating_sub(is_late.into()), batch, view).await?;
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

/// The key of a row of the schedule, and the namespace and hash to remove, if the hash expires.
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
