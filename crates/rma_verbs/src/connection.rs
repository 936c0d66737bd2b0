//! One end of a connection: a queue pair with its sender and its receiver, and the progress thread that serves it.
//!
//! 1. A posting thread puts its verb into the intake queue, then tries to lock the connection's state. The thread that
//!    holds the lock hands all queued verbs to the adapter in one chain. So a single thread posts without delay, and
//!    when several threads post together, one of them posts for all.
//! 2. The progress thread polls for completions while the adapter has work. When none has arrived for [`SPIN`], or the
//!    adapter has no work, the thread sleeps until the adapter, a frame from the other end, or a thread of this end
//!    wakes it.
//! 3. An idle connection posts a zero-length write every second as a keepalive, so that both ends detect the loss of an
//!    unused connection.
//! 4. Any failure ends the connection as a whole: the queue pair is destroyed, posted verbs complete as ambiguous, and
//!    the registrations that the host made for this connection end.
//!
//! Invariant: a thread that unlocks the state checks the intake queue once more, so that no verb is left there.

pub mod verbs_connection;

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use base::rt::channel::{OneshotReceiver, OneshotSender, oneshot};
use rma::{CAPABILITY_BYTES, Capability, Error, GrantId, NodeId, RegionId};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::device::queue_pair::{QueuePair, WorkRequest};
use crate::device::{CompletionQueue, Device, POLL_MAX, ProtectionDomain, Registration, WorkCompletion};
use crate::host::HostRegions;
use crate::memory::{RECEIVE_COUNT, Staging};
use crate::receiver::Receiver;
use crate::sender::{SENDS_MAX, Sender};
use crate::transfer::Transfer;
use crate::wire::{self, Frame, PairAddress, Rejection, RemoteRegion};

/// How long the thread polls after the last completion while the adapter has work. A wake-up costs more than this.
const SPIN: Duration = Duration::from_micros(20);
/// Rounds of polling between two checks for the other end's frames.
const GLANCE_ROUNDS: u32 = 128;
/// Marks the id of a receive; the rest of the number is its slot.
const RECEIVE: u64 = 1 << 63;
/// How long a connection may be idle before a keepalive is posted.
const KEEPALIVE_PERIOD: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How long the rest of a frame may take to arrive. If it takes longer, the other end has stopped in the middle.
const FRAME_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that is not yet connected.
pub struct ConnectionDraft {
    domain: Arc<ProtectionDomain>,
    completions: Arc<CompletionQueue>,
    pair: QueuePair,
    staging: Staging,
}

impl ConnectionDraft {
    pub fn new(device: &Arc<Device>) -> io::Result<ConnectionDraft> {
        // Each connection has its own domain: a key that it learnt opens nothing for any other connection.
        let domain = ProtectionDomain::new(device)?;
        let completions = CompletionQueue::new(device, SENDS_MAX + RECEIVE_COUNT)?;
        let pair = QueuePair::new(&domain, &completions, SENDS_MAX as u32, RECEIVE_COUNT as u32)?;
        let staging = Staging::new(&domain)?;
        for slot in 0..RECEIVE_COUNT {
            // SAFETY: the slot lies in the staging memory, which is of the pair's domain, and is not touched before its work
            // has ended; the pair is destroyed before that memory (`ConnectionCore::tear_down`, and the order of fields here).
            unsafe { pair.post_receive(RECEIVE | slot as u64, staging.receive_local(slot)) }?;
        }
        Ok(ConnectionDraft { domain, completions, pair, staging })
    }

    pub fn address(&self) -> PairAddress {
        self.pair.address()
    }

    pub fn connect(&self, other: &PairAddress) -> io::Result<()> {
        self.pair.connect(other)
    }
}

/// The other end of the connection.
pub struct RemotePeer {
    pub node: NodeId,
    pub name: String,
    pub control: TcpStream,
}

struct PostQueue {
    transfers: Vec<Transfer>,
    closed: bool,
}

struct ConnectionState {
    /// `None` once the connection has been cut.
    pair: Option<QueuePair>,
    staging: Staging,
    sender: Sender,
    receiver: Receiver,
    chain: Vec<WorkRequest>,
    /// Frames to send before the state is released.
    say: Vec<Frame>,
    failed: Option<&'static str>,
}

/// The regions of this host that the other end can reach.
#[derive(Default)]
struct ExposedRegion {
    regions: Vec<Exposure>,
    /// Revocations that wait until the other end has released a region.
    draining: Vec<(u32, OneshotSender<()>)>,
    next_request: u32,
}

struct Exposure {
    region: RegionId,
    grant: GrantId,
    generation: u64,
    remote: RemoteRegion,
    registration: Registration,
}

/// State that the thread and the endpoint share.
pub struct ConnectionCore {
    /// Unique among the connections of one host.
    number: u64,
    peer: RemotePeer,
    intake: Mutex<PostQueue>,
    state: Mutex<ConnectionState>,
    exposed: Mutex<ExposedRegion>,
    /// Held while a frame is sent.
    saying: Mutex<()>,
    domain: Arc<ProtectionDomain>,
    completions: Arc<CompletionQueue>,
    wake: OwnedFd,
    stop: AtomicBool,
    posted: Arc<AtomicUsize>,
    /// `None` at the client, which has no regions to offer here.
    regions: Option<Arc<HostRegions>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panics with the lock leaves at worst verbs that never complete; their completers are dropped with the
    // connection.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConnectionCore {
    /// Creates the shared state of a connected draft.
    pub fn start(
        draft: ConnectionDraft,
        number: u64,
        peer: RemotePeer,
        regions: Option<Arc<HostRegions>>,
    ) -> io::Result<Arc<ConnectionCore>> {
        peer.control.set_read_timeout(Some(FRAME_TIMEOUT))?;
        peer.control.set_write_timeout(Some(FRAME_TIMEOUT))?;
        let ConnectionDraft { domain, completions, pair, staging } = draft;
        let posted = Arc::new(AtomicUsize::new(0));
        let state = ConnectionState {
            pair: Some(pair),
            staging,
            sender: Sender::new(Arc::clone(&posted)),
            receiver: Receiver::default(),
            chain: Vec::with_capacity(SENDS_MAX),
            say: Vec::new(),
            failed: None,
        };
        let shared = Arc::new(ConnectionCore {
            number,
            peer,
            intake: Mutex::new(PostQueue { transfers: Vec::new(), closed: false }),
            state: Mutex::new(state),
            exposed: Mutex::default(),
            saying: Mutex::new(()),
            domain,
            completions,
            wake: rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            stop: AtomicBool::new(false),
            posted,
            regions,
        });
        Ok(shared)
    }

    /// Runs the progress thread. Separate from [`ConnectionCore::start`], so that a host can list the connection before it can
    /// end.
    pub fn run(shared: &Arc<ConnectionCore>) -> io::Result<()> {
        let mine = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("rma-verbs".to_owned());
        // Only the provider starts this thread, and only in production; no simulation comes here.
        #[allow(clippy::disallowed_methods)]
        thread.spawn(move || {
            // A defect of this code ends this connection, and its callers still get an answer.
            let reason = catch_unwind(AssertUnwindSafe(|| mine.progress()));
            mine.tear_down(reason.unwrap_or("the progress thread panicked"));
        })?;
        Ok(())
    }

    pub fn node(&self) -> NodeId {
        self.peer.node
    }

    /// Asks the thread to end the connection.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake_thread();
    }

    fn wake_thread(&self) {
        // The write fails only on a full counter, and that wakes the thread too.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Queues a verb for the adapter.
    fn post(&self, transfer: Transfer) {
        {
            let mut intake = lock(&self.intake);
            if intake.closed || self.stop.load(Ordering::Acquire) {
                drop(intake);
                self.posted.fetch_sub(1, Ordering::Relaxed);
                return transfer.complete(Err(Error::Closed));
            }
            intake.transfers.push(transfer);
        }
        self.settle();
    }

    /// Hands the intake to the adapter, unless another thread holds the state and so will do it.
    fn settle(&self) {
        while !lock(&self.intake).transfers.is_empty() {
            match self.state.try_lock() {
                Ok(mut state) => self.pump(&mut state),
                Err(TryLockError::Poisoned(poisoned)) => self.pump(&mut poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => return,
            }
        }
    }

    /// Acts on the state, then posts the work that follows from it.
    fn with<R>(&self, act: impl FnOnce(&mut ConnectionState) -> R) -> R {
        let result = {
            let mut state = lock(&self.state);
            let result = act(&mut state);
            self.pump(&mut state);
            result
        };
        self.settle();
        result
    }

    /// Posts all work that can be posted, in one chain.
    fn pump(&self, state: &mut ConnectionState) {
        for transfer in std::mem::take(&mut lock(&self.intake).transfers) {
            state.sender.accept(transfer);
        }
        let ConnectionState { pair: Some(pair), staging, sender, receiver, chain, say, failed } = state else { return };
        sender.issue(staging, chain, say);
        // SAFETY: every piece is in a slot of the staging memory, which is of the pair's domain; a piece in flight owns its
        // slot, and the pair is destroyed before that memory.
        let mut posted = unsafe { pair.post(chain) };
        chain.clear();
        while let Some(slot) = receiver.next_owed() {
            // SAFETY: as above; an owed slot has been read.
            posted = posted.and(unsafe { pair.post_receive(RECEIVE | slot as u64, staging.receive_local(slot)) });
        }
        if posted.is_err() {
            *failed = Some("the adapter rejected a work request");
        }
        for frame in std::mem::take(say) {
            if self.say(&frame).is_err() {
                *failed = Some("the other end closed the connection");
            }
        }
        if failed.is_some() {
            self.wake_thread();
        }
    }

    fn say(&self, frame: &Frame) -> io::Result<()> {
        let _saying = lock(&self.saying);
        wire::send(&self.peer.control, frame)
    }

    /// Serves the connection until it ends, and returns the reason.
    fn progress(&self) -> &'static str {
        let mut ended = Vec::with_capacity(POLL_MAX);
        let mut last = now();
        let mut rounds = 0;
        loop {
            let outcome = self.collect(&mut ended).and_then(|collected| {
                rounds += 1;
                match collected {
                    PollOutcome::Some => last = now(),
                    PollOutcome::Busy if last.elapsed() < SPIN => std::hint::spin_loop(),
                    _ => {
                        rounds = 0;
                        self.sleep(&mut ended)?;
                        last = now();
                    }
                }
                // An adapter that is always busy must not keep the other end's frames waiting.
                if rounds >= GLANCE_ROUNDS {
                    rounds = 0;
                    self.wait(Some(&Timespec::default()), &mut ended)?;
                }
                Ok(())
            });
            if let Err(reason) = outcome {
                return reason;
            }
        }
    }

    /// Handles the adapter's completions.
    fn collect(&self, ended: &mut Vec<WorkCompletion>) -> Result<PollOutcome, &'static str> {
        if self.stop.load(Ordering::Acquire) {
            return Err("the connection was closed");
        }
        ended.clear();
        if self.completions.poll(ended).is_err() {
            return Err("the adapter failed");
        }
        self.with(|state| {
            for ended in &*ended {
                state.ended(ended)?;
            }
            state.failed.map_or(Ok(()), Err)?;
            Ok(match (ended.is_empty(), state.sender.is_busy()) {
                (false, _) => PollOutcome::Some,
                (true, true) => PollOutcome::Busy,
                (true, false) => PollOutcome::Idle,
            })
        })
    }

    /// Sleeps until there is work.
    fn sleep(&self, ended: &mut Vec<WorkCompletion>) -> Result<(), &'static str> {
        self.completions.arm().map_err(|_| "the adapter failed")?;
        // A completion between the last poll and the arming makes no event.
        match self.collect(ended)? {
            PollOutcome::Some => Ok(()),
            PollOutcome::Busy | PollOutcome::Idle => self.wait(Some(&KEEPALIVE_PERIOD), ended),
        }
    }

    /// Waits for the adapter, a frame or a wake-up, and handles the frame.
    fn wait(&self, limit: Option<&Timespec>, ended: &mut Vec<WorkCompletion>) -> Result<(), &'static str> {
        let mut waiting = [
            PollFd::new(&*self.completions, PollFlags::IN),
            PollFd::new(&self.peer.control, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        match rustix::event::poll(&mut waiting, limit) {
            Ok(0) if limit == Some(&KEEPALIVE_PERIOD) => self.with(|state| state.sender.beat(&mut state.chain)),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err("polling the connection failed"),
        }
        let [adapter, control, wake] = waiting.map(|one| !one.revents().is_empty());
        if adapter {
            self.completions.take_events();
        }
        if wake {
            // Nothing to read: two wake-ups came, and both are handled.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        if !control {
            return Ok(());
        }
        match wire::receive(&self.peer.control) {
            Ok(frame) => self.hear(frame),
            Err(_) => {
                // Messages that arrived before the other end closed are still to be received.
                while let Ok(PollOutcome::Some) = self.collect(ended) {}
                Err("the other end closed the connection")
            }
        }
    }

    fn hear(&self, frame: Frame) -> Result<(), &'static str> {
        match frame {
            Frame::Open { request, capability } => self.open(request, &capability),
            Frame::Opened { request, remote } => self.with(|state| state.sender.answered(request, Ok(remote))),
            Frame::Rejected { request, rejection } => self.with(|state| state.sender.answered(request, Err(rejection))),
            Frame::Revoke { request, region, grant, generation } => {
                self.with(|state| state.sender.revoke(request, (region, grant, generation), &mut state.say));
                Ok(())
            }
            Frame::Drained { request } => {
                let mut exposed = lock(&self.exposed);
                let at = exposed.draining.iter().position(|(number, _)| *number == request);
                let (_, waiting) = exposed.draining.swap_remove(at.ok_or("an answer without a request")?);
                // The revocation may have stopped waiting.
                let _ = waiting.send(());
                Ok(())
            }
            _ => Err("a frame out of turn"),
        }
    }

    /// Registers a region for the other end, if the capability is valid. The thread does nothing else meanwhile: this happens
    /// once per capability and connection.
    fn open(&self, request: u32, capability: &[u8; CAPABILITY_BYTES]) -> Result<(), &'static str> {
        let said = match self.expose(request, capability) {
            Ok(said) => said,
            Err(rejection) => self.say(&Frame::Rejected { request, rejection }),
        };
        said.map_err(|_| "the other end closed the connection")
    }

    fn expose(&self, request: u32, capability: &[u8; CAPABILITY_BYTES]) -> Result<io::Result<()>, Rejection> {
        let regions = self.regions.as_ref().ok_or(Rejection::Unknown)?;
        let capability = Capability::decode(capability).map_err(|_| Rejection::Unknown)?;
        let (memory, access, rights) = regions.find(&capability, &self.peer.name)?;
        let (region, grant, generation) = (capability.region, capability.grant, capability.generation);
        {
            let exposed = lock(&self.exposed);
            let known = |one: &&Exposure| one.region == region && one.grant == grant && one.generation == generation;
            if let Some(exposure) = exposed.regions.iter().find(known) {
                return Ok(self.say(&Frame::Opened { request, remote: exposure.remote }));
            }
        }
        let registration = Registration::new(&self.domain, &memory, access).map_err(|_| Rejection::Exhausted)?;
        let (key, address, bytes) = (registration.remote_key(), registration.address(), memory.bytes() as u64);
        let remote = RemoteRegion { key, rights, address, bytes };
        // A revocation that started meanwhile did not see this registration, so the capability is checked again; one that
        // starts now waits for the lock, and so sends its frame after ours.
        let mut exposed = lock(&self.exposed);
        regions.find(&capability, &self.peer.name)?;
        exposed.regions.push(Exposure { region, grant, generation, remote, registration });
        Ok(self.say(&Frame::Opened { request, remote }))
    }

    /// First step of a revocation: asks the other end to release the region. `None` when it never had the key, or when the
    /// connection has ended; otherwise the receiver gets the answer, or learns that there will be none.
    pub fn ask_to_drain(&self, region: RegionId, grant: GrantId) -> Option<OneshotReceiver<()>> {
        let mut exposed = lock(&self.exposed);
        let exposure = exposed.regions.iter().find(|one| one.region == region && one.grant == grant)?;
        let generation = exposure.generation;
        let request = exposed.next_request;
        exposed.next_request = request.wrapping_add(1);
        let (sender, receiver) = oneshot();
        exposed.draining.push((request, sender));
        if self.say(&Frame::Revoke { request, region, grant, generation }).is_err() {
            self.stop();
        }
        Some(receiver)
    }

    /// Second step, if the other end did not answer: ends the connection. On return no verb of the other end takes effect here
    /// any more.
    pub fn cut(&self) {
        // Destroying the pair waits for the adapter.
        lock(&self.state).pair = None;
        self.stop();
    }

    /// Destroys the queue pair without telling either end.
    pub fn lose(&self) {
        lock(&self.state).pair = None;
    }

    /// Last step: deregisters the region.
    ///
    /// # Errors
    /// When the adapter refuses; it may still execute verbs under the key.
    pub fn withdraw(&self, region: RegionId, grant: GrantId) -> io::Result<()> {
        let mut exposed = lock(&self.exposed);
        let at = exposed.regions.iter().position(|one| one.region == region && one.grant == grant);
        at.map_or(Ok(()), |at| exposed.regions.swap_remove(at).registration.end())
    }

    fn tear_down(&self, reason: &'static str) {
        self.stop.store(true, Ordering::Release);
        // The other end learns of the end at once, not by a time-out of its adapter. It may have learnt it already.
        let _ = self.peer.control.shutdown(Shutdown::Both);
        let left = {
            let mut intake = lock(&self.intake);
            intake.closed = true;
            std::mem::take(&mut intake.transfers)
        };
        {
            let mut state = lock(&self.state);
            state.pair = None;
            left.into_iter().for_each(|transfer| state.sender.accept(transfer));
            state.sender.give_up(reason);
            state.receiver.end();
        }
        {
            // Under the lock, so that a revocation that finds no exposure has none to wait for.
            let mut exposed = lock(&self.exposed);
            *exposed = ExposedRegion::default();
        }
        if let Some(regions) = &self.regions {
            regions.forget(self.number);
        }
    }
}

enum PollOutcome {
    /// Work had completed.
    Some,
    /// Nothing has completed yet, and the adapter has work.
    Busy,
    Idle,
}

/// The thread's clock is the machine's: it only decides how long to poll.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

impl ConnectionState {
    fn ended(&mut self, ended: &WorkCompletion) -> Result<(), &'static str> {
        if ended.id & RECEIVE == 0 {
            return self.sender.ended(ended, &mut self.staging, &mut self.say);
        }
        ended.outcome.map_err(|error| error.text())?;
        let slot = usize::try_from(ended.id & !RECEIVE).expect("slots are few");
        self.receiver.arrived(slot, self.staging.received(slot, ended.bytes as usize))
    }
}
