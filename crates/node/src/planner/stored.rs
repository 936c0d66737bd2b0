//! Which storage nodes serve which peers.

use storage::node::COPIES_MAX;

use super::parts::{PlanAddresses, PlanSecrets, storage_name};
use super::{Placement, Planner};
use crate::network::NodeError;
use crate::process::file::{CopyFile, StorageFile};

impl Planner<'_> {
    /// Whether storage nodes serve the peers of several organisations.
    pub(super) fn is_storage_shared(&self) -> bool {
        self.has_copies() || self.storage_nodes < self.names.len()
    }

    /// Whether each peer lies on two storage nodes.
    fn has_copies(&self) -> bool {
        self.storage_nodes > 0 && self.network.config().pool.storage_copies > 1
    }

    /// Storage nodes that serve a peer: with two copies, one more, to which a copy may move.
    fn copies_max(&self) -> usize {
        if self.has_copies() { self.storage_nodes.min(COPIES_MAX) } else { 1 }
    }

    /// The place of the storage node that has a peer's first copy, or another one.
    pub(super) fn stores(&self, organization: usize, copy: usize) -> usize {
        (organization + copy) % self.storage_nodes
    }

    /// The name of a storage node's process.
    pub(super) fn storage_process(&self, place: usize) -> String {
        if self.is_storage_shared() { storage_name(place) } else { format!("storage-{}", self.names[place]) }
    }

    /// The organisations whose peers have their storage at a node: first copies, then others.
    pub(super) fn stored_at(&self, place: usize) -> impl Iterator<Item = (usize, usize)> {
        let peers = move |copy| (0..self.names.len()).map(move |organization| (organization, copy));
        (0..self.copies_max())
            .flat_map(peers)
            .filter(move |(organization, copy)| self.stores(*organization, *copy) == place)
    }

    /// Where a storage node serves one copy of a peer.
    pub(super) fn stored(at: &PlanAddresses, (organization, copy): (usize, usize)) -> String {
        match copy.checked_sub(1) {
            None => at.storage[organization].clone(),
            Some(other) => at.copies[organization][other].clone(),
        }
    }

    /// Where a storage node keeps the peer of an organisation.
    pub(super) fn storage(&self, stored: (usize, usize), at: &PlanAddresses, secrets: &PlanSecrets) -> StorageFile {
        let (config, (organization, copy)) = (self.network.config(), stored);
        // By the node's name, so that it is found again when the number of nodes has grown.
        let folder = match copy {
            0 => "peers".to_owned(),
            _ => format!("copies/{}", self.storage_process(self.stores(organization, copy))),
        };
        let mut directory = self.data(&format!("{folder}/{}", config.network.organizations[organization]));
        if self.is_storage_shared() && matches!(self.placement, Placement::Hosts { .. }) {
            directory.push(&self.names[organization]);
        }
        StorageFile {
            address: Self::stored(at, stored),
            directory,
            memtable_bytes: config.storage.memtable_bytes,
            table_cache_bytes: config.storage.table_cache_bytes,
            table_hint_bytes: config.storage.table_hint_bytes,
            clients: self.nodes(organization, secrets).collect(),
            joining: Some(self.joining(organization, secrets)),
            others: Vec::new(),
        }
    }

    /// Addresses for the copies of a peer beyond the first one.
    pub(super) fn copy_addresses(
        &mut self,
        organization: usize,
        next: &mut impl FnMut() -> usize,
    ) -> Result<Vec<String>, NodeError> {
        let mut addresses = Vec::new();
        for copy in 1..self.copies_max() {
            let node = self.storage_process(self.stores(organization, copy));
            let socket = format!("copy-{}-{copy}", self.names[organization]);
            addresses.push(self.inner_at(&node, &socket, next())?);
        }
        Ok(addresses)
    }

    /// The storage nodes of a peer that may have copies, as its compute nodes know them; none if there is one copy.
    pub(super) fn copy_files(&self, organization: usize, at: &PlanAddresses) -> Vec<CopyFile> {
        if !self.has_copies() {
            return Vec::new();
        }
        let file = |copy| CopyFile {
            name: self.storage_process(self.stores(organization, copy)),
            address: Self::stored(at, (organization, copy)),
        };
        (0..self.copies_max()).map(file).collect()
    }
}
