//! Remembers whether the state may have key metadata and scheduled expiries. Most channels have neither, and validation
//! then skips the look-ups.

use base::Map;
use ledger::namespace::{self, EXPIRY, NamespaceContent};
use state::UpdateBatch;

use crate::view::BlockStateView;

/// Which parts of the state may have rows. A part whose rows were all deleted may still count as having some.
#[derive(Debug, Default)]
pub struct KnownRows {
    /// Metadata, by contract and collection; the empty collection stands for public keys.
    metadata: Map<String, Map<String, bool>>,
    /// The schedule of expiries.
    schedule: Option<bool>,
}

impl KnownRows {
    /// Whether a key of a collection may have metadata in the state that `view` shows.
    ///
    /// # Errors
    /// The state's.
    pub async fn may_have_metadata(
        &mut self,
        contract: &str,
        collection: &str,
        view: &BlockStateView,
    ) -> Result<bool, state::Error> {
        if let Some(known) = self.metadata.get(contract).and_then(|collections| collections.get(collection)) {
            return Ok(*known);
        }
        let found = has_rows(&namespace::metadata_of(contract, collection), view).await?;
        self.note_metadata(contract, collection, found);
        Ok(found)
    }

    /// Whether anything may be scheduled to expire in the state that `view` shows.
    ///
    /// # Errors
    /// The state's.
    pub async fn may_have_schedule(&mut self, view: &BlockStateView) -> Result<bool, state::Error> {
        let found = match self.schedule {
            Some(known) => known,
            None => has_rows(EXPIRY, view).await?,
        };
        self.schedule = Some(found);
        Ok(found)
    }

    /// Notes the namespaces that a block writes.
    pub fn learn(&mut self, batch: &UpdateBatch) {
        for written in batch.namespaces() {
            match namespace::content(written) {
                NamespaceContent::Metadata(contract, collection) => self.note_metadata(contract, collection, true),
                NamespaceContent::Internal if **written == *EXPIRY => self.schedule = Some(true),
                _ => {}
            }
        }
    }

    fn note_metadata(&mut self, contract: &str, collection: &str, has_rows: bool) {
        self.metadata.entry(contract.to_owned()).or_default().insert(collection.to_owned(), has_rows);
    }
}

async fn has_rows(namespace: &str, view: &BlockStateView) -> Result<bool, state::Error> {
    Ok(view.scan(namespace, "", "", &UpdateBatch::default()).next().await?.is_some())
}
