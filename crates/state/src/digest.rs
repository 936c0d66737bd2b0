//! Digests of whole states: equal states have equal digests in every peer form.

use crate::{Error, Snapshot, StateEntry, Versioned};

/// Entries that a digest reads at once.
pub const PAGE_ENTRIES: usize = 1024;

/// SHA-256 over every live (namespace, key, value, version) of a snapshot, in order.
pub async fn of(
    snapshot: &dyn Snapshot,
    namespaces: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<[u8; 32], Error> {
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    let mut feed = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_le_bytes());
        context.update(bytes);
    };
    for namespace in namespaces {
        let namespace = namespace.as_ref();
        let mut start = String::new();
        loop {
            let page = snapshot.range(namespace, &start, "", PAGE_ENTRIES).await?;
            for StateEntry { key, versioned: Versioned { value, version } } in &page.entries {
                feed(namespace.as_bytes());
                feed(key.as_bytes());
                feed(value);
                feed(&version.block.to_le_bytes());
                feed(&version.tx.to_le_bytes());
            }
            match page.entries.last() {
                Some(last) if page.more => start = format!("{}\0", last.key),
                _ => break,
            }
        }
    }
    Ok(context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
}
