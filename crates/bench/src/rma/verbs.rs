//! Calls verbs, sequentially or with many in flight.

use std::time::Instant;

use base::{Bytes, BytesMut};
use rma::{Error, IncomingEvent};

use crate::rma::provider::{MeasuredConnection, ProviderKind};
use measurement::random::Random;

/// Verbs in flight, unless their bytes are many.
const DEPTH_MAX: usize = 64;
/// Bytes in flight.
const DEPTH_BYTES: usize = 4 << 20;
/// Offsets that verbs go to in turn.
const OFFSETS: usize = 4096;
/// The one offset that warm verbs go to.
const WARM_OFFSET: u64 = 4096;
/// Offsets are multiples of this: a cache line.
const LINE_BYTES: u64 = 64;

/// A verb.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    Read,
    Write,
    WriteWithImmediate,
    CompareSwap,
    FetchAdd,
    /// A message that its receiver takes; over a network, and its answer.
    Send,
}

/// The memory that it goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessPattern {
    /// One offset, which the caches hold.
    Warm,
    /// Offsets all over the region.
    Cold,
}

/// The case of one row.
#[derive(Clone, Debug)]
pub struct VerbCase {
    pub verb: Verb,
    pub bytes: usize,
    pub pattern: AccessPattern,
}

impl Verb {
    pub const ALL: [Verb; 6] =
        [Verb::Read, Verb::Write, Verb::WriteWithImmediate, Verb::CompareSwap, Verb::FetchAdd, Verb::Send];

    pub fn name(self) -> &'static str {
        match self {
            Verb::Read => "read",
            Verb::Write => "write",
            Verb::WriteWithImmediate => "write with immediate",
            Verb::CompareSwap => "compare-swap",
            Verb::FetchAdd => "fetch-add",
            Verb::Send => "send",
        }
    }

    pub fn is_atomic(self) -> bool {
        matches!(self, Verb::CompareSwap | Verb::FetchAdd)
    }
}

impl AccessPattern {
    pub fn name(self) -> &'static str {
        match self {
            AccessPattern::Warm => "warm",
            AccessPattern::Cold => "cold",
        }
    }
}

impl VerbCase {
    /// The number of verbs in flight in a batch of many.
    pub fn depth(&self) -> usize {
        (DEPTH_BYTES / self.bytes).clamp(1, DEPTH_MAX)
    }

    /// The offsets in a region that they go to, in turn.
    pub fn offsets(&self, region_bytes: u64, seed: u64) -> Vec<u64> {
        let mut random = Random::new(seed);
        let lines = (region_bytes - self.bytes as u64) / LINE_BYTES + 1;
        let mut place = || match self.pattern {
            AccessPattern::Warm => WARM_OFFSET,
            AccessPattern::Cold => random.below(lines) * LINE_BYTES,
        };
        (0..OFFSETS).map(|_| place()).collect()
    }
}

/// The caller of a verb of one case.
pub struct VerbCaller<'a> {
    link: &'a MeasuredConnection,
    verb: Verb,
    bytes: usize,
    depth: usize,
    offsets: Vec<u64>,
    next: usize,
    payload: [Bytes; 1],
    /// The buffers of reads, in turn.
    buffers: Vec<BytesMut>,
    /// The current word at the offset of atomic verbs.
    word: u64,
}

impl<'a> VerbCaller<'a> {
    pub async fn new(link: &'a MeasuredConnection, case: &VerbCase, places: Vec<u64>) -> Result<VerbCaller<'a>, Error> {
        let word = link.endpoint.fetch_add(&link.capability, places[0], 0).await?;
        Ok(VerbCaller {
            link,
            verb: case.verb,
            bytes: case.bytes,
            depth: case.depth(),
            offsets: places,
            next: 0,
            payload: [Bytes::from(vec![7; case.bytes])],
            buffers: (0..case.depth()).map(|_| BytesMut::with_capacity(case.bytes)).collect(),
            word,
        })
    }

    /// Calls `count` verbs one after the other, and records the nanoseconds of each.
    ///
    /// # Errors
    /// A verb fails, or its outcome is wrong.
    pub async fn one_by_one(&mut self, count: usize, samples: &mut Vec<u32>) -> Result<(), Error> {
        let mut last = Instant::now();
        for _ in 0..count {
            self.one().await?;
            let now = Instant::now();
            samples.push(u32::try_from((now - last).as_nanos()).unwrap_or(u32::MAX));
            last = now;
            if self.verb == Verb::WriteWithImmediate {
                // The verb completes before its notice is received; the receipt is the other side's time.
                notification(self.link.accepted.receive().await?)?;
                last = Instant::now();
            }
        }
        Ok(())
    }

    fn next_offset(&mut self) -> u64 {
        self.next = (self.next + 1) % OFFSETS;
        self.offsets[self.next]
    }

    #[inline]
    async fn one(&mut self) -> Result<(), Error> {
        let place = self.next_offset();
        let MeasuredConnection { endpoint, accepted, capability, .. } = self.link;
        match self.verb {
            Verb::Read => {
                let into = std::mem::take(&mut self.buffers[0]);
                self.buffers[0] = emptied(endpoint.read(capability, place, self.bytes, into).await?, self.bytes)?;
            }
            Verb::Write => endpoint.write(capability, place, &self.payload).await?,
            Verb::WriteWithImmediate => endpoint.write_with_immediate(capability, place, &self.payload, 1).await?,
            Verb::CompareSwap => {
                let found = endpoint.compare_swap(capability, place, self.word, self.word + 1).await?;
                self.count(found)?;
            }
            Verb::FetchAdd => {
                let found = endpoint.fetch_add(capability, place, 1).await?;
                self.count(found)?;
            }
            Verb::Send => {
                let sent = endpoint.send(&self.payload);
                let message = message(accepted.receive().await?, self.bytes)?;
                sent.await?;
                if self.link.provider != ProviderKind::Shm {
                    let sent = accepted.send(&[message]);
                    drop(self::message(endpoint.receive().await?, self.bytes)?);
                    sent.await?;
                }
            }
        }
        Ok(())
    }

    /// Calls `count` verbs, a batch in flight at a time.
    ///
    /// # Errors
    /// A verb fails, or its outcome is wrong.
    pub async fn many(&mut self, count: usize) -> Result<(), Error> {
        let mut left = count;
        while left > 0 {
            let batch = left.min(self.depth);
            self.batch(batch).await?;
            left -= batch;
        }
        Ok(())
    }

    async fn batch(&mut self, batch: usize) -> Result<(), Error> {
        let MeasuredConnection { endpoint, accepted, capability, .. } = self.link;
        match self.verb {
            Verb::Read => {
                let mut reads = Vec::with_capacity(batch);
                for index in 0..batch {
                    let (place, into) = (self.next_offset(), std::mem::take(&mut self.buffers[index]));
                    reads.push(endpoint.read(capability, place, self.bytes, into));
                }
                endpoint.flush();
                for (index, read) in reads.into_iter().enumerate() {
                    self.buffers[index] = emptied(read.await?, self.bytes)?;
                }
            }
            Verb::Write | Verb::WriteWithImmediate => {
                let immediate = self.verb == Verb::WriteWithImmediate;
                let mut writes = Vec::with_capacity(batch);
                for _ in 0..batch {
                    let place = self.next_offset();
                    writes.push(match immediate {
                        true => endpoint.write_with_immediate(capability, place, &self.payload, 1),
                        false => endpoint.write(capability, place, &self.payload),
                    });
                }
                endpoint.flush();
                for write in writes {
                    write.await?;
                    if immediate {
                        notification(accepted.receive().await?)?;
                    }
                }
            }
            Verb::CompareSwap | Verb::FetchAdd => {
                let mut words = Vec::with_capacity(batch);
                for index in 0..batch as u64 {
                    let (place, expected) = (self.next_offset(), self.word + index);
                    words.push(match self.verb {
                        Verb::CompareSwap => endpoint.compare_swap(capability, place, expected, expected + 1),
                        _ => endpoint.fetch_add(capability, place, 1),
                    });
                }
                endpoint.flush();
                for word in words {
                    let found = word.await?;
                    self.count(found)?;
                }
            }
            Verb::Send => {
                let sent: Vec<_> = (0..batch).map(|_| endpoint.send(&self.payload)).collect();
                let mut answered = Vec::with_capacity(batch);
                for _ in 0..batch {
                    let message = message(accepted.receive().await?, self.bytes)?;
                    if self.link.provider != ProviderKind::Shm {
                        answered.push(accepted.send(&[message]));
                    }
                }
                for _ in 0..answered.len() {
                    drop(message(endpoint.receive().await?, self.bytes)?);
                }
                for sent in sent.into_iter().chain(answered) {
                    sent.await?;
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, found: u64) -> Result<(), Error> {
        if found != self.word {
            return Err(Error::Malformed("an atomic verb found what nobody put there"));
        }
        self.word += 1;
        Ok(())
    }
}

fn emptied(mut buffer: BytesMut, bytes: usize) -> Result<BytesMut, Error> {
    if buffer.len() != bytes {
        return Err(Error::Malformed("a read of another length"));
    }
    buffer.clear();
    Ok(buffer)
}

fn message(incoming: IncomingEvent, bytes: usize) -> Result<Bytes, Error> {
    match incoming {
        IncomingEvent::Message(message) if message.len() == bytes => Ok(message),
        _ => Err(Error::Malformed("another message than was sent")),
    }
}

fn notification(incoming: IncomingEvent) -> Result<(), Error> {
    match incoming {
        IncomingEvent::Immediate { immediate: 1, .. } => Ok(()),
        _ => Err(Error::Malformed("another notice than was sent")),
    }
}
