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
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// For how long it may take to start an executor.
const START_TIME_MAX: Duration = Duration::from_secs(20);
/// For how long the end of a program is waited for once its area has ended, before the area counts as broken; and for how long the other end may take to
/// take the last message.
const LAST_TIME_MAX: Duration = Duration::from_secs(1);
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
    /// By user.
    programs: BTreeMap<u32, usize>,
}

/// A program with a session has its place until this is dropped.
struct SessionPlace(Arc<ProgramEndState>, u32);

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
        if settings.programs_max == 0 || settings.per_owner_max == 0 {
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

    /// A place for a session of a user.
    ///
    /// # Errors
    /// There is none, for this reason.
    fn take_place(self: &Arc<ProgramEndState>, user: u32) -> Result<SessionPlace, String> {
        let ProgramEndSettings { programs_max, per_owner_max, .. } = self.settings;
        let mut places = self.places();
        if places.programs.values().sum::<usize>() >= programs_max {
            return Err(format!("there are {programs_max} programs, as many as there may be (--programs-max)"));
        }
        let of_user = places.programs.entry(user).or_default();
        if *of_user >= per_owner_max {
            return Err(format!(
                "user {user} has {per_owner_max} programs, as many as one user may have (--per-owner)"
            ));
        }
        *of_user += 1;
        events::RelaySessions.add(1);
        Ok(SessionPlace(Arc::clone(self), user))
    }
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        let mut places = self.0.places();
        if let Some(of_user) = places.programs.get_mut(&self.1) {
            *of_user -= 1;
            if *of_user == 0 {
                places.programs.remove(&self.1);
            }
        }
        events::RelaySessions.add(-1);
    }
}

async fn accept_all(shared: Arc<ProgramEndState>, socket: Watched<ProgramSocket>) {
    let mut sessions: Vec<AbortOnDrop<()>> = Vec::new();
    loop {
        let program = match rt::timeout(ACCEPT_AGAIN, socket.read(ProgramSocket::accept)).await {
            Ok(Ok(program)) => program,
            Ok(Err(_)) => return,
            // This process may have been out of descriptors, and nothing says when it has some again.
            Err(_) => match socket.get().accept() {
                Some(program) => program,
                None => continue,
            },
        };
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
    let mut ended = tokio::select! {
        biased;
        () = gone(&program, process.as_ref()) => SessionEnd::ProgramEnded,
        ended = pump(&end, &sender, &mut receiver) => ended,
    };
    // A program that ends closes its descriptors one after the other.
    if ended == SessionEnd::AreaLost && rt::timeout(LAST_TIME_MAX, gone(&program, process.as_ref())).await.is_ok() {
        ended = SessionEnd::ProgramEnded;
    }
    if ended == SessionEnd::ProgramEnded {
        let last = RelayMessage::Ended("the program has ended".to_owned()).encode();
        let _ = rt::timeout(LAST_TIME_MAX, sender.send(last)).await;
        return;
    }
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
        SessionEnd::AreaLost | SessionEnd::ProgramEnded => {
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
    let ProgramEndSettings { address, organisation, owners, .. } = &shared.settings;
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
    let place = shared.take_place(user)?;
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
    let (process, name) = (program.process(), program.name());
    let memory_pages = end.area().memory_pages().unwrap_or(0);
    let hello = RelayMessage::Hello { process, memory_pages, name, request: bytes };
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
