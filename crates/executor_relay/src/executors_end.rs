//! The end beside the role.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::rt::net::{Link, LinkAcceptor, LinkPermit, LinkSender, Parties};
use base::rt::{self, AbortOnDrop};
use executors::relay::RoleConnection;
use pushdown::{Area, CallLoad, ExecutorState, ProgramElsewhere, RoleNotice, RoleRequest, Shape, Side, area_file};

use crate::area_end::{AreaEnd, AreaRole};
use crate::error::RelayError;
use crate::events;
use crate::message::RelayMessage;
use crate::pump::{SessionEnd, pump, send_rest};
use crate::settings::{ExecutorsEndSettings, HELLO_TIME_MAX, Tenant};
use crate::watched::Watched;

/// For how long the role may take to start an executor.
const START_TIME_MAX: Duration = Duration::from_secs(15);
/// Links of an organisation beside those with sessions.
const SPARE_LINKS: usize = 32;
/// For how long what was said last may take.
const LAST_TIME_MAX: Duration = Duration::from_secs(2);
/// How often the role is asked again that has no room for a connection, and after which time.
const ROLE_TURNS: u32 = 100;
const ROLE_PAUSE: Duration = Duration::from_millis(10);
/// How often it is looked whether an executor is ready.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Linux has no longer names of programs.
const PROGRAM_NAME_CHARS_MAX: usize = 15;
/// How often the executor's load is sent, if it has changed.
const LOAD_EVERY: Duration = Duration::from_millis(100);

/// The end beside the role. Its sessions end when it is dropped.
pub struct ExecutorsEnd {
    running: AbortOnDrop<()>,
    address: String,
}

/// An executor of a program on another host.
struct Session {
    end: AreaEnd<ExecutorArea>,
    role: Watched<RoleConnection>,
    process: u32,
    /// The program knows how far the executor is.
    has_said_state: AtomicBool,
}

struct ExecutorsEndState {
    settings: ExecutorsEndSettings,
    /// Sessions, by organisation.
    sessions: Mutex<BTreeMap<String, usize>>,
}

/// A session has its place until this is dropped.
struct TenantPlace {
    state: Arc<ExecutorsEndState>,
    organisation: String,
}

impl ExecutorsEndState {
    /// A place for a session of an organisation, if it has one left.
    fn take_place(self: &Arc<ExecutorsEndState>, organisation: &str) -> Option<TenantPlace> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let of_organisation = sessions.entry(organisation.to_owned()).or_default();
        (*of_organisation < self.settings.per_tenant_max).then(|| {
            *of_organisation += 1;
            events::RelaySessions.add(1);
            TenantPlace { state: Arc::clone(self), organisation: organisation.to_owned() }
        })
    }
}

impl Drop for TenantPlace {
    fn drop(&mut self) {
        let mut sessions = self.state.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_organisation) = sessions.get_mut(&self.organisation) {
            *of_organisation -= 1;
        }
        events::RelaySessions.add(-1);
    }
}

impl ExecutorsEnd {
    /// Listens for relays of other hosts. To be called within the runtime.
    ///
    /// # Errors
    /// [`RelayError`] says what is wrong with the address or a setting.
    pub async fn start(settings: ExecutorsEndSettings) -> Result<ExecutorsEnd, RelayError> {
        base::event::register(events::EVENTS);
        // The kernel means *no change* by the largest number, and a role that is root would stay root.
        let is_root = |number: u32| number == 0 || number == u32::MAX;
        let wrong = settings.tenants.iter().find(|(_, tenant)| is_root(tenant.user) || is_root(tenant.group));
        if let Some((name, _)) = wrong {
            return Err(RelayError::Setting(format!(
                "programs of {name} would have executors of root; name another user and group of this host"
            )));
        }
        if settings.tenants.is_empty() {
            return Err(RelayError::Setting("no organisation may have executors; name one".to_owned()));
        }
        let parties = Parties::of(settings.tenants.keys().cloned());
        // A new link displaces the oldest one of its identity or organisation. There is room for as many as have sessions, and more.
        let links = settings.per_tenant_max.saturating_mul(2).saturating_add(SPARE_LINKS);
        let links = links.saturating_mul(settings.tenants.len());
        let acceptor = LinkAcceptor::open(&settings.listen, &parties, links).await;
        let acceptor = acceptor.map_err(|source| RelayError::Listen { address: settings.listen.clone(), source })?;
        let address = acceptor.address().to_owned();
        let state = ExecutorsEndState { settings, sessions: Mutex::default() };
        let running = rt::spawn(accept_all(Arc::new(state), acceptor)).abort_on_drop();
        Ok(ExecutorsEnd { running, address })
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Completes when it has ended, which it does only by a panic.
    pub async fn ended(&mut self) {
        let _ = (&mut self.running).await;
    }
}

async fn accept_all(state: Arc<ExecutorsEndState>, mut acceptor: LinkAcceptor) {
    let mut sessions: Vec<AbortOnDrop<()>> = Vec::new();
    while let Ok((link, permit)) = acceptor.accept().await {
        sessions.retain(|session| !session.is_finished());
        sessions.push(rt::spawn(serve(Arc::clone(&state), link, permit)).abort_on_drop());
    }
}

/// A link, from its acceptance to the end of its session.
async fn serve(state: Arc<ExecutorsEndState>, link: Link, permit: LinkPermit) {
    // Whatever it waits for, it gives way.
    tokio::select! {
        biased;
        () = permit.displaced().cancelled() => {}
        () = run(&state, link) => {}
    }
}

async fn run(state: &Arc<ExecutorsEndState>, mut link: Link) {
    let organisation = link.peer().unwrap_or_default().to_owned();
    let Ok(Ok(hello)) = rt::timeout(HELLO_TIME_MAX, link.receive()).await else { return };
    let opened = match state.take_place(&organisation) {
        // A link that ends meanwhile is noticed afterwards: starting takes a moment.
        Some(place) => {
            open(&state.settings, &organisation, RelayMessage::decode(hello).ok()).await.map(|session| (session, place))
        }
        None => Err(format!(
            "{organisation} has {} programs here, as many as one organisation may have (--per-tenant)",
            state.settings.per_tenant_max
        )),
    };
    let (session, _place) = match opened {
        Ok(opened) => opened,
        Err(reason) => {
            events::RelayRefused.add(1);
            tracing::info!("a program of {organisation} gets no executor: {reason}");
            let _ = rt::timeout(LAST_TIME_MAX, link.send(RelayMessage::Refused(reason).encode())).await;
            return;
        }
    };
    events::RelayStarted.add(1);
    let (sender, mut receiver) = link.split();
    let carried = async {
        sender.send(RelayMessage::Started(session.process).encode()).await?;
        tokio::select! {
            biased;
            ended = watch_role(&session.role) => Ok(ended),
            ended = say_more(&session, &sender) => ended,
            ended = pump(&session.end, &sender, &mut receiver) => Ok(ended),
        }
    };
    let ended = carried.await.unwrap_or_else(|end: SessionEnd| end);
    let process = session.process;
    match ended {
        SessionEnd::Ended(reason) => say_last(&session, &sender, reason).await,
        // The role says why, if the executor has ended; otherwise it ends the executor.
        SessionEnd::AreaLost => {
            let said = rt::timeout(Duration::from_secs(1), watch_role(&session.role)).await;
            let reason = match said {
                Ok(SessionEnd::Ended(reason)) => reason,
                _ => {
                    events::RelayBroken.add(1);
                    "the executor has broken the rules of its area".to_owned()
                }
            };
            say_last(&session, &sender, reason).await;
        }
        SessionEnd::LinkLost => {
            events::RelayLinksLost.add(1);
            tracing::info!("executor {process} of {organisation} has lost the link to its program");
        }
        SessionEnd::ProgramEnded => tracing::info!("the program of executor {process} of {organisation} has ended"),
        SessionEnd::Broken(what) => {
            events::RelayBroken.add(1);
            tracing::warn!("the relay of {organisation} has sent {what}; executor {process} ends");
        }
    }
}

/// Sends what the executor has said before it ended, and why it did. A link that takes nothing is not waited for.
async fn say_last(session: &Session, sender: &LinkSender, reason: String) {
    let said = async {
        if !session.has_said_state.load(Ordering::Relaxed) {
            sender.send(RelayMessage::State(session.end.area().state()).encode()).await?;
        }
        // What is impossible in the area is left there.
        let _ = send_rest(&session.end, sender).await;
        sender.send(RelayMessage::Ended(reason).encode()).await
    };
    let _ = rt::timeout(LAST_TIME_MAX, said).await;
}

/// Step 3.
async fn open(
    settings: &ExecutorsEndSettings,
    organisation: &str,
    hello: Option<RelayMessage>,
) -> Result<Session, String> {
    let Some(RelayMessage::Hello { process, memory_pages, name, request }) = hello else {
        return Err("the link begins with something else than a hello".to_owned());
    };
    let Ok(RoleRequest::Hello(hello, None)) = RoleRequest::decode(&request) else {
        return Err("the program's hello is malformed".to_owned());
    };
    let tenant = settings.tenants.get(organisation);
    let Tenant { user, group } = *tenant.ok_or_else(|| format!("no user stands for {organisation:?} here"))?;
    let system = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let area = OwnedFd::from(area_file().map_err(system("an area"))?);
    let (ours, theirs) = UnixStream::pair().map_err(system("a socket"))?;
    let end = AreaEnd::new(&area, Side::Caller, ours.into(), ExecutorArea::default()).map_err(system("an area"))?;
    // The program's vdso, and a link that it imitates, count in its own host's clock, so this area has neither.
    let memory_pages = Some(memory_pages).filter(|pages| *pages > 0);
    end.area().prepare(hello.contexts, 0, Shape::default(), memory_pages);
    let name = shown_as(&name, organisation);
    let request = RoleRequest::Hello(hello, Some(ProgramElsewhere { user, group, process, name }));
    let theirs = OwnedFd::from(theirs);
    let mut turn = 0;
    let role = loop {
        turn += 1;
        match RoleConnection::ask(&settings.role, &request, &area, &theirs) {
            // Others wait to be accepted, as many as may.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && turn < ROLE_TURNS => rt::sleep(ROLE_PAUSE).await,
            asked => break asked.map_err(system("the role"))?,
        }
    };
    let role = Watched::new(role).map_err(system("the role"))?;
    match rt::timeout(START_TIME_MAX, next_notice(&role)).await {
        Ok(Ok(RoleNotice::Started { process, .. })) => {
            Ok(Session { end, role, process, has_said_state: AtomicBool::new(false) })
        }
        Ok(Ok(RoleNotice::Refused(reason) | RoleNotice::Ended(reason))) => Err(reason),
        Ok(Ok(RoleNotice::Shown(_))) => Err("the role answers something else".to_owned()),
        Ok(Err(error)) => Err(format!("the role: {error}")),
        Err(_) => Err("the role does not answer".to_owned()),
    }
}

/// What a program of another host is called here: the kernel's name for it, which cannot pass for an organisation's, and its organisation.
fn shown_as(name: &str, organisation: &str) -> String {
    let name: String = name.chars().take(PROGRAM_NAME_CHARS_MAX).map(|c| if c == '@' { '_' } else { c }).collect();
    format!("{name}@{organisation}")
}

/// The next thing that the role says.
async fn next_notice(role: &Watched<RoleConnection>) -> io::Result<RoleNotice> {
    role.read(|role| role.receive().transpose()).await?
}

/// Completes when the executor has ended, with the role's reason.
async fn watch_role(role: &Watched<RoleConnection>) -> SessionEnd {
    SessionEnd::Ended(match next_notice(role).await {
        Ok(RoleNotice::Ended(reason)) => reason,
        Ok(_) => "the role executors has sent what it must not send".to_owned(),
        Err(_) => "the role executors has ended".to_owned(),
    })
}

/// Says when the executor can be called, and then what it says of its calls (steps 4 and 6).
async fn say_more(session: &Session, sender: &LinkSender) -> Result<SessionEnd, SessionEnd> {
    let state = loop {
        match session.end.area().state() {
            ExecutorState::Starting => rt::sleep(LOOK_EVERY).await,
            state => break state,
        }
    };
    session.has_said_state.store(true, Ordering::Relaxed);
    sender.send(RelayMessage::State(state).encode()).await?;
    // What changes while nothing is sent.
    loop {
        rt::sleep(LOAD_EVERY).await;
        if let Some(load) = session.end.role.aside(session.end.area()) {
            sender.send(load.encode()).await?;
        }
    }
}

/// The executor's area.
#[derive(Default)]
struct ExecutorArea {
    /// What was said last.
    said: Mutex<CallLoad>,
}

impl AreaRole for ExecutorArea {
    /// The load, if it has changed: what a program reads after a call counts the call.
    fn aside(&self, area: Area) -> Option<RelayMessage> {
        let load = area.call_load();
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::replace(&mut *said, load) != load).then_some(RelayMessage::Load(load))
    }

    fn notice(&self, _: Area, message: RelayMessage) -> Result<(), SessionEnd> {
        Err(match message {
            RelayMessage::Ended(_) => SessionEnd::ProgramEnded,
            _ => SessionEnd::Broken("a message that only the other end gets"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_cannot_be_shown_as_another_organisations() {
        assert_eq!(shown_as("analyse", "Org1"), "analyse@Org1");
        assert_eq!(shown_as("x@Org2", "Org1"), "x_Org2@Org1");
        assert_eq!(shown_as(&"x".repeat(64), "Org1"), "xxxxxxxxxxxxxxx@Org1");
    }
}
