//! The regions of a `tcp` host. Each access (each piece, if the transfer is long) holds the region's lock from the check of the
//! capability to its last byte. This makes revocations exact, words whole, and atomic verbs atomic.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use base::Map;
use base::untrusted::Untrusted;
use wire::u64_at;

use super::pipe::SocketPipe;
use super::wire::VerbStatus;
use crate::{Capability, CapabilitySecret, Error, GrantId, NodeId, RegionId, Rights, WORD_BYTES};

/// Regions of one host.
const REGIONS_MAX: usize = 1 << 20;
/// Grants of one region that are in force.
const GRANTS_MAX: usize = 4096;
/// Bytes that land in a region under one lock; a revocation waits at most for these.
const LOCKED_BYTES_MAX: usize = 256 << 10;
/// The size of a region is a multiple of this.
const PAGE_BYTES: u64 = 4096;

/// The regions of a host.
pub struct HostRegions {
    node: NodeId,
    table: RwLock<RegionTable>,
}

struct RegionTable {
    regions: Map<u32, Arc<HostRegion>>,
    next: u32,
}

/// One region.
pub struct HostRegion {
    bytes: u64,
    inner: Mutex<RegionContents>,
}

pub struct RegionContents {
    /// `None` once the region is deregistered.
    memory: Option<RegionMemory>,
    grants: Vec<RegionGrant>,
    /// Indices in `grants` that were revoked and can be used again.
    free: Vec<u16>,
}

struct RegionGrant {
    generation: u64,
    rights: Rights,
    secret: CapabilitySecret,
    /// The name on whose connections the grant is valid.
    holder: Box<str>,
    revoked: bool,
}

impl HostRegions {
    pub fn new(node: NodeId) -> HostRegions {
        HostRegions { node, table: RwLock::new(RegionTable { regions: Map::default(), next: 1 }) }
    }

    pub fn register(&self, bytes: u64) -> Result<RegionId, Error> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Error::Misaligned(bytes));
        }
        let memory = RegionMemory::new(bytes)?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.regions.len() >= REGIONS_MAX || table.next == u32::MAX {
            return Err(Error::Exhausted("the host has the maximum number of regions".to_owned()));
        }
        let id = table.next;
        table.next += 1;
        let inner = RegionContents { memory: Some(memory), grants: Vec::new(), free: Vec::new() };
        table.regions.insert(id, Arc::new(HostRegion { bytes, inner: Mutex::new(inner) }));
        Ok(RegionId(id))
    }

    pub fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        let found = self.get(region).ok_or(Error::Unknown)?;
        let mut inner = found.lock();
        let secret = CapabilitySecret::random();
        let holder: Box<str> = holder.into();
        let (at, generation) = match inner.free.pop() {
            Some(at) => {
                let grant = &mut inner.grants[usize::from(at)];
                *grant = RegionGrant { generation: grant.generation, rights, secret, holder, revoked: false };
                (at, grant.generation)
            }
            None if inner.grants.len() < GRANTS_MAX => {
                inner.grants.push(RegionGrant { generation: 1, rights, secret, holder, revoked: false });
                ((inner.grants.len() - 1) as u16, 1)
            }
            None => return Err(Error::Exhausted("the region has the maximum number of grants".to_owned())),
        };
        Ok(Capability { node: self.node, region, grant: GrantId(at), rights, generation, secret })
    }

    /// On return no verb under the capability takes effect any more: earlier verbs have released the lock, later ones see the
    /// new generation.
    pub fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        if capability.node != self.node {
            return Err(Error::Unknown);
        }
        let Some(region) = self.get(capability.region) else {
            return if self.is_gone(capability.region) { Ok(()) } else { Err(Error::Unknown) };
        };
        let mut inner = region.lock();
        let at = capability.grant.0;
        let grant = inner.grants.get_mut(usize::from(at)).ok_or(Error::Unknown)?;
        if capability.generation < grant.generation {
            return Ok(());
        }
        if capability.generation > grant.generation || !grant.secret.matches(&capability.secret) || grant.revoked {
            return Err(Error::Unknown);
        }
        grant.generation += 1;
        grant.revoked = true;
        inner.free.push(at);
        Ok(())
    }

    pub fn deregister(&self, region: RegionId) -> Result<(), Error> {
        let removed = self.table.write().unwrap_or_else(PoisonError::into_inner).regions.remove(&region.0);
        let Some(removed) = removed else {
            return if self.is_gone(region) { Ok(()) } else { Err(Error::Unknown) };
        };
        let mut inner = removed.lock();
        inner.memory = None;
        Ok(())
    }

    /// Gives the owner access to a part of a region. The region is locked meanwhile, so that no word is torn.
    pub fn owned<T>(
        &self,
        region: RegionId,
        offset: u64,
        length: usize,
        access: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, Error> {
        let found = self.get(region).ok_or(Error::Unknown)?;
        let region_bytes = found.bytes;
        if offset.checked_add(length as u64).is_none_or(|end| end > region_bytes) {
            return Err(Error::OutOfBounds { offset, length: length as u64, region_bytes });
        }
        let mut inner = found.lock();
        let memory = inner.memory.as_mut().ok_or(Error::Unknown)?;
        Ok(access(&mut memory.bytes()[offset as usize..][..length]))
    }

    /// Frees every region, when the host ends.
    pub fn clear(&self) {
        let regions = std::mem::take(&mut self.table.write().unwrap_or_else(PoisonError::into_inner).regions);
        for region in regions.values() {
            region.lock().memory = None;
        }
    }

    fn get(&self, region: RegionId) -> Option<Arc<HostRegion>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).regions.get(&region.0).cloned()
    }

    /// Whether such a region existed and was deregistered.
    fn is_gone(&self, region: RegionId) -> bool {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        (1..table.next).contains(&region.0) && !table.regions.contains_key(&region.0)
    }

    /// The region of a capability; nothing else of the capability is checked.
    ///
    /// # Errors
    /// The status that the verb fails with.
    pub fn find(&self, capability: &Capability) -> Result<Arc<HostRegion>, VerbRejection> {
        if capability.node != self.node {
            return Err(VerbRejection::of(VerbStatus::Unknown));
        }
        match self.get(capability.region) {
            Some(region) => Ok(region),
            None if self.is_gone(capability.region) => Err(VerbRejection::of(VerbStatus::Revoked)),
            None => Err(VerbRejection::of(VerbStatus::Unknown)),
        }
    }
}

/// Why a verb did not take effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerbRejection {
    pub status: VerbStatus,
    /// For [`VerbStatus::OutOfBounds`].
    pub region_bytes: u64,
}

impl VerbRejection {
    pub fn of(status: VerbStatus) -> VerbRejection {
        VerbRejection { status, region_bytes: 0 }
    }
}

impl HostRegion {
    fn lock(&self) -> MutexGuard<'_, RegionContents> {
        // The state is consistent between any two statements, so a poisoned lock does no harm.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a verb that came over a connection of `holder`, and keeps the region locked: the check and the caller's access to
    /// the bytes are atomic.
    ///
    /// # Errors
    /// The status that the verb fails with.
    pub fn open(
        &self,
        capability: &Capability,
        holder: &str,
        rights: Rights,
        offset: Untrusted<u64>,
        length: u64,
    ) -> Result<OpenRegion<'_>, VerbRejection> {
        let inner = self.lock();
        inner.check(capability, holder, rights)?;
        match offset.range(Untrusted::new(length), self.bytes) {
            // A region is mapped as a whole, so its offsets fit into `usize`.
            Some(range) => Ok(OpenRegion { inner, range: range.start as usize..range.end as usize }),
            None => Err(VerbRejection { status: VerbStatus::OutOfBounds, region_bytes: self.bytes }),
        }
    }
}

impl RegionContents {
    fn check(&self, capability: &Capability, holder: &str, rights: Rights) -> Result<(), VerbRejection> {
        if self.memory.is_none() {
            return Err(VerbRejection::of(VerbStatus::Revoked));
        }
        let grant = self.grants.get(usize::from(capability.grant.0)).ok_or(VerbRejection::of(VerbStatus::Unknown))?;
        if capability.generation < grant.generation {
            return Err(VerbRejection::of(VerbStatus::Revoked));
        }
        // A holder that presents another's capability learns no more than one that invents a capability.
        let known = grant.secret.matches(&capability.secret) && *grant.holder == *holder;
        if capability.generation > grant.generation || grant.revoked || !known {
            return Err(VerbRejection::of(VerbStatus::Unknown));
        }
        if !grant.rights.include(rights) || !capability.rights.include(rights) {
            return Err(VerbRejection::of(VerbStatus::Forbidden));
        }
        Ok(())
    }
}

/// A region locked after a successful check of a capability, and the range that the check covered.
pub struct OpenRegion<'a> {
    inner: MutexGuard<'a, RegionContents>,
    /// Checked to lie within the region.
    range: Range<usize>,
}

impl OpenRegion<'_> {
    /// The bytes of the range.
    pub fn bytes(&mut self) -> &mut [u8] {
        let memory = self.inner.memory.as_mut();
        let memory = memory.expect("it was there when the capability was checked, and is locked since");
        &mut memory.bytes()[self.range.clone()]
    }

    /// The offset of the first byte.
    pub fn offset(&self) -> u64 {
        self.range.start as u64
    }

    /// The first word of the range, which must have one.
    pub fn word(&mut self) -> u64 {
        u64_at(self.bytes(), 0)
    }

    pub fn set_word(&mut self, word: u64) {
        self.bytes()[..WORD_BYTES].copy_from_slice(&word.to_le_bytes());
    }

    /// Receives from a plain socket into these bytes, from the first on: whole words only, unless it fills the whole range.
    /// Returns 0 when less than that has arrived; the caller then reads through its buffer.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn receive(&mut self, pipe: &SocketPipe) -> io::Result<usize> {
        let here = usize::try_from(rustix::io::ioctl_fionread(pipe)?).unwrap_or(usize::MAX);
        let mut take = self.range.len().min(here).min(LOCKED_BYTES_MAX);
        if take < self.range.len() {
            take = take.saturating_sub((self.range.start + take) % WORD_BYTES);
        }
        let into = &mut self.bytes()[..take];
        let mut done = 0;
        while done < take {
            let (read, _) = rustix::net::recv(pipe, &mut into[done..], rustix::net::RecvFlags::empty())?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done += read;
        }
        Ok(take)
    }
}

/// Zeroed pages of the kernel, allocated when they are first touched.
struct RegionMemory {
    address: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is this value's alone, and reached through `&mut self` only.
#[allow(unsafe_code)]
unsafe impl Send for RegionMemory {}

impl RegionMemory {
    fn new(bytes: u64) -> Result<RegionMemory, Error> {
        let exhausted = |reason: String| Error::Exhausted(format!("no memory for a region of {bytes} bytes: {reason}"));
        let length = usize::try_from(bytes).map_err(|error| exhausted(error.to_string()))?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choosing touches nothing that exists.
        #[allow(unsafe_code)]
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE,
            )
        };
        Ok(RegionMemory { address: address.map_err(|error| exhausted(error.to_string()))?.cast(), bytes: length })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `self.bytes` readable and writable bytes until `drop`, and only this borrow reaches them.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.address, self.bytes)
        }
    }
}

impl Drop for RegionMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing else reaches, with the length it was made with.
        #[allow(unsafe_code)]
        let unmapped = unsafe { rustix::mm::munmap(self.address.cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped");
    }
}
