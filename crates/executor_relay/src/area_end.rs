//! One end of an area that this process has mapped.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr;

use pushdown::{AREA_BYTES, Area, Frame, Link, RingError, Side};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::message::{FRAMES_BYTES, FRAMES_MAX, RelayMessage};
use crate::pump::{RingEnd, SessionEnd};
use crate::watched::Watched;

/// What one end's area has beside frames.
pub(crate) trait AreaRole: Sync {
    /// What goes to the other end before the next frames, if anything does.
    fn aside(&self, area: Area) -> Option<RelayMessage>;

    /// Takes a message that has no frames.
    ///
    /// # Errors
    /// It is none for this end.
    fn notice(&self, area: Area, message: RelayMessage) -> Result<(), SessionEnd>;
}

/// A mapped area with this process as one of its two users.
pub(crate) struct AreaEnd<R> {
    // Dropped before the mapping that it uses.
    link: Link,
    socket: Watched<OwnedFd>,
    pub(crate) role: R,
    _mapping: Mapping,
}

/// Unmapped when it is dropped.
struct Mapping(usize);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the end of the area, which alone uses the mapping, has been dropped.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.0), AREA_BYTES) };
    }
}

impl<R: AreaRole> AreaEnd<R> {
    /// Maps the area of a file, which is known to have its size for ever, and becomes one side of it. `socket` is that side's.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn new(file: &OwnedFd, side: Side, socket: OwnedFd, role: R) -> io::Result<AreaEnd<R>> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the addresses.
        let mapped = unsafe { mmap(ptr::null_mut(), AREA_BYTES, protection, MapFlags::SHARED, file, 0) }?;
        let mapping = Mapping(mapped.expose_provenance());
        // SAFETY: it is mapped for as long as this end exists, and nobody gets a copy of the area but by this end.
        let area = unsafe { Area::at(mapping.0) };
        let link = Link::of_relay(area, side, socket.as_raw_fd());
        Ok(AreaEnd { link, socket: Watched::new(socket)?, role, _mapping: mapping })
    }

    /// The area, to be used no longer than this end.
    pub(crate) fn area(&self) -> Area {
        self.link.area()
    }
}

impl<R: AreaRole> RingEnd for AreaEnd<R> {
    fn take(&self) -> Result<Vec<Frame>, RingError> {
        let (mut frames, mut bytes) = (Vec::new(), 0);
        while bytes < FRAMES_BYTES && frames.len() < FRAMES_MAX {
            let Some(frame) = self.link.receive()? else { break };
            bytes += frame.bytes.len();
            frames.push(frame);
        }
        Ok(frames)
    }

    fn put(&self, frames: &[Frame]) -> bool {
        self.link.forward(frames)
    }

    async fn arrival(&self) -> Result<(), RingError> {
        if !self.link.may_sleep() {
            // One has come meanwhile.
            tokio::task::yield_now().await;
            return Ok(());
        }
        match self.socket.drain(|_| self.link.drain_socket()).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(RingError),
        }
    }

    fn aside(&self) -> Option<RelayMessage> {
        self.role.aside(self.area())
    }

    fn notice(&self, message: RelayMessage) -> Result<(), SessionEnd> {
        self.role.notice(self.area(), message)
    }
}
