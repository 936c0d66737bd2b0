//! One side of a connection: a queue pair with what goes out and what comes in, and the progress thread that serves it.
//!
//! 1. A verb is put into the intake, and whoever gets hold of the state takes all that is there to the adapter: one
//!    thread alone posts at once, and of many the one that is there posts for all in one chain.
//! 2. The thread polls for what has ended, for [`SPIN`] after the last that did, and then sleeps until the adapter, the
//!    other side's frames or somebody of this side wakes it.
//! 3. An idle connection writes nothing to nowhere once a second, so that both sides learn of the loss of one that nobody
//!    uses.
//! 4. Whatever breaks ends the connection as a whole: the queue pair is destroyed, what was posted is ambiguous, and the
//!    regions of this host that it could reach are taken from the adapter.
//!
//! Invariant: who lets go of the state looks at the intake once more, so that no verb is left there.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use base::rt::channel::{OneshotReceiver, OneshotSender, oneshot};
use base::{Bytes, BytesMut};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use super::PROFILE;
use super::device::{CompletionQueue, Device, Domain, Ended, POLL_MAX, QueuePair, Registration, Work};
use super::host::Regions;
use super::memory::{RECEIVE_COUNT, Staging};
use super::receiver::Receiver;
use super::sender::{Data, SENDS_MAX, Sender, Target, Transfer, Verb};
use super::wire::{self, Frame, PairAddress, Refusal, RemoteRegion};
use crate::{
    CAPABILITY_BYTES, Capability, Completion, Connection, Error, GrantId, IN_FLIGHT_MAX, Incoming, MESSAGE_BYTES_MAX,
    NodeId, PARTS_MAX, Profile, RegionId, TRANSFER_BYTES_MAX, WORD_BYTES,
};

/// How long the thread polls after the last completion while the adapter has work. A wake-up costs more than this.
const SPIN: Duration = Duration::from_micros(20);
/// Rounds of polling between two looks at the other side's frames.
const GLANCE_ROUNDS: u32 = 128;
/// Marks the work that receives; the rest of the number is its slot.
const RECEIVE: u64 = 1 << 63;
/// How long a connection may rest before the adapter is made to see whether the other side is still there.
const BEAT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How long a frame that has begun may take. Longer, and the other side has stopped in the middle.
const FRAME_TIME: Duration = Duration::from_secs(2);

/// A connection that is not yet connected.
pub struct Draft {
    domain: Arc<Domain>,
    completions: Arc<CompletionQueue>,
    pair: QueuePair,
    staging: Staging,
}

impl Draft {
    pub fn new(device: &Arc<Device>) -> io::Result<Draft> {
        // Each connection has a domain of its own: a key that it learnt opens nothing for any other.
        let domain = Domain::new(device)?;
        let completions = CompletionQueue::new(device, SENDS_MAX + RECEIVE_COUNT)?;
        let pair = QueuePair::new(&domain, &completions, SENDS_MAX as u32, RECEIVE_COUNT as u32)?;
        let staging = Staging::new(&domain)?;
        for slot in 0..RECEIVE_COUNT {
            // SAFETY: the slot lies in the staging area, which is of the pair's domain, and is not touched before its work
            // has ended; the pair is destroyed before the area (`Shared::tear_down`, and the order of fields here).
            unsafe { pair.post_receive(RECEIVE | slot as u64, staging.receive_local(slot)) }?;
        }
        Ok(Draft { domain, completions, pair, staging })
    }

    pub fn address(&self) -> PairAddress {
        self.pair.address()
    }

    pub fn connect(&self, other: &PairAddress) -> io::Result<()> {
        self.pair.connect(other)
    }
}

/// Who is at the other end.
pub struct Peer {
    pub node: NodeId,
    pub name: String,
    pub control: TcpStream,
}

struct Intake {
    transfers: Vec<Transfer>,
    closed: bool,
}

struct State {
    /// None once the connection has been cut.
    pair: Option<QueuePair>,
    staging: Staging,
    sender: Sender,
    receiver: Receiver,
    chain: Vec<Work>,
    /// Frames to be sent before the state is let go of.
    say: Vec<Frame>,
    failed: Option<&'static str>,
}

/// The regions of this host that the other side can reach.
#[derive(Default)]
struct Exposed {
    regions: Vec<Exposure>,
    /// Who waits for the other side to let go of one.
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

/// What the thread and the endpoint share.
pub struct Shared {
    /// Unique among the connections of one host.
    number: u64,
    peer: Peer,
    intake: Mutex<Intake>,
    state: Mutex<State>,
    exposed: Mutex<Exposed>,
    /// Held while a frame is sent.
    saying: Mutex<()>,
    domain: Arc<Domain>,
    completions: Arc<CompletionQueue>,
    wake: OwnedFd,
    stop: AtomicBool,
    posted: Arc<AtomicUsize>,
    /// None on the side that connected, which has no regions to offer here.
    regions: Option<Arc<Regions>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whoever panics with it leaves at worst verbs that never complete; their completers are dropped with the connection.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Starts the thread of a connected draft.
    pub fn start(draft: Draft, number: u64, peer: Peer, regions: Option<Arc<Regions>>) -> io::Result<Arc<Shared>> {
        peer.control.set_read_timeout(Some(FRAME_TIME))?;
        peer.control.set_write_timeout(Some(FRAME_TIME))?;
        let Draft { domain, completions, pair, staging } = draft;
        let posted = Arc::new(AtomicUsize::new(0));
        let state = State {
            pair: Some(pair),
            staging,
            sender: Sender::new(Arc::clone(&posted)),
            receiver: Receiver::default(),
            chain: Vec::with_capacity(SENDS_MAX),
            say: Vec::new(),
            failed: None,
        };
        let shared = Arc::new(Shared {
            number,
            peer,
            intake: Mutex::new(Intake { transfers: Vec::new(), closed: false }),
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

    /// Runs the progress thread. Apart from [`Shared::start`], so that a host can list the connection before it can end.
    pub fn run(shared: &Arc<Shared>) -> io::Result<()> {
        let mine = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("rma-verbs".to_owned());
        // The thread is the provider's own and of production only; no simulation comes here.
        #[allow(clippy::disallowed_methods)]
        thread.spawn(move || {
            // A defect of ours ends this connection, not its callers' hope of an answer.
            let reason = catch_unwind(AssertUnwindSafe(|| mine.progress()));
            mine.tear_down(reason.unwrap_or("the provider has a defect"));
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
        // Only a full counter refuses, and that wakes the thread too.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Puts a verb on its way.
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

    /// Takes the intake to the adapter, unless somebody else has the state and so will.
    fn settle(&self) {
        while !lock(&self.intake).transfers.is_empty() {
            match self.state.try_lock() {
                Ok(mut state) => self.pump(&mut state),
                Err(TryLockError::Poisoned(poisoned)) => self.pump(&mut poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => return,
            }
        }
    }

    /// Does something with the state, and whatever follows from it.
    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let result = {
            let mut state = lock(&self.state);
            let result = act(&mut state);
            self.pump(&mut state);
            result
        };
        self.settle();
        result
    }

    /// Gives the adapter all that can be given, in one chain.
    fn pump(&self, state: &mut State) {
        for transfer in std::mem::take(&mut lock(&self.intake).transfers) {
            state.sender.accept(transfer);
        }
        let State { pair: Some(pair), staging, sender, receiver, chain, say, failed } = state else { return };
        sender.issue(staging, chain, say);
        // SAFETY: every piece is in a slot of the staging area, which is of the pair's domain; a piece in flight owns its
        // slot, and the pair is destroyed before the area.
        let mut posted = unsafe { pair.post(chain) };
        chain.clear();
        while let Some(slot) = receiver.next_owed() {
            // SAFETY: as above; an owed slot has been read.
            posted = posted.and(unsafe { pair.post_receive(RECEIVE | slot as u64, staging.receive_local(slot)) });
        }
        if posted.is_err() {
            *failed = Some("the adapter refuses work");
        }
        for frame in std::mem::take(say) {
            if self.say(&frame).is_err() {
                *failed = Some("the other side has gone");
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

    /// Serves the connection until it ends, and says why it did.
    fn progress(&self) -> &'static str {
        let mut ended = Vec::with_capacity(POLL_MAX);
        let mut last = now();
        let mut rounds = 0;
        loop {
            let outcome = self.collect(&mut ended).and_then(|collected| {
                rounds += 1;
                match collected {
                    Collected::Some => last = now(),
                    Collected::Busy if last.elapsed() < SPIN => std::hint::spin_loop(),
                    _ => {
                        rounds = 0;
                        self.sleep(&mut ended)?;
                        last = now();
                    }
                }
                // An adapter that never rests must not keep the other side's frames waiting.
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

    /// Takes what has ended from the adapter.
    fn collect(&self, ended: &mut Vec<Ended>) -> Result<Collected, &'static str> {
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
                (false, _) => Collected::Some,
                (true, true) => Collected::Busy,
                (true, false) => Collected::Idle,
            })
        })
    }

    /// Sleeps until there is something to do.
    fn sleep(&self, ended: &mut Vec<Ended>) -> Result<(), &'static str> {
        self.completions.arm().map_err(|_| "the adapter failed")?;
        // What ended between the last poll and the arming makes no event.
        match self.collect(ended)? {
            Collected::Some => Ok(()),
            Collected::Busy | Collected::Idle => self.wait(Some(&BEAT), ended),
        }
    }

    /// Waits for the adapter, a frame or a wake-up, and hears the frame.
    fn wait(&self, limit: Option<&Timespec>, ended: &mut Vec<Ended>) -> Result<(), &'static str> {
        let mut waiting = [
            PollFd::new(&*self.completions, PollFlags::IN),
            PollFd::new(&self.peer.control, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        match rustix::event::poll(&mut waiting, limit) {
            Ok(0) if limit == Some(&BEAT) => self.with(|state| state.sender.beat(&mut state.chain)),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err("the connection cannot be waited for"),
        }
        let [adapter, control, wake] = waiting.map(|one| !one.revents().is_empty());
        if adapter {
            self.completions.take_events();
        }
        if wake {
            // Nothing to read means that somebody woke us twice and we have heard it.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        if !control {
            return Ok(());
        }
        match wire::receive(&self.peer.control) {
            Ok(frame) => self.hear(frame),
            Err(_) => {
                // What arrived before the other side went is still to be received.
                while let Ok(Collected::Some) = self.collect(ended) {}
                Err("the other side has gone")
            }
        }
    }

    fn hear(&self, frame: Frame) -> Result<(), &'static str> {
        match frame {
            Frame::Open { request, capability } => self.open(request, &capability),
            Frame::Opened { request, remote } => self.with(|state| state.sender.answered(request, Ok(remote))),
            Frame::Refused { request, refusal } => self.with(|state| state.sender.answered(request, Err(refusal))),
            Frame::Revoke { request, region, grant, generation } => {
                self.with(|state| state.sender.revoke(request, (region, grant, generation), &mut state.say));
                Ok(())
            }
            Frame::Drained { request } => {
                let mut exposed = lock(&self.exposed);
                let at = exposed.draining.iter().position(|(number, _)| *number == request);
                let (_, waiting) = exposed.draining.swap_remove(at.ok_or("an answer to what nobody asked")?);
                // Who asked may have stopped waiting.
                let _ = waiting.send(());
                Ok(())
            }
            _ => Err("a frame that may not come now"),
        }
    }

    /// Registers a region for the other side, if the capability is good. The thread does nothing else meanwhile: this
    /// happens once a capability and connection.
    fn open(&self, request: u32, capability: &[u8; CAPABILITY_BYTES]) -> Result<(), &'static str> {
        let said = match self.expose(request, capability) {
            Ok(said) => said,
            Err(refusal) => self.say(&Frame::Refused { request, refusal }),
        };
        said.map_err(|_| "the other side has gone")
    }

    fn expose(&self, request: u32, capability: &[u8; CAPABILITY_BYTES]) -> Result<io::Result<()>, Refusal> {
        let regions = self.regions.as_ref().ok_or(Refusal::Unknown)?;
        let capability = Capability::decode(capability).map_err(|_| Refusal::Unknown)?;
        let (memory, access, rights) = regions.find(&capability, &self.peer.name)?;
        let (region, grant, generation) = (capability.region, capability.grant, capability.generation);
        {
            let exposed = lock(&self.exposed);
            let known = |one: &&Exposure| one.region == region && one.grant == grant && one.generation == generation;
            if let Some(exposure) = exposed.regions.iter().find(known) {
                return Ok(self.say(&Frame::Opened { request, remote: exposure.remote }));
            }
        }
        let registration = Registration::new(&self.domain, &memory, access).map_err(|_| Refusal::Exhausted)?;
        let (key, address, bytes) = (registration.remote_key(), registration.address(), memory.bytes() as u64);
        let remote = RemoteRegion { key, rights, address, bytes };
        // A revocation that has begun meanwhile did not see this registration; one that begins now waits for the lock,
        // and so speaks after us.
        let mut exposed = lock(&self.exposed);
        regions.find(&capability, &self.peer.name)?;
        exposed.regions.push(Exposure { region, grant, generation, remote, registration });
        Ok(self.say(&Frame::Opened { request, remote }))
    }

    /// First step of a revocation: asks the other side to let go. None when it never had the key, or the connection has
    /// ended; else the answer, or the news that there will be none.
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

    /// Second step, where the other side did not answer: ends the connection. On return nothing of the other side's verbs
    /// takes effect here any more.
    pub fn cut(&self) {
        // Destroying the pair waits for the adapter.
        lock(&self.state).pair = None;
        self.stop();
    }

    /// Destroys the queue pair and tells nobody.
    pub fn lose(&self) {
        lock(&self.state).pair = None;
    }

    /// Last step: takes the region from the adapter.
    ///
    /// # Errors
    /// When the adapter refuses; it may still do verbs under the key.
    pub fn withdraw(&self, region: RegionId, grant: GrantId) -> io::Result<()> {
        let mut exposed = lock(&self.exposed);
        let at = exposed.regions.iter().position(|one| one.region == region && one.grant == grant);
        at.map_or(Ok(()), |at| exposed.regions.swap_remove(at).registration.end())
    }

    fn tear_down(&self, reason: &'static str) {
        self.stop.store(true, Ordering::Release);
        // The other side learns of it at once and not by a timeout of its adapter. It may have learnt already.
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
            // Under the lock, so that a revocation which finds none has none to wait for.
            let mut exposed = lock(&self.exposed);
            *exposed = Exposed::default();
        }
        if let Some(regions) = &self.regions {
            regions.forget(self.number);
        }
    }
}

enum Collected {
    /// Something had ended.
    Some,
    /// Nothing yet, and the adapter has work.
    Busy,
    Idle,
}

/// The thread's clock is the machine's: it only decides how long to poll.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}

impl State {
    fn ended(&mut self, ended: &Ended) -> Result<(), &'static str> {
        if ended.id & RECEIVE == 0 {
            return self.sender.ended(ended, &mut self.staging, &mut self.say);
        }
        ended.outcome.map_err(|error| error.text())?;
        let slot = usize::try_from(ended.id & !RECEIVE).expect("slots are few");
        self.receiver.arrived(slot, self.staging.received(slot, ended.bytes as usize))
    }
}

/// What an endpoint holds: dropping it ends the connection.
pub struct Link(Arc<Shared>);

impl Link {
    pub fn new(shared: Arc<Shared>) -> Link {
        Link(shared)
    }

    /// Posts a verb that may be posted at all.
    fn post<T>(
        &self,
        target: Option<Target>,
        refused: Result<(), Error>,
        verb: impl FnOnce(crate::Completer<T>) -> Verb,
    ) -> Completion<T> {
        if let Err(error) = refused {
            return Completion::ready(Err(error));
        }
        if self.0.posted.fetch_add(1, Ordering::Relaxed) >= IN_FLIGHT_MAX {
            self.0.posted.fetch_sub(1, Ordering::Relaxed);
            return Completion::ready(Err(Error::Busy));
        }
        let (completer, completion) = Completion::pending();
        self.0.post(Transfer::new(verb(completer), target));
        completion
    }
}

fn fits(parts: &[Bytes], bytes_max: usize) -> Result<(), Error> {
    let bytes: usize = parts.iter().map(Bytes::len).sum();
    match (bytes > bytes_max, parts.len() > PARTS_MAX) {
        (true, _) => Err(Error::TooLarge(bytes)),
        (_, true) => Err(Error::TooLarge(parts.len())),
        _ => Ok(()),
    }
}

fn aligned(offset: u64) -> Result<(), Error> {
    if offset.is_multiple_of(WORD_BYTES as u64) { Ok(()) } else { Err(Error::Misaligned(offset)) }
}

fn at(capability: &Capability, offset: u64) -> Option<Target> {
    Some(Target { capability: *capability, offset })
}

impl Connection for Link {
    fn node(&self) -> NodeId {
        self.0.peer.node
    }

    fn name(&self) -> &str {
        &self.0.peer.name
    }

    fn profile(&self) -> Profile {
        PROFILE
    }

    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        let refused = if length > TRANSFER_BYTES_MAX { Err(Error::TooLarge(length)) } else { Ok(()) };
        self.post(at(capability, offset), refused, |completer| Verb::Read { into, length, completer })
    }

    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()> {
        self.post(at(capability, offset), fits(parts, TRANSFER_BYTES_MAX), |completer| Verb::Write {
            data: Data::new(parts),
            immediate,
            completer,
        })
    }

    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        self.post(at(capability, offset), aligned(offset), |completer| Verb::CompareSwap { expected, new, completer })
    }

    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        self.post(at(capability, offset), aligned(offset), |completer| Verb::FetchAdd { add, completer })
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        self.post(None, fits(parts, MESSAGE_BYTES_MAX), |completer| Verb::Send { data: Data::new(parts), completer })
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<Incoming, Error>> {
        self.0.with(|state| state.receiver.poll(cx))
    }

    fn flush(&self) {
        self.0.settle();
    }

    fn close(&self) {
        self.0.stop();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.0.stop();
    }
}
