//! Accounts of remote memory, checked against the index: in tests, and when an operator asks.

use base::{Set, rt};

use super::index::{BucketGroup, GROUP_BYTES, SUBTABLE_BYTES};
use super::memory::completed;
use super::pointer::Pointer;
use super::record::{HEADER_BYTES, is_given_up};
use super::space::SpaceAccounts;
use super::{StateCore, StateWriter};
use crate::Error;

/// The state of every leased byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryAudit {
    /// Bytes of leased sections.
    pub leased: u64,
    /// Bytes of them that are free.
    pub free: u64,
    /// Bytes of them in buffers that are in use.
    pub live: u64,
    /// Bytes of them in retired buffers that wait until every lease has ended. The three add up to `leased`.
    pub quarantined: u64,
    /// Live bytes of the index and of the sections' headers.
    pub index: u64,
    /// Live bytes of the records that the index leads to.
    pub records: u64,
    /// Live bytes of versions that a newer version superseded.
    pub superseded: u64,
    /// Live bytes of buffers to which nothing leads, until followers have acknowledged that.
    pub untold: u64,
    /// Live bytes to which nothing leads. After a loss of subtables there may be some until the sweep has run.
    pub leaked: u64,
    /// Slots, newest versions of the delta, and entries of the metadata cache that lead into leased sections but to no
    /// live buffer. Always 0.
    pub dangling: u64,
    /// Quarantined buffers of evicted records whose link word does not say so. Always 0.
    pub unmarked: u64,
    /// How many records the index leads to.
    pub entries: u64,
    /// Bytes that the metadata cache is charged with.
    pub metadata_cache: u64,
    /// Bytes that the data cache is charged with.
    pub data_cache: u64,
}

impl StateCore {
    pub(super) async fn audit(&self) -> Result<MemoryAudit, Error> {
        let mut guard = self.writer.lock().await;
        let writer: &mut StateWriter = &mut guard;
        if writer.space.has_unsurveyed() {
            return Err(Error::Busy);
        }
        let SpaceAccounts { leased, free, live, quarantined } = writer.space.accounts();
        let mut audit = MemoryAudit { leased, free, live, quarantined, ..MemoryAudit::default() };
        let section_bytes = self.memory.section_bytes();
        audit.index = writer.sections.len() as u64 * super::header::header_bytes(section_bytes);
        let mut reached: Set<u64> = Set::default();
        let subtables: Vec<_> = self.directory.subtables().collect();
        for subtable in subtables {
            let into = base::BytesMut::with_capacity(SUBTABLE_BYTES);
            let verb = self.memory.read(subtable.address, SUBTABLE_BYTES, into);
            let bytes = completed(&*self.memory, verb).await.map_err(|_| Error::Busy)?;
            audit.index += writer.space.extent(subtable.address).map_or(0, |extent| extent.bytes);
            reached.insert(subtable.address);
            for group in bytes.chunks(GROUP_BYTES) {
                let group = BucketGroup::new(group, &subtable).ok_or(Error::Busy)?;
                for (_, pointer) in group.entries().filter(|(_, pointer)| writer.space.holds(pointer.address())) {
                    audit.entries += 1;
                    match writer.space.extent(pointer.address()) {
                        Some(extent) if reached.insert(extent.address) => audit.records += extent.bytes,
                        _ => audit.dangling += 1,
                    }
                }
            }
        }
        for superseded in &writer.superseded {
            match writer.space.extent(superseded.pointer.address()) {
                Some(extent) if reached.insert(extent.address) => audit.superseded += extent.bytes,
                _ => audit.dangling += 1,
            }
        }
        for (_, pointer) in &writer.unacknowledged {
            if let Some(extent) = writer.space.extent(pointer.address()) {
                audit.dangling += u64::from(!reached.insert(extent.address));
                audit.untold += extent.bytes;
            }
        }
        for extent in writer.space.quarantined() {
            audit.dangling += u64::from(!reached.insert(extent.address));
        }
        let put_aside: Set<u64> = writer.space.quarantined().map(|extent| extent.address).collect();
        let untold: Set<u64> = writer.unacknowledged.iter().map(|(_, pointer)| pointer.address()).collect();
        let mut newest = self.delta().newest_in_memory();
        newest.extend(self.caches.pointers());
        let is_live = |address: u64| {
            writer.space.extent(address).is_some() && !put_aside.contains(&address) && !untold.contains(&address)
        };
        let is_lost = |pointer: &Pointer| writer.space.holds(pointer.address()) && !is_live(pointer.address());
        audit.dangling += newest.iter().filter(|pointer| is_lost(pointer)).count() as u64;
        writer.forget_evicted(rt::now());
        let evicted: Vec<Pointer> = writer.evicted.iter().map(|(_, pointer)| *pointer).collect();
        for pointer in evicted.into_iter().filter(|pointer| put_aside.contains(&pointer.address())) {
            let bytes = base::BytesMut::with_capacity(HEADER_BYTES);
            let verb = self.memory.read(pointer.address(), HEADER_BYTES, bytes);
            let bytes = completed(&*self.memory, verb).await.map_err(|_| Error::Busy)?;
            audit.unmarked += u64::from(!is_given_up(&bytes, pointer));
        }
        let (metadata, data) = self.caches.bytes();
        (audit.metadata_cache, audit.data_cache) = (metadata as u64, data as u64);
        let unreached = writer.space.buffers().filter(|extent| !reached.contains(&extent.address));
        audit.leaked = unreached.map(|extent| extent.bytes).sum();
        Ok(audit)
    }
}
