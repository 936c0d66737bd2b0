//! Connections between processes: the handshake, and the protocol on the socket afterwards.
//!
//! 1. The host takes a pidfd of the process that connected, then greets the process with a nonce. The answer (step 2)
//!    proves that the process was still alive when the pidfd was taken, so the pidfd does not refer to a later process
//!    with the same number.
//! 2. The caller sends its name, its token and the nonce. The host creates the shared segment and the eventfds, enters
//!    the connection in its table, and passes the descriptors to the caller.
//! 3. The caller asks the host to confirm capabilities that the caller's process has not used yet, one at a time. The
//!    answer carries the region's descriptor if the process has not mapped the region yet. The host announces when a
//!    region has gone, so that the caller unmaps it.
//! 4. The end that closes first shuts down its sending direction; the other end then closes too.
//!
//! Invariants:
//! * A panic in a task of one connection ends that connection. A panic in the task that accepts connections ends the
//!   host, which then reports it ([`crate::Host::failed`]).
//! * The caller closes its socket only after its [`ConnectionEnd`] has closed ([`SocketLink`]). So the caller sets no
//!   mark after the host has seen the socket close. Until the host has seen the socket close, or the process has
//!   exited, a revocation checks the caller's marks, whatever the state of the host's end.
//! * Connections of one process to one incarnation of a host share one view ([`HostView`]), so that a region is mapped
//!   once.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use base::rt;
use base::rt::sync::{Notify, Semaphore};
use rustix::event::EventfdFlags;
use rustix::process::PidfdFlags;
use wire::hello::{HelloAnswer, VersionMismatch};

use super::connection::{AcceptedConnection, ShmConnection};
use super::connection_end::{ConnectionEnd, Doorbell};
use super::departure::ConnectionDeparture;
use super::host::{HostConnection, PeerProcess, ShmHostCore};
use super::memory::{Mapping, MappingAccess};
use super::message::{INCARNATION_BYTES, SocketMessage};
use super::segment::{ConnectionSegment, PROTOCOL_VERSIONS, RingDirection};
use super::socket::{MessageSocket, SocketListener, watch};
use super::view::{HolderDigest, HostView, MappedRegion};
use super::waiting::WaitingVerbs;
use crate::{Capability, Credential, Endpoint, Error, Rights};

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent handshakes; more wait.
const HANDSHAKES_MAX: usize = 16;
/// Attempts to have one capability confirmed before its verb is rejected.
const CONFIRMATIONS_MAX: usize = 4;
/// Pause after a connection could not be accepted, for example for lack of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

type HostIncarnation = [u8; INCARNATION_BYTES];

/// The views of this process, by the incarnation of their host.
static VIEWS: Mutex<BTreeMap<HostIncarnation, Weak<HostView>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Consistent between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The caller's socket. The caller's end closes before the socket does.
struct SocketLink {
    side: Arc<ConnectionEnd>,
    waiting: Arc<WaitingVerbs>,
    socket: MessageSocket,
}

impl Drop for SocketLink {
    fn drop(&mut self) {
        self.side.end();
        self.waiting.close();
    }
}

/// Ends one end of a connection when one of its tasks panics.
pub(super) struct CloseEndOnDrop(pub(super) Arc<ConnectionEnd>);

impl Drop for CloseEndOnDrop {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

/// Ends a host when the task that accepts its connections panics.
pub(super) struct CloseHostOnDrop(pub(super) Weak<ShmHostCore>);

impl Drop for CloseHostOnDrop {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(host) = self.0.upgrade()
        {
            host.fail("the task that accepts connections panicked".to_owned());
        }
    }
}

fn doorbell() -> Result<OwnedFd, Error> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| Error::system("make an eventfd", &errno.into()))
}

/// Forwards the wake-ups of an eventfd, until the end has closed.
fn listen(bell: OwnedFd, side: &Arc<ConnectionEnd>) -> Result<(), Error> {
    let bell = watch(bell)?;
    let side = Arc::clone(side);
    let _runs_until_the_end = rt::spawn(async move {
        let _guard = CloseEndOnDrop(Arc::clone(&side));
        let ended = side.ended.clone();
        let listening = async {
            let mut count = [0; 8];
            let read = |bell: &OwnedFd| Ok(rustix::io::read(bell, &mut count)?);
            let mut read = read;
            while bell.async_io(tokio::io::Interest::READABLE, &mut read).await.is_ok() {
                side.rung();
            }
        };
        let _ended: Option<()> = ended.run_until_cancelled(listening).await;
    });
    Ok(())
}

/// Connects to the host at a path.
pub(super) async fn connect(path: &Path, credential: &Credential) -> Result<Endpoint, Error> {
    let address = path.display().to_string();
    match rt::timeout(HANDSHAKE_TIMEOUT, handshake(path, credential)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Unreachable { address, reason: "the host does not answer".to_owned() }),
    }
}

async fn handshake(path: &Path, credential: &Credential) -> Result<Endpoint, Error> {
    let address = path.display().to_string();
    let hung_up = || Error::Unreachable { address: address.clone(), reason: "the host hung up".to_owned() };
    let socket = MessageSocket::connect(path).await?;
    let SocketMessage::Greeting { versions, nonce } = socket.receive().await?.ok_or_else(hung_up)?.0 else {
        return Err(Error::Malformed("a host that does not greet"));
    };
    let answer = match PROTOCOL_VERSIONS.choose(versions) {
        Ok(chosen) => HelloAnswer::accept(PROTOCOL_VERSIONS, chosen),
        Err(mismatch) => {
            let refusal = SocketMessage::OtherVersions(HelloAnswer::refuse(PROTOCOL_VERSIONS));
            socket.send(&refusal, &[]).await.map_err(|_| hung_up())?;
            return Err(mismatch.into());
        }
    };
    let token = *credential.token.bytes();
    let hello = SocketMessage::Hello { answer, nonce, token, name: credential.name.clone() };
    socket.send(&hello, &[]).await.map_err(|_| hung_up())?;
    let (answer, descriptors) = socket.receive().await?.ok_or_else(hung_up)?;
    let (node, life) = match answer {
        SocketMessage::Welcome { node, life } => (node, life),
        SocketMessage::Rejected { reason } => return Err(Error::Rejected(reason)),
        _ => return Err(Error::Malformed("a host that does not welcome")),
    };
    let Ok([generations, area, to_host, to_caller]) = <[OwnedFd; 4]>::try_from(descriptors) else {
        return Err(Error::Malformed("a welcome without its descriptors"));
    };
    let area = Arc::new(ConnectionSegment::open(area)?);
    let view = {
        let mut views = lock(&VIEWS);
        views.retain(|_, view| view.strong_count() > 0);
        match views.get(&life).and_then(Weak::upgrade) {
            Some(view) => view,
            None => {
                let view = Arc::new(HostView::new(node, generations)?);
                views.insert(life, Arc::downgrade(&view));
                view
            }
        }
    };
    view.add_segment(&area);
    let side = ConnectionEnd::new(&area, RingDirection::ToHost);
    side.set_doorbell(Doorbell::Remote(to_host));
    let waiting = Arc::new(WaitingVerbs::default());
    let link = Arc::new(SocketLink { side: Arc::clone(&side), waiting: Arc::clone(&waiting), socket });
    listen(to_caller, &side)?;
    let holder = HolderDigest::of(&credential.name);
    let caller = Arc::new(ShmConnection { side, view, name: address.clone(), holder, waiting: Some(waiting) });
    let answers = Arc::new(PendingConfirmations::default());
    let _runs_until_the_end =
        rt::spawn(receive_messages(Arc::clone(&link), Arc::clone(&caller.view), Arc::clone(&answers)));
    let _runs_until_the_end = rt::spawn(request_confirmations(link, Arc::downgrade(&caller), answers));
    Ok(Endpoint::new(caller))
}

/// The answer to the one open request.
#[derive(Default)]
struct PendingConfirmations {
    answer: Mutex<Option<ConfirmationResponse>>,
    came: Notify,
}

enum ConfirmationResponse {
    Confirmed(Rights, u64, Option<OwnedFd>),
    Denied(Error),
}

/// The caller's task that receives the host's messages.
async fn receive_messages(link: Arc<SocketLink>, view: Arc<HostView>, answers: Arc<PendingConfirmations>) {
    let hearing = async {
        while let Ok(Some((message, descriptors))) = link.socket.receive().await {
            let answer = match message {
                SocketMessage::Confirmed { rights, bytes } => {
                    ConfirmationResponse::Confirmed(rights, bytes, descriptors.into_iter().next())
                }
                SocketMessage::Denied { revoked } => {
                    ConfirmationResponse::Denied(if revoked { Error::Revoked } else { Error::Unknown })
                }
                SocketMessage::Gone { region } => {
                    view.remove(region);
                    continue;
                }
                _ => break,
            };
            *lock(&answers.answer) = Some(answer);
            answers.came.notify_one();
        }
    };
    let _ended: Option<()> = link.side.ended.run_until_cancelled(hearing).await;
    link.side.end();
    link.waiting.close();
}

/// The caller's task that has capabilities confirmed.
async fn request_confirmations(link: Arc<SocketLink>, caller: Weak<ShmConnection>, answers: Arc<PendingConfirmations>) {
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
                link.waiting.reject_first(Error::Unknown);
                continue;
            }
            let question = SocketMessage::Confirm { mapped: view.is_mapped(capability.region), capability };
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
                ConfirmationResponse::Denied(error) => link.waiting.reject_first(error),
                ConfirmationResponse::Confirmed(rights, bytes, descriptor) => {
                    if let Err(error) = install(&view, &capability, holder, rights, bytes, descriptor).await {
                        link.waiting.reject_first(error);
                    }
                }
            }
        }
    };
    let _ended: Option<()> = link.side.ended.run_until_cancelled(asking).await;
    link.side.end();
    link.waiting.close();
}

/// Maps a region that is not mapped yet, and records its grant.
async fn install(
    view: &Arc<HostView>,
    capability: &Capability,
    holder: HolderDigest,
    rights: Rights,
    bytes: u64,
    descriptor: Option<OwnedFd>,
) -> Result<(), Error> {
    if let Some(descriptor) = descriptor {
        // Filling the page table of a large region takes a while.
        let memory = rt::blocking(move || Mapping::new(&descriptor, bytes, MappingAccess::Write, true)).await?;
        view.replace(MappedRegion::new(capability.region, memory));
    }
    // If the region has gone in between, the verb is posted again and fails by its generation.
    let _mapped = view.confirm(capability, rights, holder);
    Ok(())
}

/// Serves connections at a path until the host ends.
pub(super) fn serve(host: &Arc<ShmHostCore>, path: &Path) -> Result<(), Error> {
    let listener = SocketListener::bind(path)?;
    let stop = host.stop.clone();
    let host = Arc::downgrade(host);
    let _runs_until_the_end = rt::spawn(async move {
        let _guard = CloseHostOnDrop(Weak::clone(&host));
        let handshakes = Semaphore::new(HANDSHAKES_MAX);
        let mut life = [0; INCARNATION_BYTES];
        rt::fill_random(&mut life);
        let serving = async {
            loop {
                let permit = handshakes.acquire().await;
                let Ok(socket) = listener.accept().await else {
                    rt::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                };
                crate::failure::may_panic();
                let Some(host) = host.upgrade() else { return };
                let stop = host.stop.clone();
                let _ends_in_time = rt::spawn(async move {
                    let welcoming = rt::timeout(HANDSHAKE_TIMEOUT, accept_caller(host, life, socket));
                    // A failed client has received the reason, and may connect again.
                    let _outcome = stop.run_until_cancelled(welcoming).await;
                    drop(permit);
                });
            }
        };
        let _stopped: Option<()> = stop.run_until_cancelled(serving).await;
    });
    Ok(())
}

/// Takes a pidfd of the process that connected; `None` for this process.
fn process_of(socket: &MessageSocket) -> Result<Option<Arc<PeerProcess>>, Error> {
    let system = |errno: rustix::io::Errno| Error::system("find the process that connected", &errno.into());
    let pid = rustix::net::sockopt::socket_peercred(socket.fd()).map_err(system)?.pid;
    if pid == rustix::process::getpid() {
        return Ok(None);
    }
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(system)?;
    Ok(Some(Arc::new(PeerProcess { pid, pidfd })))
}

async fn accept_caller(host: Arc<ShmHostCore>, life: HostIncarnation, socket: MessageSocket) -> Result<(), Error> {
    let process = process_of(&socket)?;
    let nonce = rt::random_u64();
    socket.send(&SocketMessage::greeting(nonce), &[]).await?;
    let (message, _) = socket.receive().await?.ok_or(Error::Closed)?;
    let prepared = prepare(&host, message, nonce, process);
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            socket.send(&SocketMessage::rejected(&error), &[]).await?;
            return Err(error);
        }
    };
    let PreparedConnection { side, accepted, departure, area, to_host, to_caller, for_caller } = prepared;
    let descriptors = [host.generations_fd.as_fd(), area.as_fd(), for_caller.as_fd(), to_caller.as_fd()];
    let welcomed = socket.send(&SocketMessage::Welcome { node: host.node, life }, &descriptors).await;
    let socket = Arc::new(socket);
    listen(to_host, &side)?;
    let (weak, holder) = (Arc::downgrade(&host), HolderDigest::of(&accepted.name));
    let _until_the_caller_has_gone =
        rt::spawn(answer_confirmations(weak, holder, Arc::clone(&socket), Arc::clone(&side), Arc::clone(&departure)));
    let _runs_until_the_end = rt::spawn(announce(socket, Arc::clone(&side), departure));
    if welcomed.is_err() || host.hand_over(accepted).await.is_err() {
        side.end();
    }
    Ok(())
}

struct PreparedConnection {
    side: Arc<ConnectionEnd>,
    accepted: AcceptedConnection,
    departure: Arc<ConnectionDeparture>,
    area: OwnedFd,
    /// The eventfd on which this end waits, and the caller's handle of it.
    to_host: OwnedFd,
    for_caller: OwnedFd,
    to_caller: OwnedFd,
}

/// Step 2 at the host.
fn prepare(
    host: &Arc<ShmHostCore>,
    message: SocketMessage,
    nonce: u64,
    process: Option<Arc<PeerProcess>>,
) -> Result<PreparedConnection, Error> {
    let (name, token) = match message {
        SocketMessage::OtherVersions(answer) => {
            return Err(VersionMismatch { ours: PROTOCOL_VERSIONS, theirs: answer.versions() }.into());
        }
        SocketMessage::Hello { answer, nonce: again, token, name } if again == nonce => {
            answer.chosen_by(PROTOCOL_VERSIONS)?;
            (name, token)
        }
        _ => return Err(Error::Malformed("a caller that does not authenticate")),
    };
    host.authenticate(&name, &token)?;
    let (area, area_fd) = ConnectionSegment::create()?;
    let area = Arc::new(area);
    let (to_host, to_caller) = (doorbell()?, doorbell()?);
    let duplicate = |bell: &OwnedFd| bell.try_clone().map_err(|error| Error::system("pass an eventfd on", &error));
    let (for_caller, own) = (duplicate(&to_host)?, duplicate(&to_caller)?);
    let side = ConnectionEnd::new(&area, RingDirection::ToCaller);
    side.set_doorbell(Doorbell::Remote(own));
    let departure = Arc::new(ConnectionDeparture::default());
    let node = host.add_peer(HostConnection::remote(Arc::clone(&area), &side, process, &departure))?;
    let accepted = AcceptedConnection { side: Arc::clone(&side), node, name };
    Ok(PreparedConnection { side, accepted, departure, area: area_fd, to_host, for_caller, to_caller })
}

/// The host's task that answers a caller, until the caller has gone, even after the host's end has closed.
async fn answer_confirmations(
    host: Weak<ShmHostCore>,
    holder: HolderDigest,
    socket: Arc<MessageSocket>,
    side: Arc<ConnectionEnd>,
    departure: Arc<ConnectionDeparture>,
) {
    // After a panic no task notices that the caller goes: its marks are checked until its process has ended.
    let _guard = CloseEndOnDrop(Arc::clone(&side));
    loop {
        match socket.receive().await {
            Ok(None) => break,
            Ok(Some((SocketMessage::Confirm { mapped, capability }, _))) => {
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
                        socket.send(&SocketMessage::Confirmed { rights, bytes }, descriptors).await
                    }
                    Err(error) => {
                        let revoked = *error == Error::Revoked;
                        socket.send(&SocketMessage::Denied { revoked }, &[]).await
                    }
                };
                if answered.is_err() {
                    side.end();
                }
            }
            // The message is invalid, but the caller may still have marks: only its end counts.
            Ok(Some(_)) | Err(_) => side.end(),
        }
    }
    departure.gone.store(true, Ordering::SeqCst);
    side.end();
}

/// The host's task that announces to a caller which regions have gone, until either end closes.
pub(super) async fn announce(
    socket: Arc<MessageSocket>,
    side: Arc<ConnectionEnd>,
    departure: Arc<ConnectionDeparture>,
) {
    let _guard = CloseEndOnDrop(Arc::clone(&side));
    let announcing = async {
        loop {
            let next = lock(&departure.regions).pop_front();
            match next {
                Some(region) => {
                    if socket.send(&SocketMessage::Gone { region }, &[]).await.is_err() {
                        return;
                    }
                }
                None => departure.changed.notified().await,
            }
        }
    };
    let _ended: Option<()> = side.ended.run_until_cancelled(announcing).await;
    side.end();
    socket.finish();
}
