//! The floor of `tcp`: a request and a reply over a bare socket, with the sizes of the verb's request and reply.
//!
//! 1. A thread reads all requests that have arrived and writes all their replies with one call.
//! 2. The caller writes requests and reads replies. It uses the same system calls whether one request or many are in flight.
//! 3. Both ends poll the socket for as long as both ends of the provider do, and then sleep. They poll longer while the
//!    other end is probably still receiving the bytes that were written.
//!
//! Each end receives into one buffer and sends from one buffer, without a check or a copy.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::cpu_affinity::PinnedCaller;
use super::provider::failed;
use super::verbs::{Verb, VerbCase};
use crate::rma::floor::FloorOperation;
use measurement::error::Error;

/// Several small requests or replies go through one call, up to this many bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of an address, or of an outcome.
const WORD_BYTES: usize = 8;
/// How fast the other end takes written bytes, and how long at most to poll for that: as in the provider.
const TAKEN_BYTES_PER_MICROSECOND: usize = 2 << 10;
const TAKEN_TIME_MAX: Duration = Duration::from_millis(1);

/// The caller's end.
pub struct EchoFloor {
    socket: TcpStream,
    request: RepeatedFrames,
    reply: RepeatedFrames,
    depth: usize,
    wait: SpinWait,
}

/// Frames of one size, one behind the other. The buffer holds a whole number of them.
struct RepeatedFrames {
    frame_bytes: usize,
    buffer: Vec<u8>,
}

impl RepeatedFrames {
    /// A buffer of `frames` frames, or of as many as go through one call.
    fn new(frame_bytes: usize, frames: usize) -> RepeatedFrames {
        let frames = frames.max(CHUNK_BYTES / frame_bytes).max(1);
        RepeatedFrames { frame_bytes, buffer: vec![7; frames * frame_bytes] }
    }

    /// The bytes from number `at` on, at most `most`.
    fn from(&mut self, at: usize, most: usize) -> &mut [u8] {
        let start = at % self.buffer.len();
        let end = self.buffer.len().min(start.saturating_add(most));
        &mut self.buffer[start..end]
    }
}

/// The bytes of a request and of its reply.
fn bytes(case: &VerbCase) -> (usize, usize) {
    match case.verb {
        Verb::Read => (WORD_BYTES, case.bytes),
        Verb::Write | Verb::WriteWithImmediate => (case.bytes, WORD_BYTES),
        Verb::CompareSwap => (2 * WORD_BYTES, WORD_BYTES),
        Verb::FetchAdd => (WORD_BYTES, WORD_BYTES),
        Verb::Send => (case.bytes, case.bytes),
    }
}

impl EchoFloor {
    /// Starts the thread and connects to it.
    ///
    /// # Errors
    /// No port or no thread is left.
    pub fn start(case: &VerbCase, spin: Duration, placed: &PinnedCaller) -> Result<EchoFloor, Error> {
        let failed = |error: io::Error| failed("a socket to compare with", error);
        let (request, reply) = bytes(case);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let socket = TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
        let (served, _) = listener.accept().map_err(failed)?;
        for socket in [&socket, &served] {
            socket.set_nodelay(true).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
        }
        let depth = case.depth();
        let server = EchoServer {
            socket: served,
            request: RepeatedFrames::new(request, 1),
            reply: RepeatedFrames::new(reply, 1),
            wait: SpinWait::new(spin),
        };
        // The thread ends with the connection.
        let thread = std::thread::Builder::new().name("echo".to_owned());
        let place = placed.answering();
        let serve = move || {
            place();
            server.run();
        };
        thread.spawn(serve).map_err(failed)?;
        Ok(EchoFloor {
            socket,
            request: RepeatedFrames::new(request, 1),
            // The replies of many reads go to as many places.
            reply: RepeatedFrames::new(reply, if reply >= CHUNK_BYTES { depth } else { 1 }),
            depth,
            wait: SpinWait::new(spin),
        })
    }

    /// Performs `count` exchanges, at most `depth` of them in flight.
    fn exchange(&mut self, count: usize, depth: usize) -> io::Result<()> {
        let (mut sent, mut received) = (0, 0);
        let wanted = count * self.reply.frame_bytes;
        while received < wanted {
            let may_send = count.min(received / self.reply.frame_bytes + depth) * self.request.frame_bytes;
            let mut moved = false;
            if sent < may_send
                && let Some(written) = now(self.socket.write(self.request.from(sent, may_send - sent)))?
            {
                (sent, moved) = (sent + written, true);
                self.wait.wrote(written);
            }
            // While the only request is not sent completely, no reply can have come.
            if (sent == may_send || depth > 1)
                && let Some(read) = now(self.socket.read(self.reply.from(received, wanted - received)))?
            {
                (received, moved) = (received + read, true);
            }
            match moved {
                true => self.wait.restart(),
                false => self.wait.once(&self.socket, sent < may_send)?,
            }
        }
        Ok(())
    }
}

impl FloorOperation for EchoFloor {
    fn one_by_one(&mut self, count: usize, samples: &mut Vec<u32>) -> Result<(), Error> {
        let mut last = Instant::now();
        for _ in 0..count {
            self.exchange(1, 1).map_err(lost)?;
            let now = Instant::now();
            samples.push(u32::try_from((now - last).as_nanos()).unwrap_or(u32::MAX));
            last = now;
        }
        Ok(())
    }

    fn many(&mut self, count: usize) -> Result<(), Error> {
        self.exchange(count, self.depth).map_err(lost)
    }
}

impl Drop for EchoFloor {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn lost(error: io::Error) -> Error {
    failed("a socket to compare with", error)
}

/// The other end.
struct EchoServer {
    socket: TcpStream,
    request: RepeatedFrames,
    reply: RepeatedFrames,
    wait: SpinWait,
}

impl EchoServer {
    fn run(mut self) {
        // An error means that the caller has gone; there is no receiver to report it to.
        let _ = self.serve();
    }

    fn serve(&mut self) -> io::Result<()> {
        let (mut received, mut sent) = (0, 0);
        loop {
            let Some(read) = now(self.socket.read(self.request.from(received, usize::MAX)))? else {
                self.wait.once(&self.socket, false)?;
                continue;
            };
            self.wait.restart();
            received += read;
            let owed = received / self.request.frame_bytes * self.reply.frame_bytes;
            while sent < owed {
                match now(self.socket.write(self.reply.from(sent, owed - sent)))? {
                    Some(written) => {
                        sent += written;
                        self.wait.restart();
                        self.wait.wrote(written);
                    }
                    None => self.wait.once(&self.socket, true)?,
                }
            }
        }
    }
}

/// The result of a call on a non-blocking socket; `None` if it would block.
fn now(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits as the provider does: polls for a while, then sleeps.
struct SpinWait {
    spin: Duration,
    until: Option<Instant>,
    /// When the other end has probably taken the written bytes, if they were many.
    taken_by: Option<Instant>,
}

impl SpinWait {
    fn new(spin: Duration) -> SpinWait {
        SpinWait { spin, until: None, taken_by: None }
    }

    /// Records that this many bytes were sent.
    fn wrote(&mut self, bytes: usize) {
        if bytes >= TAKEN_BYTES_PER_MICROSECOND && !self.spin.is_zero() {
            let now = Instant::now();
            let takes = Duration::from_micros((bytes / TAKEN_BYTES_PER_MICROSECOND) as u64);
            let from = self.taken_by.map_or(now, |taken_by| taken_by.max(now));
            self.taken_by = Some((from + takes).min(now + TAKEN_TIME_MAX));
        }
    }

    /// Records that bytes have arrived.
    fn restart(&mut self) {
        self.until = None;
    }

    /// Waits once, after no bytes have arrived: polls again soon, or sleeps until the socket is ready.
    fn once(&mut self, socket: &TcpStream, writes: bool) -> io::Result<()> {
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + self.spin);
        if now < until || self.taken_by.is_some_and(|taken_by| now < taken_by) {
            std::hint::spin_loop();
            return Ok(());
        }
        let flags = if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        match poll(&mut [PollFd::new(socket, flags)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::verbs::AccessPattern;
    use super::*;

    #[test]
    fn every_request_has_its_reply_one_by_one_and_many_at_a_time() {
        for verb in [Verb::Read, Verb::Write, Verb::CompareSwap, Verb::Send] {
            for bytes in [8, 1000, 1 << 20] {
                let case = VerbCase { verb, bytes, pattern: AccessPattern::Warm };
                for spin in [Duration::ZERO, Duration::from_micros(40)] {
                    let mut echo = EchoFloor::start(&case, spin, &PinnedCaller::pin()).expect("ports are free");
                    let mut samples = Vec::new();
                    echo.one_by_one(3, &mut samples).expect("it answers");
                    assert_eq!(samples.len(), 3);
                    echo.many(2 * case.depth() + 1).expect("it answers");
                }
            }
        }
    }
}
