//! A nonblocking socket, with or without TLS, and its read buffer.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use super::handshake::{HELLO_BYTES, PROOF_BYTES};
use super::session::TlsSession;
use super::tls::Denials;

/// A connected socket.
pub struct SocketPipe {
    socket: TcpStream,
    tls: Option<Mutex<TlsSession>>,
}

impl SocketPipe {
    pub fn new(socket: TcpStream, tls: Option<rustls::Connection>) -> SocketPipe {
        SocketPipe { socket, tls: tls.map(|tls| Mutex::new(TlsSession::new(tls))) }
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    fn tls(&self) -> Option<MutexGuard<'_, TlsSession>> {
        self.tls.as_ref().map(|tls| tls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether bytes go to the socket unencrypted.
    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// A secret that only the two ends of this TLS connection know; zeroes without TLS.
    ///
    /// # Errors
    /// Before the handshake is complete.
    pub fn binding(&self) -> io::Result<[u8; 32]> {
        self.tls().map_or(Ok([0; 32]), |tls| tls.binding())
    }

    /// Whether the other end's certificate chain is denied now.
    pub fn is_denied(&self, denials: &dyn Denials) -> bool {
        self.tls().is_some_and(|tls| {
            let chain: Vec<&[u8]> = tls.shown().iter().map(|certificate| &certificate[..]).collect();
            !chain.is_empty() && denials.denies(&chain)
        })
    }

    /// Reads what is there. 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there.
    pub fn read(&self, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        let Some(mut tls) = self.tls() else {
            let ((filled, _), _) = rustix::net::recv(&self.socket, into, RecvFlags::empty())?;
            return Ok(filled.len());
        };
        tls.read(&self.socket, into)
    }

    /// Reads what is there into `first` and, once that is full, into `second`. 0 is the end. With TLS, `second` gets nothing.
    ///
    /// # Errors
    /// As [`SocketPipe::read`].
    fn read_two(&self, first: &mut [MaybeUninit<u8>], second: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        if !self.is_plain() || first.is_empty() {
            return self.read(first);
        }
        let part =
            |bytes: &mut [MaybeUninit<u8>]| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let parts = [part(first), part(second)];
        // SAFETY: both parts are writable for their lengths until the call returns, and the descriptor is open.
        #[allow(unsafe_code)]
        let read = unsafe { libc::readv(self.socket.as_raw_fd(), parts.as_ptr(), 2) };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Writes as much as the socket accepts now.
    ///
    /// # Errors
    /// `WouldBlock` when it accepts nothing.
    pub fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_with(slices, SendFlags::NOSIGNAL)
    }

    /// As [`SocketPipe::write`], for bytes that others follow at once: they share a packet.
    ///
    /// # Errors
    /// As [`SocketPipe::write`].
    pub fn write_more(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_with(slices, SendFlags::NOSIGNAL | SendFlags::MORE)
    }

    fn write_with(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
        let Some(mut tls) = self.tls() else {
            return match slices {
                [one] => Ok(rustix::net::send(&self.socket, one, flags)?),
                many => {
                    let mut none = SendAncillaryBuffer::default();
                    Ok(rustix::net::sendmsg(&self.socket, many, &mut none, flags)?)
                }
            };
        };
        tls.write(&self.socket, slices)
    }

    /// Tries to write the encrypted bytes. Returns whether some are still on this side of the socket.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn push(&self) -> io::Result<bool> {
        let Some(mut tls) = self.tls() else { return Ok(false) };
        tls.push(&self.socket)?;
        Ok(tls.wants_write())
    }

    /// Whether encrypted bytes are still on this side of the socket.
    pub fn wants_write(&self) -> bool {
        self.tls().is_some_and(|tls| tls.wants_write())
    }

    /// Announces that nothing more will be written.
    pub fn finish(&self) {
        if let Some(mut tls) = self.tls() {
            tls.finish(&self.socket);
        }
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Cuts the connection, as closing the descriptor would, even while others hold it. If bytes of the other end were not
    /// read, the connection is reset: otherwise a sender that waits for space in a full receive buffer would wait for ever,
    /// since that buffer is not read any more.
    pub fn abort(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        // No more bytes are queued after this.
        if rustix::io::ioctl_fionread(&self.socket).is_ok_and(|unread| unread > 0) {
            let _ = rustix::net::connect_unspec(&self.socket);
        }
    }
}

impl AsFd for SocketPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Bytes that a connection reads ahead.
const READ_BUFFER_BYTES: usize = 128 << 10;
/// Bytes that an unauthenticated connection reads ahead: both of its messages.
const HANDSHAKE_BUFFER_BYTES: usize = HELLO_BYTES + PROOF_BYTES;

/// The result of a read.
#[derive(Clone, Copy)]
pub struct FillProgress {
    /// The number of bytes; 0 is the end.
    pub bytes: usize,
    /// The socket had no more at that time, or a socket event will announce more.
    pub drained: bool,
}

/// Bytes that were read and not yet decoded.
pub struct ReadBuffer {
    bytes: Box<[MaybeUninit<u8>]>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    pub fn new() -> ReadBuffer {
        ReadBuffer { bytes: Box::new_uninit_slice(READ_BUFFER_BYTES), start: 0, end: 0 }
    }

    /// With capacity for a client's handshake.
    pub fn for_handshake() -> ReadBuffer {
        ReadBuffer { bytes: Box::new_uninit_slice(HANDSHAKE_BUFFER_BYTES), start: 0, end: 0 }
    }

    /// Grows to the capacity of [`ReadBuffer::new`]. Keeps the bytes that were read.
    pub fn widen(&mut self) {
        let mut wide = ReadBuffer::new();
        let here = self.end - self.start;
        wide.bytes[..here].copy_from_slice(&self.bytes[self.start..self.end]);
        wide.end = here;
        *self = wide;
    }

    #[inline]
    pub fn filled(&self) -> &[u8] {
        let filled = &self.bytes[self.start..self.end];
        // SAFETY: `start..end` were filled by `SocketPipe::read`; nothing un-initialises them.
        #[allow(unsafe_code)]
        unsafe {
            &*(std::ptr::from_ref(filled) as *const [u8])
        }
    }

    #[inline]
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "only what is there can be taken");
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads once, at most `limit` bytes.
    ///
    /// # Errors
    /// As [`SocketPipe::read`].
    #[inline]
    pub fn fill(&mut self, pipe: &SocketPipe, limit: usize) -> io::Result<FillProgress> {
        if self.bytes.len() - self.end < self.bytes.len() / 4 && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        assert!(self.end < self.bytes.len(), "the reader takes frames off a full buffer");
        let until = self.bytes.len().min(self.end.saturating_add(limit));
        let asked = until - self.end;
        let bytes = pipe.read(&mut self.bytes[self.end..until])?;
        self.end += bytes;
        Ok(FillProgress { bytes, drained: bytes < asked })
    }

    /// Reads once: at most `missing` bytes to the end of `into`, as far as its capacity goes, and at most `limit` of the bytes
    /// behind them into this buffer, which must be empty. Returns how many bytes `into` got; 0 is the end.
    ///
    /// # Errors
    /// As [`SocketPipe::read`].
    pub fn fill_behind(
        &mut self,
        into: &mut base::BytesMut,
        missing: usize,
        pipe: &SocketPipe,
        limit: usize,
    ) -> io::Result<usize> {
        assert!(self.start == self.end, "what was read before comes first");
        let spare = into.spare_capacity_mut();
        let count = missing.min(spare.len());
        // Bytes that follow belong here only when `into` gets all of its own.
        let limit = if count == missing { limit.min(self.bytes.len()) } else { 0 };
        let read = pipe.read_two(&mut spare[..count], &mut self.bytes[..limit])?;
        assert!(read <= count + limit, "the kernel fills no more than it was given");
        (self.start, self.end) = (0, read.saturating_sub(count));
        let length = into.len() + read.min(count);
        // SAFETY: `SocketPipe::read_two` has initialised that many bytes behind those that were there, within the capacity.
        #[allow(unsafe_code)]
        unsafe {
            into.set_len(length);
        }
        Ok(read.min(count))
    }

    /// Moves at most `limit` bytes to the end of `into`.
    pub fn move_into(&mut self, into: &mut base::BytesMut, limit: usize) {
        let count = limit.min(self.end - self.start);
        into.extend_from_slice(&self.filled()[..count]);
        self.consume(count);
    }
}

/// Reads once to the end of `into`, at most `limit` bytes, within its capacity.
///
/// # Errors
/// As [`SocketPipe::read`].
pub fn read_to_end_of(into: &mut base::BytesMut, pipe: &SocketPipe, limit: usize) -> io::Result<usize> {
    let spare = into.spare_capacity_mut();
    let count = limit.min(spare.len());
    let read = pipe.read(&mut spare[..count])?;
    assert!(read <= count, "the kernel fills no more than it was given");
    let length = into.len() + read;
    // SAFETY: `SocketPipe::read` has initialised `read` bytes behind those that were there, within the capacity.
    #[allow(unsafe_code)]
    unsafe {
        into.set_len(length);
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::time::Duration;

    use super::*;

    fn pair() -> (TcpStream, SocketPipe) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let other = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let (socket, _) = listener.accept().expect("somebody connected");
        (other, SocketPipe::new(socket, None))
    }

    /// Regression: a host ended a connection whose receive buffer was full while an endpoint still held it. The sender waited
    /// for space that was never freed.
    #[test]
    fn a_sender_that_waits_for_room_is_told_of_the_end() {
        let (mut sender, pipe) = pair();
        sender.set_nonblocking(true).expect("a socket");
        let chunk = vec![7; 1 << 20];
        let full = loop {
            if let Err(error) = sender.write(&chunk) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        pipe.abort();
        sender.set_nonblocking(false).expect("a socket");
        sender.set_write_timeout(Some(Duration::from_secs(60))).expect("a socket");
        let ended = sender.write_all(&chunk).expect_err("the connection has ended");
        assert!(matches!(ended.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{ended}");
        drop(pipe);
    }

    #[test]
    fn what_was_written_before_the_cut_arrives() {
        let (mut receiver, pipe) = pair();
        assert_eq!(pipe.write(&[IoSlice::new(b"refused")]).expect("there is room"), 7);
        pipe.abort();
        let mut received = Vec::new();
        io::Read::read_to_end(&mut receiver, &mut received).expect("the end is an orderly one");
        assert_eq!(received, b"refused");
        drop(pipe);
    }
}
