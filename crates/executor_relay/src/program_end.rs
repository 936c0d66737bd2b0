//! The end on the program's host.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt::net::{Link, Parties};
use base::rt::{self, AbortOnDrop, CancellationToken, Instant};
use executors::relay::{ProgramConnection, ProgramRequest, ProgramSocket, StrangerId, Strangers};
use pushdown::{Area, RoleNotice, RoleRequest, Side};

use crate::area_end::{AreaEnd, AreaRole};
use crate::error::RelayError;
use crate::events;
use crate::message::RelayMessage;
use crate::pump::{SessionEnd, pump};
use crate::settings::{HELLO_TIME_MAX, ProgramEndSettings};
use crate::watched::Watched;

/// For how long the other host may take to be reached.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// For how long it may take to start an executor.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// If no connection can be accepted, it is tried again after this time.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The end on the program's host. Its sessions end when it is dropped.
pub struct ProgramEnd {
    running: AbortOnDrop<()>,
}

struct ProgramEndState {
    settings: ProgramEndSettings,
    own_user: u32,
    places: Mutex<Places>,
    start: Instant,
}

/// Connections without a hello, and programs with a session.
#[derive(Default)]
struct Places {
    strangers: Strangers,
    displaced: BTreeMap<StrangerId, CancellationToken>,
    programs: usize,
}

/// A program with a session has its place until this is dropped.
struct SessionPlace(Arc<ProgramEndState>);

/// A session that was opened.
struct Session {
    end: AreaEnd<ProgramArea>,
    link: Link,
    /// The executor's process at its host.
    process: u32,
    _place: SessionPlace,
}

impl ProgramEnd {
    /// Listens for programs. To be called within the runtime.
    ///
    /// # Errors
    /// [`RelayError`] says what is wrong with the socket or a setting.
    pub fn start(settings: ProgramEndSettings) -> Result<ProgramEnd, RelayError> {
        base::event::register(events::EVENTS);
        if settings.programs_max == 0 {
            return Err(RelayError::Setting("no programs; there must be room for at least 1".to_owned()));
        }
        let socket = ProgramSocket::new(&settings.socket, &settings.owners)?;
        let socket = Watched::new(socket).map_err(|error| RelayError::Setting(format!("the socket: {error}")))?;
        let own_user = rustix::process::geteuid().as_raw();
        let shared = ProgramEndState { settings, own_user, places: Mutex::default(), start: rt::now() };
        let running = rt::spawn(accept_all(Arc::new(shared), socket));
        Ok(ProgramEnd { running: running.abort_on_drop() })
    }

    /// Completes when it has ended, which it does only by a panic.
    pub async fn ended(&mut self) {
        let _ = (&mut self.running).await;
    }
}

impl ProgramEndState {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection; one without a hello may have to give way. What is returned fires when this one has to.
    fn add_stranger(&self, user: u32) -> (StrangerId, CancellationToken) {
        let mut places = self.places();
        let (id, displaced) = places.strangers.add(user, self.start.elapsed());
        if let Some(displaced) = displaced.and_then(|id| places.displaced.remove(&id)) {
            displaced.cancel();
        }
        let token = CancellationToken::new();
        places.displaced.insert(id, token.clone());
        (id, token)
    }

    fn remove_stranger(&self, id: StrangerId) {
        let mut places = self.places();
        places.strangers.remove(id);
        places.displaced.remove(&id);
    }

    /// A place for a session, if there is one.
    fn take_place(self: &Arc<ProgramEndState>) -> Option<SessionPlace> {
        let mut places = self.places();
        (places.programs < self.settings.programs_max).then(|| {
            places.programs += 1;
            events::RelaySessions.add(1);
            SessionPlace(Arc::clone(self))
        })
    }
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        self.0.places().programs -= 1;
        events::RelaySessions.add(-1);
    }
}

async fn accept_all(shared: Arc<ProgramEndState>, socket: Watched<ProgramSocket>) {
    let mut sessions: Vec<AbortOnDrop<()>> = Vec::new();
    loop {
        // This process may be out of descriptors, and then nothing says when it has some again.
        let Ok(accepted) = rt::timeout(ACCEPT_AGAIN, socket.read(ProgramSocket::accept)).await else { continue };
        let Ok(program) = accepted else { return };
        sessions.retain(|session| !session.is_finished());
        let (id, displaced) = shared.add_stranger(program.user());
        sessions.push(rt::spawn(serve(Arc::clone(&shared), program, id, displaced)).abort_on_drop());
    }
}

/// A program, from its connection to the end of its session.
async fn serve(
    shared: Arc<ProgramEndState>,
    mut program: ProgramConnection,
    id: StrangerId,
    displaced: CancellationToken,
) {
    let process = program.take_process();
    let (Ok(program), process) = (Watched::new(program), process.and_then(|process| Watched::new(process).ok())) else {
        return shared.remove_stranger(id);
    };
    let request = tokio::select! {
        biased;
        () = displaced.cancelled() => return,
        request = rt::timeout(HELLO_TIME_MAX, receive(&program)) => request,
    };
    shared.remove_stranger(id);
    let Ok(Some(request)) = request else { return };
    let user = program.get().user();
    let opened = tokio::select! {
        biased;
        () = gone(&program, process.as_ref()) => return,
        opened = open(&shared, program.get(), request) => opened,
    };
    let Session { end, link, process: number, _place } = match opened {
        Ok(session) => session,
        Err(reason) => {
            events::RelayRefused.add(1);
            tracing::info!("user {user} gets no executor: {reason}");
            return program.get().tell(&RoleNotice::Refused(reason));
        }
    };
    events::RelayStarted.add(1);
    program.get().tell(&RoleNotice::Started { process: number, is_elsewhere: true });
    let (sender, mut receiver) = link.split();
    let ended = tokio::select! {
        biased;
        () = gone(&program, process.as_ref()) => return,
        ended = pump(&end, &sender, &mut receiver) => ended,
    };
    let address = &shared.settings.address;
    let reason = match ended {
        SessionEnd::Ended(reason) => reason,
        SessionEnd::LinkLost => {
            events::RelayLinksLost.add(1);
            format!("the link to the executors at {address} has ended")
        }
        SessionEnd::Broken(what) => {
            events::RelayBroken.add(1);
            format!("the relay at {address} has sent {what}")
        }
        SessionEnd::AreaLost => {
            events::RelayBroken.add(1);
            "the program has closed its socket, or broken the rules of its area".to_owned()
        }
    };
    tracing::info!("program {} of user {user}: {reason}", program.get().process());
    program.get().tell(&RoleNotice::Ended(reason));
}

/// The first message of a program; `None` if it closes the connection instead.
async fn receive(program: &Watched<ProgramConnection>) -> Option<ProgramRequest> {
    let request = program.read(|program| program.receive().transpose()).await.ok()?.ok()?;
    Some(request).filter(|request| !request.bytes.is_empty())
}

/// Completes when the program has ended, or has closed its connection. It has nothing more to say.
async fn gone(program: &Watched<ProgramConnection>, process: Option<&Watched<OwnedFd>>) {
    let process_ended = async {
        match process {
            Some(process) => process.readable().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = process_ended => {}
        _ = receive(program) => {}
    }
}

/// Steps 1 to 3.
async fn open(
    shared: &Arc<ProgramEndState>,
    program: &ProgramConnection,
    request: ProgramRequest,
) -> Result<Session, String> {
    let ProgramEndSettings { address, organisation, owners, programs_max, .. } = &shared.settings;
    let bytes = request.bytes.clone();
    match RoleRequest::decode(&bytes) {
        Ok(RoleRequest::Hello(_, None)) => {}
        Ok(RoleRequest::Hello(_, Some(_))) => return Err("a relay leads to the role, and to no other relay".to_owned()),
        Ok(RoleRequest::Show { .. }) => {
            return Err("a relay shows nothing: ask the role, on the executors' host".to_owned());
        }
        Err(error) => return Err(format!("the hello is malformed: {error}")),
    }
    let user = program.user();
    if !owners.allows(user, shared.own_user) {
        return Err(format!(
            "user {user} may have no executors by this relay: start it with --owner {user}, or with --any-owner"
        ));
    }
    let place = shared
        .take_place()
        .ok_or_else(|| format!("there are {programs_max} programs, as many as there may be (--programs-max)"))?;
    let (area, socket) = request.area_and_socket()?;
    let end = AreaEnd::new(&area, Side::Executor, socket, ProgramArea).map_err(|error| format!("the area: {error}"))?;
    if !end.area().is_of_this_version() {
        return Err("the library's area has another version than this relay: use the same release of both".to_owned());
    }
    let party = Parties::of([organisation.clone()]);
    let reached = rt::timeout(CONNECT_TIME_MAX, rt::net::connect_to(address, &party));
    let mut link = match reached.await {
        Ok(link) => link.map_err(|error| format!("the executors at {address} cannot be reached: {error}"))?,
        Err(_) => return Err(format!("the executors at {address} do not answer")),
    };
    let lost = |_| format!("the link to the executors at {address} has ended");
    let hello = RelayMessage::Hello { process: program.process(), name: program.name(), request: bytes };
    link.send(hello.encode()).await.map_err(lost)?;
    let answer = rt::timeout(START_TIME_MAX, link.receive()).await;
    let answer = answer.map_err(|_| format!("the executors at {address} do not answer"))?.map_err(lost)?;
    match RelayMessage::decode(answer) {
        Ok(RelayMessage::Started(process)) => Ok(Session { end, link, process, _place: place }),
        Ok(RelayMessage::Refused(reason)) => Err(format!("the executors at {address}: {reason}")),
        Ok(_) | Err(_) => Err(format!("the executors at {address} answer something else")),
    }
}

/// The program's area.
struct ProgramArea;

impl AreaRole for ProgramArea {
    fn aside(&self, _: Area) -> Option<RelayMessage> {
        None
    }

    fn notice(&self, area: Area, message: RelayMessage) -> Result<(), SessionEnd> {
        match message {
            RelayMessage::State(state) => area.set_state(state),
            RelayMessage::Load(load) => area.set_call_load(&load),
            RelayMessage::Ended(reason) => return Err(SessionEnd::Ended(reason)),
            _ => return Err(SessionEnd::Broken("a message that only the other end gets")),
        }
        Ok(())
    }
}
