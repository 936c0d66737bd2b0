//! Connections between processes: the handshake, and what happens on the socket afterwards.
//!
//! 1. The host takes a pidfd of the process that connected, then greets it with a nonce. The answer proves that this
//!    process still lived when the pidfd was taken, so that the pidfd is of no later process with the same number.
//! 2. The caller says its name and token and the nonce. The host makes the area and the bells, enters the connection in its
//!    table, and hands the descriptors over.
//! 3. The caller asks for capabilities that its process has not used yet, one at a time; the host answers with the
//!    region's descriptor. The host says when a region has gone, so that it is unmapped.
//! 4. Whoever ends first shuts its sending direction; the other then ends too and closes.
//!
//! Invariants:
//! * A panic in a task of one connection ends that connection; one in the task that accepts them ends the host, which then says
//!   so ([`crate::Host::failed`]).
//! * A caller's socket closes only after its side has ended ([`Link`]): no mark is put after the host has seen the end. Until
//!   then, or until the process has ended, a revocation looks at the caller's marks, whatever the host's side does.
//! * Connections of one process to one life of a host share the view, so that a region is mapped once.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use base::rt;
use base::rt::sync::{Notify, Semaphore};
use rustix::event::EventfdFlags;
use rustix::process::PidfdFlags;

use super::area::{Area, Direction, VERSION};
use super::connection::{Accepted, Caller};
use super::host::{Inner, Peer, Process};
use super::memory::{Access, Mapping};
use super::message::{LIFE_BYTES, Message};
use super::side::{Bell, Side};
use super::socket::{Listener, Socket, watch};
use super::view::{Holder, REGIONS_MAX, Region, View};
use super::waiting::Waiting;
use crate::{Capability, Credential, Endpoint, Error, RegionId, Rights};

/// A handshake takes no longer, or is given up.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Handshakes at once; more wait.
const HANDSHAKES_MAX: usize = 16;
/// Attempts to have one capability confirmed before its verb is refused.
const CONFIRMATIONS_MAX: usize = 4;
/// Pause after a connection that could not be accepted, for want of descriptors say.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

type Life = [u8; LIFE_BYTES];

/// The views of this process, by the life of their host.
static VIEWS: Mutex<BTreeMap<Life, Weak<View>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The caller's socket. Its side ends before it closes.
struct Link {
    side: Arc<Side>,
    waiting: Arc<Waiting>,
    socket: Socket,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.side.end();
        self.waiting.close();
    }
}

/// Ends one end of a connection when a task of its panics.
pub(super) struct EndsSide(pub(super) Arc<Side>);

impl Drop for EndsSide {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

/// Ends a host when the task that accepts its connections panics.
pub(super) struct EndsHost(pub(super) Weak<Inner>);

impl Drop for EndsHost {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(host) = self.0.upgrade()
        {
            host.fail("the task that accepts connections panicked".to_owned());
        }
    }
}

fn bell() -> Result<OwnedFd, Error> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::system("make an eventfd", &errno.into()))
}

/// Passes on what rings a bell, until the side ends.
fn listen(bell: OwnedFd, side: &Arc<Side>) -> Result<(), Error> {
    let bell = watch(bell)?;
    let side = Arc::clone(side);
    let _runs_until_the_end = rt::spawn(async move {
        let _guard = EndsSide(Arc::clone(&side));
        let ended = side.ended.clone();
        let listening = async {
            let mut count = [0; 8];
            let read = |bell: &OwnedFd| Ok(rustix::io::read(bell, &mut count)?);
            let mut read = read;
            while bell.async_io(tokio::io::Interest::READABLE, &mut read).await.is_ok() {
                side.rung();
            }
        };
        let _ended: Option<()> = ended.or_stopped(listening).await;
    });
    Ok(())
}

/// Connects to the host at a path.
pub(super) async fn connect(path: &Path, credential: &Credential) -> Result<Endpoint, Error> {
    let address = path.display().to_string();
    match rt::timeout(HANDSHAKE_WITHIN, greet(path, credential)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Unreachable { address, reason: "the host does not answer".to_owned() }),
    }
}

async fn greet(path: &Path, credential: &Credential) -> Result<Endpoint, Error> {
    let address = path.display().to_string();
    let hung_up = || Error::Unreachable { address: address.clone(), reason: "the host hung up".to_owned() };
    let socket = Socket::connect(path).await?;
    let nonce = match socket.receive().await?.ok_or_else(hung_up)?.0 {
        Message::Greeting { version: VERSION, nonce } => nonce,
        Message::Greeting { version: theirs, .. } => return Err(Error::Version { ours: VERSION, theirs }),
        _ => return Err(Error::Malformed("a host that does not greet")),
    };
    let token = *credential.token.bytes();
    let hello = Message::Hello { version: VERSION, nonce, token, name: credential.name.clone() };
    socket.send(&hello, &[]).await.map_err(|_| hung_up())?;
    let (answer, descriptors) = socket.receive().await?.ok_or_else(hung_up)?;
    let (node, life) = match answer {
        Message::Welcome { node, life } => (node, life),
        Message::Refused { version, .. } if version != VERSION => {
            return Err(Error::Version { ours: VERSION, theirs: version });
        }
        Message::Refused { reason, .. } => return Err(Error::Refused(reason)),
        _ => return Err(Error::Malformed("a host that does not welcome")),
    };
    let Ok([generations, area, to_host, to_caller]) = <[OwnedFd; 4]>::try_from(descriptors) else {
        return Err(Error::Malformed("a welcome without its descriptors"));
    };
    let area = Arc::new(Area::open(area)?);
    let view = {
        let mut views = lock(&VIEWS);
        views.retain(|_, view| view.strong_count() > 0);
        match views.get(&life).and_then(Weak::upgrade) {
            Some(view) => view,
            None => {
                let view = Arc::new(View::new(node, generations)?);
                views.insert(life, Arc::downgrade(&view));
                view
            }
        }
    };
    view.add_area(&area);
    let side = Side::new(&area, Direction::ToHost);
    side.set_bell(Bell::Remote(to_host));
    let waiting = Arc::new(Waiting::default());
    let link = Arc::new(Link { side: Arc::clone(&side), waiting: Arc::clone(&waiting), socket });
    listen(to_caller, &side)?;
    let holder = Holder::of(&credential.name);
    let caller = Arc::new(Caller { side, view, name: address.clone(), holder, waiting: Some(waiting) });
    let answers = Arc::new(Answers::default());
    let _runs_until_the_end = rt::spawn(hear(Arc::clone(&link), Arc::clone(&caller.view), Arc::clone(&answers)));
    let _runs_until_the_end = rt::spawn(ask(link, Arc::downgrade(&caller), answers));
    Ok(Endpoint::new(caller))
}

/// The answer to the one question that is open.
#[derive(Default)]
struct Answers {
    answer: Mutex<Option<Answer>>,
    came: Notify,
}

enum Answer {
    Confirmed(Rights, u64, Option<OwnedFd>),
    Denied(Error),
}

/// The caller's task that receives what the host says.
async fn hear(link: Arc<Link>, view: Arc<View>, answers: Arc<Answers>) {
    let hearing = async {
        while let Ok(Some((message, descriptors))) = link.socket.receive().await {
            let answer = match message {
                Message::Confirmed { rights, bytes } => {
                    Answer::Confirmed(rights, bytes, descriptors.into_iter().next())
                }
                Message::Denied { revoked } => Answer::Denied(if revoked { Error::Revoked } else { Error::Unknown }),
                Message::Gone { region } => {
                    view.remove(region);
                    continue;
                }
                _ => break,
            };
            *lock(&answers.answer) = Some(answer);
            answers.came.notify_one();
        }
    };
    let _ended: Option<()> = link.side.ended.or_stopped(hearing).await;
    link.side.end();
    link.waiting.close();
}

/// The caller's task that has capabilities confirmed.
async fn ask(link: Arc<Link>, caller: Weak<Caller>, answers: Arc<Answers>) {
    let asking = async {
        let mut attempts = 0;
        let mut last: Option<[u8; crate::CAPABILITY_BYTES]> = None;
        loop {
            let question = caller.upgrade().map(|caller| {
                let (view, holder) = (Arc::clone(&caller.view), caller.holder);
                (link.waiting.advance(&caller), view, holder)
            });
            let Some((question, view, holder)) = question else { return };
            let Some(capability) = question else {
                link.waiting.changed.notified().await;
                continue;
            };
            let encoded = capability.encode();
            attempts = if last == Some(encoded) { attempts + 1 } else { 1 };
            last = Some(encoded);
            if attempts > CONFIRMATIONS_MAX {
                link.waiting.refuse_first(Error::Unknown);
                continue;
            }
            let question = Message::Confirm { mapped: view.is_mapped(capability.region), capability };
            if link.socket.send(&question, &[]).await.is_err() {
                return;
            }
            let answer = loop {
                if let Some(answer) = lock(&answers.answer).take() {
                    break answer;
                }
                answers.came.notified().await;
            };
            match answer {
                Answer::Denied(error) => link.waiting.refuse_first(error),
                Answer::Confirmed(rights, bytes, descriptor) => {
                    if let Err(error) = install(&view, &capability, holder, rights, bytes, descriptor).await {
                        link.waiting.refuse_first(error);
                    }
                }
            }
        }
    };
    let _ended: Option<()> = link.side.ended.or_stopped(asking).await;
    link.side.end();
    link.waiting.close();
}

/// Maps a region when it is not yet, and notes its grant.
async fn install(
    view: &Arc<View>,
    capability: &Capability,
    holder: Holder,
    rights: Rights,
    bytes: u64,
    descriptor: Option<OwnedFd>,
) -> Result<(), Error> {
    if let Some(descriptor) = descriptor {
        // Filling the page table of a large region takes a while.
        let memory = rt::blocking(move || Mapping::new(&descriptor, bytes, Access::Write, true)).await?;
        view.replace(Region::new(capability.region, memory));
    }
    // When the region has gone in between, the verb is posted again and told so by its generation.
    let _mapped = view.confirm(capability, rights, holder);
    Ok(())
}

/// Serves connections at a path until the host ends.
pub(super) fn serve(host: &Arc<Inner>, path: &Path) -> Result<(), Error> {
    let listener = Listener::bind(path)?;
    let stop = host.stop.clone();
    let host = Arc::downgrade(host);
    let _runs_until_the_end = rt::spawn(async move {
        let _guard = EndsHost(Weak::clone(&host));
        let handshakes = Semaphore::new(HANDSHAKES_MAX);
        let mut life = [0; LIFE_BYTES];
        rt::fill_random(&mut life);
        let serving = async {
            loop {
                let permit = handshakes.acquire().await;
                let Ok(socket) = listener.accept().await else {
                    rt::sleep(ACCEPT_AGAIN).await;
                    continue;
                };
                crate::failure::may_panic();
                let Some(host) = host.upgrade() else { return };
                let stop = host.stop.clone();
                let _ends_in_time = rt::spawn(async move {
                    let welcoming = rt::timeout(HANDSHAKE_WITHIN, welcome(host, life, socket));
                    // Whoever failed was told, and connects again if it wants to.
                    let _outcome = stop.or_stopped(welcoming).await;
                    drop(permit);
                });
            }
        };
        let _stopped: Option<()> = stop.or_stopped(serving).await;
    });
    Ok(())
}

/// Takes a pidfd of whoever connected; `None` for this process.
fn process_of(socket: &Socket) -> Result<Option<Arc<Process>>, Error> {
    let system = |errno: rustix::io::Errno| Error::system("find the process that connected", &errno.into());
    let pid = rustix::net::sockopt::socket_peercred(socket.fd()).map_err(system)?.pid;
    if pid == rustix::process::getpid() {
        return Ok(None);
    }
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(system)?;
    Ok(Some(Arc::new(Process { pid, pidfd })))
}

async fn welcome(host: Arc<Inner>, life: Life, socket: Socket) -> Result<(), Error> {
    let process = process_of(&socket)?;
    let nonce = rt::random_u64();
    socket.send(&Message::greeting(nonce), &[]).await?;
    let (message, _) = socket.receive().await?.ok_or(Error::Closed)?;
    let prepared = prepare(&host, message, nonce, process);
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            socket.send(&Message::refused(&error), &[]).await?;
            return Err(error);
        }
    };
    let Prepared { side, accepted, departure, area, to_host, to_caller, for_caller } = prepared;
    let descriptors = [host.generations_fd.as_fd(), area.as_fd(), for_caller.as_fd(), to_caller.as_fd()];
    let welcomed = socket.send(&Message::Welcome { node: host.node, life }, &descriptors).await;
    let socket = Arc::new(socket);
    listen(to_host, &side)?;
    let (weak, holder) = (Arc::downgrade(&host), Holder::of(&accepted.name));
    let _until_the_caller_has_gone =
        rt::spawn(answer(weak, holder, Arc::clone(&socket), Arc::clone(&side), Arc::clone(&departure)));
    let _runs_until_the_end = rt::spawn(announce(socket, Arc::clone(&side), departure));
    if welcomed.is_err() || host.hand_over(accepted).await.is_err() {
        side.end();
    }
    Ok(())
}

/// Whether a caller has gone, and what it is still to be told.
#[derive(Default)]
pub(super) struct Departure {
    gone: AtomicBool,
    regions: Mutex<VecDeque<RegionId>>,
    changed: Notify,
}

impl Departure {
    /// Whether the caller has closed its socket, so that it puts no mark any more.
    pub(super) fn has_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Lets the caller know that a region can be unmapped.
    pub(super) fn announce(&self, region: RegionId) {
        let mut regions = lock(&self.regions);
        if regions.len() == REGIONS_MAX {
            // A caller that does not listen unmaps late, when the place is used again.
            regions.pop_front();
        }
        regions.push_back(region);
        drop(regions);
        self.changed.notify_one();
    }
}

struct Prepared {
    side: Arc<Side>,
    accepted: Accepted,
    departure: Arc<Departure>,
    area: OwnedFd,
    /// The bell on which this side waits, and the caller's handle of it.
    to_host: OwnedFd,
    for_caller: OwnedFd,
    to_caller: OwnedFd,
}

/// Step 2 on the host's side.
fn prepare(host: &Arc<Inner>, message: Message, nonce: u64, process: Option<Arc<Process>>) -> Result<Prepared, Error> {
    let (name, token) = match message {
        Message::Hello { version: VERSION, nonce: again, token, name } if again == nonce => (name, token),
        Message::Hello { version: theirs, .. } if theirs != VERSION => {
            return Err(Error::Version { ours: VERSION, theirs });
        }
        _ => return Err(Error::Malformed("a caller that does not say who it is")),
    };
    host.authenticate(&name, &token)?;
    let (area, area_fd) = Area::create()?;
    let area = Arc::new(area);
    let (to_host, to_caller) = (bell()?, bell()?);
    let duplicate = |bell: &OwnedFd| bell.try_clone().map_err(|error| Error::system("pass an eventfd on", &error));
    let (for_caller, own) = (duplicate(&to_host)?, duplicate(&to_caller)?);
    let side = Side::new(&area, Direction::ToCaller);
    side.set_bell(Bell::Remote(own));
    let departure = Arc::new(Departure::default());
    let node = host.add_peer(Peer::remote(Arc::clone(&area), &side, process, &departure))?;
    let accepted = Accepted { side: Arc::clone(&side), node, name };
    Ok(Prepared { side, accepted, departure, area: area_fd, to_host, for_caller, to_caller })
}

/// The host's task that answers a caller, until the caller has gone: also after the host's side has ended.
async fn answer(host: Weak<Inner>, holder: Holder, socket: Arc<Socket>, side: Arc<Side>, departure: Arc<Departure>) {
    // After a panic nobody hears when the caller goes: its marks are looked at until its process has ended.
    let _guard = EndsSide(Arc::clone(&side));
    loop {
        match socket.receive().await {
            Ok(None) => break,
            Ok(Some((Message::Confirm { mapped, capability }, _))) => {
                let Some(host) = host.upgrade() else {
                    side.end();
                    continue;
                };
                let confirmed = host.confirm(&capability, holder);
                let answered = match &confirmed {
                    Ok(confirmation) => {
                        let (rights, bytes) = (confirmation.rights, confirmation.bytes);
                        let descriptor = [confirmation.fd.as_fd()];
                        let descriptors = if mapped { &descriptor[..0] } else { &descriptor[..] };
                        socket.send(&Message::Confirmed { rights, bytes }, descriptors).await
                    }
                    Err(error) => {
                        let revoked = *error == Error::Revoked;
                        socket.send(&Message::Denied { revoked }, &[]).await
                    }
                };
                if answered.is_err() {
                    side.end();
                }
            }
            // What it says makes no sense, but it may still have marks: only its end counts.
            Ok(Some(_)) | Err(_) => side.end(),
        }
    }
    departure.gone.store(true, Ordering::SeqCst);
    side.end();
}

/// The host's task that tells a caller which regions have gone, until either side ends.
async fn announce(socket: Arc<Socket>, side: Arc<Side>, departure: Arc<Departure>) {
    let _guard = EndsSide(Arc::clone(&side));
    let announcing = async {
        loop {
            let next = lock(&departure.regions).pop_front();
            match next {
                Some(region) => {
                    if socket.send(&Message::Gone { region }, &[]).await.is_err() {
                        return;
                    }
                }
                None => departure.changed.notified().await,
            }
        }
    };
    let _ended: Option<()> = side.ended.or_stopped(announcing).await;
    side.end();
    socket.finish();
}
