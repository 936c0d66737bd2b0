//! A message that has arrived in part.

use std::io;
use std::sync::Arc;

use base::admission::{AdmissionPermit, Reservation};
use base::{Bytes, BytesMut};

use super::pipe::SocketPipe;
use crate::Error;

/// A message that has arrived in part.
pub struct MessageAssembly {
    bytes: BytesMut,
    length: usize,
    /// The account that its bytes count against, at a host.
    payer: Option<Arc<AdmissionPermit>>,
    reserved: Vec<Reservation>,
    reserved_bytes: usize,
}

/// Bytes reserved for a message before any of it arrives; later the buffer doubles.
const FIRST_RESERVE_BYTES: usize = 1 << 20;

impl MessageAssembly {
    /// For a message of which no bytes have arrived.
    ///
    /// # Errors
    /// [`Error::Exhausted`]: the sender has too many unfinished messages.
    pub fn new(length: usize, payer: Option<Arc<AdmissionPermit>>) -> Result<MessageAssembly, Error> {
        let first = length.min(FIRST_RESERVE_BYTES);
        let mut assembly =
            MessageAssembly { bytes: BytesMut::new(), length, payer, reserved: Vec::new(), reserved_bytes: 0 };
        assembly.account(first)?;
        assembly.bytes.reserve(first);
        Ok(assembly)
    }

    /// Accounts for `bytes` bytes in all.
    fn account(&mut self, bytes: usize) -> Result<(), Error> {
        if let Some(payer) = &self.payer
            && bytes > self.reserved_bytes
        {
            let reserved = payer.reserve(bytes - self.reserved_bytes);
            self.reserved.push(reserved.map_err(|over| Error::Exhausted(over.to_string()))?);
            self.reserved_bytes = bytes;
        }
        Ok(())
    }

    /// Takes bytes from the buffer. Returns whether the message is complete.
    ///
    /// # Errors
    /// As [`MessageAssembly::new`].
    pub fn take(&mut self, buffer: &mut super::pipe::ReadBuffer) -> Result<bool, Error> {
        let missing = self.length - self.bytes.len();
        self.account(self.bytes.len() + missing.min(buffer.filled().len()))?;
        buffer.move_into(&mut self.bytes, missing);
        Ok(self.bytes.len() == self.length)
    }

    /// Reads bytes from the socket. 0 is the end.
    ///
    /// # Errors
    /// As [`SocketPipe::read`]; `OutOfMemory` as [`MessageAssembly::new`].
    pub fn read(&mut self, pipe: &SocketPipe) -> io::Result<usize> {
        let missing = self.length - self.bytes.len();
        if self.bytes.capacity() == self.bytes.len() {
            let more = missing.min(self.bytes.len().max(FIRST_RESERVE_BYTES));
            self.account(self.bytes.len() + more).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
            self.bytes.reserve(more);
        }
        super::pipe::read_to_end_of(&mut self.bytes, pipe, missing)
    }

    pub fn is_whole(&self) -> bool {
        self.bytes.len() == self.length
    }

    pub fn finish(self) -> Bytes {
        self.bytes.freeze()
    }
}
