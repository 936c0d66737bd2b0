//! The end beside the role.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
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
use crate::pump::{SessionEnd, pump};
use crate::settings::{ExecutorsEndSettings, HELLO_TIME_MAX, Tenant};
use crate::watched::Watched;

/// For how long the role may take to start an executor.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// How often it is looked whether an executor is ready.
const LOOK_EVERY: Duration = Duration::from_millis(1);
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
}

/// A session counts until this is dropped.
struct Counted;

impl Counted {
    fn new() -> Counted {
        events::RelaySessions.add(1);
        Counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
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
        if let Some((name, _)) = settings.tenants.iter().find(|(_, tenant)| tenant.user == 0) {
            return Err(RelayError::Setting(format!(
                "programs of {name} would have executors of root; name another user of this host"
            )));
        }
        if settings.tenants.is_empty() {
            return Err(RelayError::Setting("no organisation may have executors; name one".to_owned()));
        }
        let parties = Parties::of(settings.tenants.keys().cloned());
        let acceptor = LinkAcceptor::open(&settings.listen, &parties, settings.links_max).await;
        let acceptor = acceptor.map_err(|source| RelayError::Listen { address: settings.listen.clone(), source })?;
        let address = acceptor.address().to_owned();
        let running = rt::spawn(accept_all(Arc::new(settings), acceptor)).abort_on_drop();
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

async fn accept_all(settings: Arc<ExecutorsEndSettings>, mut acceptor: LinkAcceptor) {
    let mut sessions: Vec<AbortOnDrop<()>> = Vec::new();
    while let Ok((link, permit)) = acceptor.accept().await {
        sessions.retain(|session| !session.is_finished());
        sessions.push(rt::spawn(serve(Arc::clone(&settings), link, permit)).abort_on_drop());
    }
}

/// A link, from its acceptance to the end of its session.
async fn serve(settings: Arc<ExecutorsEndSettings>, mut link: Link, permit: LinkPermit) {
    let organisation = link.peer().unwrap_or_default().to_owned();
    let hello = tokio::select! {
        biased;
        () = permit.displaced().cancelled() => return,
        hello = rt::timeout(HELLO_TIME_MAX, link.receive()) => hello,
    };
    let Ok(Ok(hello)) = hello else { return };
    // A link that ends meanwhile is noticed afterwards: starting takes a moment.
    let session = match open(&settings, &organisation, RelayMessage::decode(hello).ok()).await {
        Ok(session) => session,
        Err(reason) => {
            events::RelayRefused.add(1);
            tracing::info!("a program of {organisation} gets no executor: {reason}");
            let _ = link.send(RelayMessage::Refused(reason).encode()).await;
            return;
        }
    };
    events::RelayStarted.add(1);
    let _counted = Counted::new();
    let (sender, mut receiver) = link.split();
    let run = async {
        sender.send(RelayMessage::Started(session.process).encode()).await?;
        tokio::select! {
            biased;
            ended = watch_role(&session.role) => Ok(ended),
            ended = say_more(&session, &sender) => ended,
            ended = pump(&session.end, &sender, &mut receiver) => Ok(ended),
        }
    };
    let ended = tokio::select! {
        biased;
        () = permit.displaced().cancelled() => SessionEnd::LinkLost,
        ended = run => ended.unwrap_or_else(|end: SessionEnd| end),
    };
    let process = session.process;
    match ended {
        SessionEnd::Ended(reason) => {
            let _ = sender.send(RelayMessage::Ended(reason).encode()).await;
        }
        // The role says why, if the executor has ended; otherwise it ends the executor.
        SessionEnd::AreaLost => {
            let said = rt::timeout(Duration::from_secs(1), watch_role(&session.role)).await;
            let reason = match said {
                Ok(SessionEnd::Ended(reason)) => reason,
                _ => "the executor has broken the rules of its area".to_owned(),
            };
            let _ = sender.send(RelayMessage::Ended(reason).encode()).await;
        }
        SessionEnd::LinkLost => {
            events::RelayLinksLost.add(1);
            tracing::info!("executor {process} of {organisation} has lost the link to its program");
        }
        SessionEnd::Broken(what) => {
            events::RelayBroken.add(1);
            tracing::warn!("the relay of {organisation} has sent {what}; executor {process} ends");
        }
    }
}

/// Step 3.
async fn open(
    settings: &ExecutorsEndSettings,
    organisation: &str,
    hello: Option<RelayMessage>,
) -> Result<Session, String> {
    let Some(RelayMessage::Hello { process, name, request }) = hello else {
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
    // The program's vdso is for the clock of its own host, and so is a link that it imitates.
    end.area().prepare(hello.contexts, 0, Shape::default(), None);
    let name = format!("{name}@{organisation}");
    let request = RoleRequest::Hello(hello, Some(ProgramElsewhere { user, group, process, name }));
    let role = RoleConnection::ask(&settings.role, &request, &area, &theirs.into()).map_err(system("the role"))?;
    let role = Watched::new(role).map_err(system("the role"))?;
    match rt::timeout(START_TIME_MAX, next_notice(&role)).await {
        Ok(Ok(RoleNotice::Started { process, .. })) => Ok(Session { end, role, process }),
        Ok(Ok(RoleNotice::Refused(reason) | RoleNotice::Ended(reason))) => Err(reason),
        Ok(Ok(RoleNotice::Shown(_))) => Err("the role answers something else".to_owned()),
        Ok(Err(error)) => Err(format!("the role: {error}")),
        Err(_) => Err("the role does not answer".to_owned()),
    }
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

    fn notice(&self, _: Area, _: RelayMessage) -> Result<(), SessionEnd> {
        Err(SessionEnd::Broken("a message that only the other end gets"))
    }
}
