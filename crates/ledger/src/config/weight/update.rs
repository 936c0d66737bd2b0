//! The same rules for an update of a configuration: it is bounded before it is decoded.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use identity::policy::SIGNATURES_MAX;

use super::{ConfigWalk, GROUP_DEPTH_MAX, MemorySums, add, malformed, map, of, within_limit};
use crate::config::ROOT;
use crate::error::Error;
use crate::wire::Span;

/// Rejects the data of an update's envelope, a `ConfigUpdateEnvelope`, with too many signatures.
///
/// # Errors
/// [`Error::Malformed`] if it is no message or repeats a field that may occur once; [`Error::Config`].
pub(in crate::config) fn check_update_envelope(data: &[u8]) -> Result<(), Error> {
    let walk = ConfigWalk { source: data, sums: MemorySums::default() };
    let mut message = walk.message(Span::whole(data).map_err(malformed)?, &[1]);
    let mut signatures = 0_usize;
    while let Some((number, _)) = message.next()? {
        add(&mut signatures, usize::from(number == 2));
    }
    if signatures > SIGNATURES_MAX {
        let reason = format!("the update has {signatures} signatures, more than {SIGNATURES_MAX}");
        return Err(Error::config(ROOT, reason));
    }
    Ok(())
}

/// Rejects a `ConfigUpdate` that would take too much memory, by the rules for a configuration ([`check`]).
///
/// # Errors
/// As [`check`].
pub(in crate::config) fn check_update(data: &[u8]) -> Result<(), Error> {
    within_limit(data.len(), most_memory_of_update(data)?)
}

/// The most memory that checking a `ConfigUpdate` takes, beside the memory that the current configuration takes.
pub(in crate::config) fn most_memory_of_update(data: &[u8]) -> Result<usize, Error> {
    let mut walk = ConfigWalk { source: data, sums: MemorySums::default() };
    let mut isolated = 0_usize;
    let mut message = walk.message(Span::whole(data).map_err(malformed)?, &[1, 2, 3]);
    while let Some((number, place)) = message.next()? {
        match (number, place) {
            (1, place) => {
                walk.text(place)?;
            }
            (2 | 3, Some(group)) => walk.group(group, 0, GROUP_DEPTH_MAX)?,
            (5, Some(entry)) => {
                let [name, _] = walk.entry(entry)?;
                let text = walk.text(name)?;
                add(&mut walk.sums.tree, text);
                add(&mut isolated, 1);
            }
            _ => {}
        }
    }
    add(&mut walk.sums.tree, map(of::TEXT + of::BYTES, isolated));
    // The elements of both sets, of the changes and of the result; the changes stand in the result once more.
    let MemorySums { tree, elements, .. } = walk.sums;
    Ok(tree.saturating_mul(2).saturating_add(elements.saturating_mul(3)))
}
