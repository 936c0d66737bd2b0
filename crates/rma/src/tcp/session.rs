//! The TLS session of one connection, with a buffer for bytes that were read from the socket and not yet decrypted.
//!
//! rustls reads 4 KiB at a time, which would cost a system call each. Therefore one system call fills a larger buffer here, and
//! rustls reads from that buffer. Decrypted bytes are copied once, to the place that the caller chose.

use std::io::{self, BufRead as _, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpStream;

use rustix::net::RecvFlags;
use rustls::pki_types::CertificateDer;

/// Encrypted bytes that the session holds before it accepts no more. Two records: while one end encrypts the next ones, the
/// other decrypts these.
const OUTGOING_BYTES_MAX: usize = 32 << 10;
/// Bytes that one call reads from the socket after the handshake.
const INCOMING_BYTES: usize = 128 << 10;
/// Bytes that one call reads during the handshake: a few certificates.
const HANDSHAKE_INCOMING_BYTES: usize = 4 << 10;

pub struct TlsSession {
    tls: rustls::Connection,
    /// `start..end` was read and not yet given to the library.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl TlsSession {
    pub fn new(mut tls: rustls::Connection) -> TlsSession {
        tls.set_buffer_limit(Some(OUTGOING_BYTES_MAX));
        TlsSession { tls, incoming: Vec::new(), start: 0, end: 0 }
    }

    /// A secret that only the two ends of this session know.
    ///
    /// # Errors
    /// Before the handshake is complete.
    pub fn binding(&self) -> io::Result<[u8; 32]> {
        let mut binding = [0; 32];
        self.tls.export_keying_material(&mut binding, b"EXPORTER-heddle-rma-tcp", None).map_err(invalid)?;
        Ok(binding)
    }

    /// The certificate chain that the other end presented, its own certificate first; empty before that.
    pub fn shown(&self) -> &[CertificateDer<'static>] {
        self.tls.peer_certificates().unwrap_or_default()
    }

    /// Reads what is there, until `into` is full or the socket has no more. 0 is the end.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there.
    pub fn read(&mut self, socket: &TcpStream, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        let mut done = 0;
        loop {
            let mut ended = false;
            while done < into.len() {
                let mut reader = self.tls.reader();
                let plain = match reader.fill_buf() {
                    Ok(plain) => plain,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                };
                let count = plain.len().min(into.len() - done);
                ended = count == 0;
                if ended {
                    break;
                }
                for (byte, plain) in into[done..done + count].iter_mut().zip(plain) {
                    byte.write(*plain);
                }
                reader.consume(count);
                done += count;
            }
            if ended || done == into.len() {
                return Ok(done);
            }
            if self.start == self.end {
                // A caller that already has bytes does not ask the socket for more.
                if done > 0 {
                    return Ok(done);
                }
                if self.receive(socket)? == 0 {
                    // An end without a close notice still counts as an end: the protocol above counts its bytes.
                    return Ok(0);
                }
            }
            self.decrypt(socket)?;
        }
    }

    fn receive(&mut self, socket: &TcpStream) -> io::Result<usize> {
        let room = if self.tls.is_handshaking() { HANDSHAKE_INCOMING_BYTES } else { INCOMING_BYTES };
        if self.incoming.len() < room {
            self.incoming = vec![0; room];
        }
        let (received, _) = rustix::net::recv(socket, &mut self.incoming[..], RecvFlags::empty())?;
        (self.start, self.end) = (0, received);
        Ok(received)
    }

    /// Feeds the library as much as it accepts, and lets it decrypt that.
    fn decrypt(&mut self, socket: &TcpStream) -> io::Result<()> {
        while self.start < self.end {
            // The library accepts no more when it holds a whole record, or plain text that was not read yet.
            match self.tls.read_tls(&mut &self.incoming[self.start..self.end]) {
                Ok(taken) if taken > 0 => self.start += taken,
                _ => break,
            }
        }
        let processed = self.tls.process_new_packets();
        self.push(socket)?;
        processed.map(drop).map_err(invalid)
    }

    /// Encrypts and writes as much as the socket accepts now.
    ///
    /// # Errors
    /// `WouldBlock` when it accepts nothing.
    pub fn write(&mut self, socket: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.push(socket)?;
        if self.tls.wants_write() || self.tls.is_handshaking() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let written = self.tls.writer().write_vectored(slices)?;
        self.push(socket)?;
        Ok(written)
    }

    /// Writes the encrypted bytes, as far as the socket accepts them.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn push(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether encrypted bytes are not yet in the socket.
    pub fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Announces that nothing more will be written.
    pub fn finish(&mut self, socket: &TcpStream) {
        self.tls.send_close_notify();
        let _ = self.push(socket);
    }
}
