//! Planted mistakes: hosts and connections give false answers to the code under test, so that it behaves as if it had
//! the mistake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use base::rt;
use base::{Bytes, BytesMut};
use rma::sim::SimProvider;
use rma::{
    Capability, Completion, Connection, Credential, Endpoint, Error, Host, HostConfig, IncomingEvent, NodeId, Provider,
    ProviderProfile, RegionId, Rights,
};
use sift::GroupLayout;

/// The length by which a read of administrative words is recognised.
const ADMIN_READ: usize = 32;
/// The offset where the headers end, and the bytes of one header.
const HEADERS_BYTES: u64 = 128;
/// The headers, and the generation after them.
const HEADS_BYTES: u64 = HEADERS_BYTES + 8;
const HEADER: usize = 64;

/// A planted mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// A candidate counts an ambiguous compare-and-swap as won.
    AmbiguousIsWon,
    /// A memory node answers a fence without having revoked anything.
    NoRevocation,
    /// A coordinator counts posted verbs as completed, except at one node: it commits on a minority.
    MinorityCommits,
    /// A candidate stands for a term that exists already.
    TermReused,
    /// A coordinator believes in its lease for much too long.
    LongLease,
    /// A node that comes back with its memory is admitted without the writes that it lacks. (In a group that is not
    /// erasure-coded.)
    NotCopied,
    /// In an erasure-coded group, some shards do not reach a node when their block is applied: they keep the previous
    /// version.
    StaleShard,
    /// In an erasure-coded group, a node that comes back is admitted with shards that were not computed for it.
    NotReencoded,
}

/// The prefixes of the checkers' messages that may catch each lie.
pub const CAUGHT_BY: &[(Option<Lie>, &[&str])] = &[
    (Some(Lie::AmbiguousIsWon), &["term:"]),
    (Some(Lie::NoRevocation), &["lost:", "changed:", "linearizable:", "torn:", "direct:", "serving:"]),
    (Some(Lie::MinorityCommits), &["lost:", "changed:", "linearizable:", "direct:", "record:"]),
    (Some(Lie::TermReused), &["term:"]),
    // A deposed coordinator that still reports all memory nodes as complete makes the driver take more memories than
    // the group can spare.
    (Some(Lie::LongLease), &["serving:", "linearizable:", "report: p"]),
    (Some(Lie::NotCopied), &["linearizable:", "torn:"]),
    (Some(Lie::StaleShard), &["linearizable:", "torn:"]),
    (Some(Lie::NotReencoded), &["linearizable:", "torn:"]),
];

/// A host that may lie to its memory node.
pub struct LyingHost {
    pub inner: Arc<dyn Host>,
    pub lie: Option<Lie>,
    /// The delay that it adds to a fence.
    pub fence_takes: Duration,
}

#[async_trait]
impl Host for LyingHost {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    async fn register(&self, name: &str, bytes: u64) -> Result<RegionId, Error> {
        self.inner.register(name, bytes).await
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        self.inner.grant(region, rights, holder)
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        match self.lie {
            Some(Lie::NoRevocation) => Ok(()),
            _ => {
                rt::sleep(self.fence_takes).await;
                self.inner.revoke(capability).await
            }
        }
    }

    async fn deregister(&self, region: RegionId) -> Result<(), Error> {
        self.inner.deregister(region).await
    }

    async fn accept(&self) -> Result<Endpoint, Error> {
        self.inner.accept().await
    }

    fn address(&self) -> String {
        self.inner.address()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// The provider for CPU nodes, which may lie to them.
pub fn provider(inner: SimProvider, lie: Option<Lie>, layout: &GroupLayout) -> Arc<dyn Provider> {
    // After the head, the log and the unlogged region.
    let memory_at = 4096 + layout.log_bytes + layout.unlogged_bytes;
    let lie = lie.filter(|lie| match lie {
        Lie::AmbiguousIsWon | Lie::MinorityCommits | Lie::TermReused => true,
        Lie::StaleShard | Lie::NotReencoded => layout.is_erasure_coded(),
        Lie::NotCopied => !layout.is_erasure_coded(),
        Lie::NoRevocation | Lie::LongLease => false,
    });
    match lie {
        Some(lie) => Arc::new(LyingProvider { inner, lie, memory_at }),
        None => Arc::new(inner),
    }
}

struct LyingProvider {
    inner: SimProvider,
    lie: Lie,
    memory_at: u64,
}

#[async_trait]
impl Provider for LyingProvider {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let inner = self.inner.connect(address, credential).await?;
        let (lie, memory_at) = (self.lie, self.memory_at);
        let (headed, kept) = (AtomicBool::new(false), Arc::default());
        Ok(Endpoint::new(Arc::new(LyingConnection { inner, lie, memory_at, headed, kept })))
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        self.inner.host(address, options).await
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }
}

struct LyingConnection {
    inner: Endpoint,
    lie: Lie,
    memory_at: u64,
    /// A header was written: memory writes before it were those of a joining node.
    headed: AtomicBool,
    /// The node was found with a header.
    kept: Arc<AtomicBool>,
}

/// A completion whose outcome is changed.
fn changed<T: Send + Unpin + 'static>(
    completion: Completion<T>,
    change: impl FnOnce(Result<T, Error>) -> Result<T, Error> + Send + 'static,
) -> Completion<T> {
    let (completer, changed) = Completion::pending();
    rt::spawn(async move { completer.complete(change(completion.await)) });
    changed
}

impl Connection for LyingConnection {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> ProviderProfile {
        self.inner.profile()
    }

    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        let read = self.inner.read(capability, offset, length, into);
        if self.lie == Lie::NotCopied && (offset, length) == (0, HEADS_BYTES as usize) {
            let kept = Arc::clone(&self.kept);
            return changed(read, move |outcome| {
                let headers = outcome?;
                kept.store(headers.iter().any(|byte| *byte != 0), Ordering::Relaxed);
                Ok(headers)
            });
        }
        if self.lie != Lie::TermReused || length != ADMIN_READ {
            return read;
        }
        changed(read, |outcome| {
            let mut words = outcome?;
            let term = u64::from_le_bytes(words[..8].try_into().expect("eight bytes"));
            words[..8].copy_from_slice(&term.saturating_sub(1).to_le_bytes());
            Ok(words)
        })
    }

    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()> {
        assert!(immediate.is_none(), "no protocol here uses them");
        let is_memory = offset >= self.memory_at;
        let is_copy = is_memory && !self.headed.load(Ordering::Relaxed);
        match self.lie {
            Lie::StaleShard if is_memory && self.inner.node().0 == 1 && rt::random_below(16) == 0 => {
                return Completion::ready(Ok(()));
            }
            Lie::NotReencoded if is_copy => return Completion::ready(Ok(())),
            Lie::NotCopied if is_copy && self.kept.load(Ordering::Relaxed) => return Completion::ready(Ok(())),
            Lie::NotReencoded | Lie::NotCopied
                if offset < HEADERS_BYTES && parts.iter().map(Bytes::len).sum::<usize>() == HEADER =>
            {
                self.headed.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
        let written = self.inner.write(capability, offset, parts);
        match self.lie {
            Lie::MinorityCommits if self.inner.node().0 != 0 => Completion::ready(Ok(())),
            _ => written,
        }
    }

    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        match self.lie {
            Lie::AmbiguousIsWon => {
                let swap = self.inner.compare_swap(capability, offset, expected, new);
                changed(swap, move |outcome| match outcome {
                    Err(Error::Ambiguous(_)) => Ok(expected),
                    outcome => outcome,
                })
            }
            Lie::TermReused => {
                // The candidate was given the stored term minus one.
                let swap = self.inner.compare_swap(capability, offset, new, new);
                changed(swap, move |outcome| outcome.map(|stood| if stood == new { expected } else { stood }))
            }
            _ => self.inner.compare_swap(capability, offset, expected, new),
        }
    }

    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        self.inner.fetch_add(capability, offset, add)
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        self.inner.send(parts)
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        self.inner.poll_receive(cx)
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn close(&self) {
        self.inner.close();
    }
}
