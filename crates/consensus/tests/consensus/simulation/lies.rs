//! Planted mistakes: hosts and connections that lie to the code under test, which then does what a mistake of its own would
//! have made it do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use base::rt;
use base::{Bytes, BytesMut};
use consensus::Layout;
use rma::sim::SimFabric;
use rma::{
    Capability, Completion, Connection, Credential, Endpoint, Error, Fabric, Host, HostOptions, Incoming, NodeId,
    Profile, RegionId, Rights,
};

/// Bytes of a read that is one of administrative words.
const ADMIN_READ: usize = 32;
/// Where headers are, and bytes of one.
const HEADERS_BYTES: u64 = 128;
/// The headers, and the number of the making behind them.
const HEADS_BYTES: u64 = HEADERS_BYTES + 8;
const HEADER: usize = 64;

/// A planted mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// A candidate counts an ambiguous compare-swap as won.
    AmbiguousIsWon,
    /// A memory node answers a fence without having revoked anything.
    NoRevocation,
    /// A coordinator takes what it has posted for written, except at one node: it commits on a minority.
    MinorityCommits,
    /// A candidate stands for a term that is there already.
    TermReused,
    /// A coordinator believes in its lease for much too long.
    LongLease,
    /// A node that comes back with its memory is admitted without what it lacks. (In a group that is not coded.)
    NotCopied,
    /// In a coded group, some shares do not reach a node when their block is applied: they are of the version before.
    StaleShare,
    /// In a coded group, a node that comes back is admitted with shares that were not made for it.
    NotEncodedAnew,
}

/// How the messages of the checks begin that may catch it.
pub const CAUGHT_BY: &[(Option<Lie>, &[&str])] = &[
    (Some(Lie::AmbiguousIsWon), &["term:"]),
    (Some(Lie::NoRevocation), &["lost:", "changed:", "linearizable:", "torn:", "direct:", "serving:"]),
    (Some(Lie::MinorityCommits), &["lost:", "changed:", "linearizable:", "direct:", "record:"]),
    (Some(Lie::TermReused), &["term:"]),
    // One that serves no more, and says that all memory nodes are whole, has the driver take more memories than are spare.
    (Some(Lie::LongLease), &["serving:", "linearizable:", "report: p"]),
    (Some(Lie::NotCopied), &["linearizable:", "torn:"]),
    (Some(Lie::StaleShare), &["linearizable:", "torn:"]),
    (Some(Lie::NotEncodedAnew), &["linearizable:", "torn:"]),
];

/// A host that may lie to its memory node.
pub struct LyingHost {
    pub inner: Arc<dyn Host>,
    pub lie: Option<Lie>,
    /// How much longer it takes to be fenced.
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

/// The fabric of processors, which may lie to them.
pub fn fabric(inner: SimFabric, lie: Option<Lie>, layout: &Layout) -> Arc<dyn Fabric> {
    // Behind the head, the log and the direct area.
    let memory_at = 4096 + layout.log_bytes + layout.direct_bytes;
    let lie = lie.filter(|lie| match lie {
        Lie::AmbiguousIsWon | Lie::MinorityCommits | Lie::TermReused => true,
        Lie::StaleShare | Lie::NotEncodedAnew => layout.is_coded(),
        Lie::NotCopied => !layout.is_coded(),
        Lie::NoRevocation | Lie::LongLease => false,
    });
    match lie {
        Some(lie) => Arc::new(LyingFabric { inner, lie, memory_at }),
        None => Arc::new(inner),
    }
}

struct LyingFabric {
    inner: SimFabric,
    lie: Lie,
    memory_at: u64,
}

#[async_trait]
impl Fabric for LyingFabric {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let inner = self.inner.connect(address, credential).await?;
        let (lie, memory_at) = (self.lie, self.memory_at);
        let (headed, kept) = (AtomicBool::new(false), Arc::default());
        Ok(Endpoint::new(Arc::new(LyingConnection { inner, lie, memory_at, headed, kept })))
    }

    async fn host(&self, address: &str, options: HostOptions) -> Result<Arc<dyn Host>, Error> {
        self.inner.host(address, options).await
    }

    fn provider(&self) -> &'static str {
        self.inner.provider()
    }
}

struct LyingConnection {
    inner: Endpoint,
    lie: Lie,
    memory_at: u64,
    /// A header was written: what was written to memory before that was a node's that comes back.
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

    fn profile(&self) -> Profile {
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
            Lie::StaleShare if is_memory && self.inner.node().0 == 1 && rt::random_below(16) == 0 => {
                return Completion::ready(Ok(()));
            }
            Lie::NotEncodedAnew if is_copy => return Completion::ready(Ok(())),
            Lie::NotCopied if is_copy && self.kept.load(Ordering::Relaxed) => return Completion::ready(Ok(())),
            Lie::NotEncodedAnew | Lie::NotCopied
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
                // The candidate was told one less than what stands there.
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

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Error>> {
        self.inner.poll_receive(cx)
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn close(&self) {
        self.inner.close();
    }
}
