//! What an operator asks about the copies of a running peer's blocks and tables, and what he changes.

use replica::ComputeRole;
use storage_copies::{CopyReport, force_view};

use super::compute::{ComputeInstance, NodeMode};
use crate::control::{StorageCopyReport, StorageReport};

impl ComputeInstance {
    /// Where the copies are.
    ///
    /// # Errors
    /// Why the report is not available, and what to do.
    pub(crate) fn storage_report(&self) -> Result<StorageReport, String> {
        let storage = &self.pooled()?.remote.storage;
        let Some((view, copies)) = storage.control.report() else { return Err(self.no_copies()) };
        let known = |name: &str| copies.iter().find(|copy| copy.name == name);
        let nodes = storage.nodes.iter().map(|node| match known(&node.name) {
            None => StorageCopyReport { name: node.name.clone(), copy: "none".to_owned(), height: 0, private_rows: 0 },
            Some(CopyReport { name, is_member, height, private_rows }) => StorageCopyReport {
                name: name.clone(),
                copy: if *is_member { "complete" } else { "building" }.to_owned(),
                height: *height,
                private_rows: *private_rows,
            },
        });
        let nodes = nodes.collect();
        Ok(StorageReport { name: self.name.clone(), view: view.id.number, wanted: storage.wanted, nodes })
    }

    /// Has a copy be built.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub(crate) fn add_storage_copy(&self, name: &str) -> Result<StorageReport, String> {
        self.pooled()?.remote.storage.control.add(name).map_err(|error| error.to_string())?;
        self.storage_report()
    }

    /// Leaves a copy out.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub(crate) fn drop_storage_copy(&self, name: &str) -> Result<StorageReport, String> {
        self.pooled()?.remote.storage.control.drop_copy(name).map_err(|error| error.to_string())?;
        self.storage_report()
    }

    /// Has one copy count alone.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn force_storage_copy(&self, name: &str) -> Result<StorageReport, String> {
        let storage = self.pooled()?.remote.storage.clone();
        let NodeMode::PeerNodes(node) = &self.node else { return Err(self.no_copies()) };
        if node.role() != ComputeRole::Waiting {
            return Err(format!("{} has a primary, or follows one: nothing has to be forced", self.name));
        }
        let channel = self.channel_name.as_deref().ok_or_else(|| self.no_copies())?;
        let view = force_view(&storage, channel, name).await.map_err(|error| error.to_string())?;
        let nodes = storage.nodes.iter().map(|known| StorageCopyReport {
            name: known.name.clone(),
            copy: if view.is_member(&known.name) { "complete" } else { "none" }.to_owned(),
            height: 0,
            private_rows: 0,
        });
        let nodes = nodes.collect();
        Ok(StorageReport { name: self.name.clone(), view: view.id.number, wanted: storage.wanted, nodes })
    }

    fn no_copies(&self) -> String {
        format!(
            "{} is not the primary of a peer whose storage has copies: see `heddle peer nodes`, and pool.storage_copies",
            self.name
        )
    }
}
