//! Memory that the adapter reaches: regions of a host, and the staging memory of a connection.

use std::io;
use std::ptr;
use std::sync::Arc;

use crate::device::queue_pair::LocalBuffer;
use crate::device::{ProtectionDomain, Registration, RegistrationAccess};
use crate::registered_memory::RegisteredMemory;

/// Bytes of a small slot: words, index buckets, short records.
pub const SMALL_BYTES: usize = 512;
/// Bytes of a large slot, and so of one piece of a long transfer.
pub const LARGE_BYTES: usize = 64 << 10;
/// Bytes of a slot for one received fragment.
pub const RECEIVE_BYTES: usize = 16 << 10;

const SMALL_COUNT: usize = 256;
const LARGE_COUNT: usize = 32;
/// Fragments that may arrive before this end has handled one.
pub const RECEIVE_COUNT: usize = 64;

const LARGE_START: usize = SMALL_COUNT * SMALL_BYTES;
const RECEIVE_START: usize = LARGE_START + LARGE_COUNT * LARGE_BYTES;
const STAGING_BYTES: usize = RECEIVE_START + RECEIVE_COUNT * RECEIVE_BYTES;
const _: () = assert!(LARGE_START.is_multiple_of(4096) && STAGING_BYTES.is_multiple_of(4096));

/// A piece of the staging memory that is in use.
#[derive(Debug)]
pub struct StagingSlot {
    offset: usize,
    bytes: usize,
}

/// The registered memory of a connection, in slots: sent bytes are copied into them, and read bytes arrive in them, so that
/// callers' buffers need no registration.
pub struct Staging {
    registration: Registration,
    small: Vec<StagingSlot>,
    large: Vec<StagingSlot>,
}

impl Staging {
    pub fn new(domain: &Arc<ProtectionDomain>) -> io::Result<Staging> {
        let memory = RegisteredMemory::new(STAGING_BYTES)?;
        let registration = Registration::new(domain, &memory, RegistrationAccess::default())?;
        let slots = |start: usize, bytes: usize, count: usize| {
            (0..count).map(|index| StagingSlot { offset: start + index * bytes, bytes }).collect()
        };
        Ok(Staging {
            registration,
            small: slots(0, SMALL_BYTES, SMALL_COUNT),
            large: slots(LARGE_START, LARGE_BYTES, LARGE_COUNT),
        })
    }

    /// A free slot for this many bytes, at most [`LARGE_BYTES`].
    pub fn take(&mut self, bytes: usize) -> Option<StagingSlot> {
        assert!(bytes <= LARGE_BYTES, "longer transfers go in pieces");
        if bytes <= SMALL_BYTES { self.small.pop() } else { self.large.pop() }
    }

    /// Returns a slot that the adapter no longer uses.
    pub fn give(&mut self, slot: StagingSlot) {
        if slot.bytes == SMALL_BYTES { self.small.push(slot) } else { self.large.push(slot) }
    }

    /// The first `bytes` of a slot, for the adapter.
    pub fn local(&self, slot: &StagingSlot, bytes: usize) -> LocalBuffer {
        assert!(bytes <= slot.bytes, "within the slot");
        self.range(slot.offset, bytes)
    }

    /// The slot for received fragment `index`, for the adapter.
    pub fn receive_local(&self, index: usize) -> LocalBuffer {
        assert!(index < RECEIVE_COUNT, "one of the slots");
        self.range(RECEIVE_START + index * RECEIVE_BYTES, RECEIVE_BYTES)
    }

    fn range(&self, offset: usize, bytes: usize) -> LocalBuffer {
        LocalBuffer {
            address: self.registration.address() + offset as u64,
            bytes: u32::try_from(bytes).expect("slots are small"),
            key: self.registration.local_key(),
        }
    }

    /// Copies into a slot, before it is posted.
    pub fn put(&mut self, slot: &StagingSlot, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= slot.bytes, "within the slot");
        // SAFETY: the range is within the slot and the slot within the memory. The slot is taken and not posted, so the
        // adapter leaves it alone, and `&mut self` keeps every other caller out.
        unsafe {
            let to = self.registration.memory().address().add(slot.offset + at);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// The contents of a slot, after its work has completed.
    pub fn get(&self, slot: &StagingSlot, bytes: usize) -> &[u8] {
        assert!(bytes <= slot.bytes, "within the slot");
        // SAFETY: the range is within the slot; its work has ended, so the adapter leaves it alone, and the borrow keeps
        // callers from posting it again.
        unsafe { std::slice::from_raw_parts(self.registration.memory().address().add(slot.offset), bytes) }
    }

    /// The received bytes in slot `index`, after its work has completed and before it is posted again.
    pub fn received(&self, index: usize, bytes: usize) -> &[u8] {
        assert!(index < RECEIVE_COUNT && bytes <= RECEIVE_BYTES, "within the slot");
        let offset = RECEIVE_START + index * RECEIVE_BYTES;
        // SAFETY: as in `get`.
        unsafe { std::slice::from_raw_parts(self.registration.memory().address().add(offset), bytes) }
    }
}
