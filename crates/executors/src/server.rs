//! The role's thread. The steps are at the head of the crate; what can be decided without the operating system is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bare::system_call::pause;
use base::rt;
use pushdown::{ProcessorFeatures, ProgramElsewhere, REQUEST_BYTES_MAX, RoleNotice, RoleRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::admission::{Applicant, OpenExecutors, Refusal, admit};
use crate::area_file::area_and_socket;
use crate::ending::{ExitStatus, KillCause, ending};
use crate::error::ExecutorsError;
use crate::events;
use crate::groups::{ExecutorGroup, Groups};
use crate::launch::{ExecutorProcess, Launcher};
use crate::member::{Change, Member, MemberParts};
use crate::owners::Owners;
use crate::peer::{ClientIdentity, program_name};
use crate::published::{Published, Wish};
use crate::settings::{ExecutorsSettings, OwnersAllowed};
use crate::socket::{Listener, Received, receive, tell};
use crate::strangers::{StrangerId, Strangers};
use crate::view::{ExecutorCondition, RoleView, shown_name};

/// How often the role looks at executors.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// For how long killed executors may take to end when the role does.
const END_MAX: Duration = Duration::from_secs(5);

/// For how long executors of a role that was killed may take to end, and how often it is looked, in microseconds.
const LEFT_BEHIND_MAX: Duration = Duration::from_secs(1);
const LEFT_BEHIND_PAUSE_US: i64 = 20_000;

/// What a descriptor is that the role waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Wake,
    Listener,
    Stranger(StrangerId),
    Control(usize),
    Program(usize),
    Process(usize),
}

/// An executor that has just been started.
struct StartedExecutor {
    slot: usize,
    area: OwnedFd,
    process: ExecutorProcess,
    group: Option<ExecutorGroup>,
}

/// The role.
pub(crate) struct Server {
    settings: ExecutorsSettings,
    launcher: Launcher,
    listener: Listener,
    features: ProcessorFeatures,
    published: Arc<Published>,
    strangers: Strangers,
    connections: BTreeMap<StrangerId, (OwnedFd, ClientIdentity)>,
    /// By slot.
    members: BTreeMap<usize, Member>,
    groups: Groups,
    owners: Owners,
    /// When the grace is over, once the role stops.
    stops_at: Option<Duration>,
    looked_at: Duration,
    accepts_at: Duration,
    start: rt::Instant,
}

impl Server {
    /// # Errors
    /// [`ExecutorsError`].
    pub(crate) fn new(settings: ExecutorsSettings, published: Arc<Published>) -> Result<Server, ExecutorsError> {
        settings.check()?;
        let launcher = Launcher::new(&settings)?;
        let is_for_others = settings.owners != OwnersAllowed::Own;
        if is_for_others && !settings.has_namespaces && launcher.own_user() != 0 {
            return Err(ExecutorsError::Setting(
                "executors of several owners need namespaces, or a role that runs as root: otherwise all of them would run as \
                 one user"
                    .to_owned(),
            ));
        }
        let listener = Listener::new(&settings.socket, is_for_others)?;
        let path = std::path::absolute(&settings.socket).unwrap_or_else(|_| settings.socket.clone());
        let prefix = format!("heddle-executors-{:016x}", stable_hash(path.as_os_str().as_encoded_bytes()));
        let groups = Groups::new(prefix, &settings);
        let mut server = Server {
            settings,
            launcher,
            listener,
            features: ProcessorFeatures::of_this_machine(),
            published,
            strangers: Strangers::default(),
            connections: BTreeMap::new(),
            members: BTreeMap::new(),
            groups,
            owners: Owners::default(),
            stops_at: None,
            looked_at: Duration::ZERO,
            accepts_at: Duration::ZERO,
            start: rt::now(),
        };
        // Said at the start, rather than to the first program.
        if let Some(group) = server.make_first_group().map_err(ExecutorsError::Limits)? {
            server.groups.remove(0, group);
        }
        server.publish();
        Ok(server)
    }

    /// Runs until it was asked to stop, and everything has ended.
    pub(crate) fn run(&mut self) {
        loop {
            let sources = self.wait();
            for source in sources {
                self.handle(source);
            }
            let now = self.now();
            for late in self.strangers.expire(now) {
                self.close_stranger(late);
            }
            if now.saturating_sub(self.looked_at) >= LOOK_EVERY {
                self.look();
            }
            match self.published.wish() {
                Wish::Run => {}
                Wish::Stop => {
                    let stops_at = *self.stops_at.get_or_insert(now.saturating_add(self.settings.grace));
                    self.look();
                    if now >= stops_at || !self.members.values().any(Member::is_busy) {
                        break;
                    }
                }
                Wish::End => break,
            }
        }
        self.end_all();
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Sleeps until something has happened, or something is due. Returns what has happened.
    fn wait(&self) -> Vec<Source> {
        let now = self.now();
        let is_watching = !self.members.is_empty() || self.groups.has_left(None) || self.stops_at.is_some();
        let look = is_watching.then(|| self.looked_at.saturating_add(LOOK_EVERY));
        let accept = (self.accepts_at > now).then_some(self.accepts_at);
        let until = [look, accept, self.strangers.next_end()].into_iter().flatten().min();
        let pause = until.map(|at| at.saturating_sub(now));
        let mut waited_for = vec![(Source::Wake, self.published.wake())];
        for (id, (connection, _)) in &self.connections {
            waited_for.push((Source::Stranger(*id), connection));
        }
        for (slot, member) in &self.members {
            waited_for.push((Source::Process(*slot), member.parts.process.descriptor()));
            // Of a killed one nothing else is of interest.
            if member.cause().is_none() {
                waited_for.push((Source::Control(*slot), &member.parts.control));
                if let Some(program) = &member.parts.program_process {
                    waited_for.push((Source::Program(*slot), program));
                }
            }
        }
        let mut sources: Vec<Source> = waited_for.iter().map(|(source, _)| *source).collect();
        let mut polls: Vec<PollFd<'_>> = waited_for.iter().map(|(_, file)| PollFd::new(*file, PollFlags::IN)).collect();
        if accept.is_none() {
            sources.push(Source::Listener);
            polls.push(PollFd::from_borrowed_fd(self.listener.file(), PollFlags::IN));
        }
        // Rounded up, so that what is due is due when this returns.
        let pause = pause.map(|pause| pause.saturating_add(Duration::from_micros(1)));
        let pause =
            pause.map(|pause| Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) });
        if poll(&mut polls, pause.as_ref()).is_err() {
            // A signal.
            return Vec::new();
        }
        sources
            .into_iter()
            .zip(&polls)
            .filter(|(_, poll)| !poll.revents().is_empty())
            .map(|(source, _)| source)
            .collect()
    }

    fn handle(&mut self, source: Source) {
        match source {
            Source::Wake => self.published.clear_wake(),
            Source::Listener => self.accept(),
            Source::Stranger(id) => self.greet(id),
            Source::Control(slot) => {
                if let Some(member) = self.members.get_mut(&slot) {
                    match receive(&member.parts.control, REQUEST_BYTES_MAX) {
                        Ok(None) => {}
                        Ok(Some(received)) if !received.bytes.is_empty() => member.kill(KillCause::Broken),
                        Ok(Some(_)) | Err(_) => member.kill(KillCause::Closed),
                    }
                }
            }
            Source::Program(slot) => {
                if let Some(member) = self.members.get_mut(&slot) {
                    member.kill(KillCause::ProgramEnded);
                }
            }
            Source::Process(slot) => self.bury(slot),
        }
    }

    /// Takes a connection.
    fn accept(&mut self) {
        let now = self.now();
        let Some((connection, client)) = self.listener.accept() else {
            // It may be out of descriptors.
            self.accepts_at = now.saturating_add(ACCEPT_PAUSE);
            return;
        };
        let (id, displaced) = self.strangers.add(client.user, now);
        self.connections.insert(id, (connection, client));
        if let Some(displaced) = displaced {
            self.close_stranger(displaced);
        }
    }

    fn close_stranger(&mut self, id: StrangerId) {
        if self.connections.remove(&id).is_some() {
            events::StrangersClosed.add(1);
        }
    }

    /// A stranger has sent something, or has gone.
    fn greet(&mut self, id: StrangerId) {
        let Some((connection, _)) = self.connections.get(&id) else { return };
        let received = match receive(connection, REQUEST_BYTES_MAX) {
            Ok(None) => return,
            Ok(Some(received)) if !received.bytes.is_empty() => received,
            Ok(Some(_)) | Err(_) => return self.close_stranger(id),
        };
        self.strangers.remove(id);
        let Some((connection, mut client)) = self.connections.remove(&id) else { return };
        let mut name = None;
        let started = match RoleRequest::decode(&received.bytes) {
            Ok(RoleRequest::Show { .. }) => {
                let view = self.view_for(client.user);
                return tell(&connection, &RoleNotice::Shown(view.encode()).encode());
            }
            Ok(RoleRequest::Hello(hello, elsewhere)) => {
                let relay = elsewhere.is_some().then_some(client.user);
                if let Some(ProgramElsewhere { user, group, process, name: of_program }) = elsewhere {
                    client = ClientIdentity { user, group, process, ..client };
                    name = Some(shown_name(&of_program));
                }
                let applicant = Applicant { owner: client.user, relay, hello, descriptors: received.files_sent };
                self.start_executor(&applicant, &client, received)
            }
            Err(error) => Err(Refusal::Malformed(error.to_string())),
        };
        match started {
            Ok(StartedExecutor { slot, area, process, group }) => {
                tell(&connection, &RoleNotice::Started { process: process.number(), is_elsewhere: false }.encode());
                let (number, program, owner) = (process.number(), client.process, client.user);
                tracing::info!("executor {number} serves program {program} of user {owner}");
                let parts = MemberParts {
                    owner,
                    program,
                    program_process: client.descriptor,
                    name: name.unwrap_or_else(|| program_name(program)),
                    control: connection,
                    area,
                    process,
                    group,
                    silence_max: self.settings.silence,
                    memory_limit_bytes: self.settings.memory_bytes,
                };
                self.members.insert(slot, Member::new(parts, self.now()));
                events::ExecutorsStarted.add(1);
                self.look();
            }
            Err(refusal) => {
                refusal.counter().add(1);
                tracing::info!("user {} gets no executor: {refusal}", client.user);
                tell(&connection, &RoleNotice::Refused(refusal.to_string()).encode());
            }
        }
    }

    /// Starts an executor, if the program may have one.
    fn start_executor(
        &mut self,
        applicant: &Applicant,
        client: &ClientIdentity,
        received: Received,
    ) -> Result<StartedExecutor, Refusal> {
        let (area, socket) = self.check(applicant, received)?;
        let is_free = |slot: &usize| !self.members.contains_key(slot) && !self.groups.has_left(Some(*slot));
        let slot = (0..).find(is_free).unwrap_or(usize::MAX);
        let group = self.groups.make(slot, applicant.owner).map_err(Refusal::Start)?;
        match self.launcher.launch(client, &area, &socket, group.as_ref().map(ExecutorGroup::limited)) {
            Ok(process) => Ok(StartedExecutor { slot, area, process, group }),
            Err(reason) => {
                if let Some(group) = group {
                    self.groups.remove(slot, group);
                }
                tracing::warn!("no executor can be started: {reason}");
                Err(Refusal::Start(reason))
            }
        }
    }

    /// Whether a program gets an executor; then its area and its executor's socket.
    fn check(&self, applicant: &Applicant, received: Received) -> Result<(OwnedFd, OwnedFd), Refusal> {
        if self.published.wish() != Wish::Run {
            return Err(Refusal::Stopping);
        }
        let of_owner = self.members.values().filter(|member| member.parts.owner == applicant.owner).count();
        let open = OpenExecutors { all: self.members.len(), of_owner };
        admit(&self.settings, self.launcher.own_user(), self.features, applicant, open)?;
        area_and_socket(received.files, received.files_sent)
    }

    /// Makes the group of the first slot. Executors of a role that was killed may be ending there.
    fn make_first_group(&mut self) -> Result<Option<ExecutorGroup>, String> {
        let end = self.now().saturating_add(LEFT_BEHIND_MAX);
        loop {
            match self.groups.make(0, self.launcher.own_user()) {
                Err(_) if self.now() < end => pause(LEFT_BEHIND_PAUSE_US),
                made => return made,
            }
        }
    }

    /// An executor has ended.
    fn bury(&mut self, slot: usize) {
        let Some(member) = self.members.get_mut(&slot) else { return };
        let Some(status) = member.parts.process.ended() else { return };
        self.close_member(slot, status);
    }

    fn close_member(&mut self, slot: usize, status: ExitStatus) {
        let Some(mut member) = self.members.remove(&slot) else { return };
        let now = self.now();
        let owner = self.owners.of(member.parts.owner);
        member.settle(now, owner);
        let ending = ending(member.cause(), status, member.memory_shortage(), self.settings.bounds());
        ending.counter.add(1);
        let (process, program) = (member.parts.process.number(), member.parts.program);
        tracing::info!("executor {process} of program {program} has ended: {}", ending.reason);
        if let Some(group) = member.parts.group.take() {
            self.groups.remove(slot, group);
        }
        // First, so that a program which was told why sees numbers that agree.
        self.publish();
        tell(&member.parts.control, &RoleNotice::Ended(ending.reason).encode());
    }

    /// Looks at all executors.
    fn look(&mut self) {
        let now = self.now();
        self.looked_at = now;
        for member in self.members.values_mut() {
            let change = member.look(now, self.owners.of(member.parts.owner));
            let (process, owner, program) = (member.parts.process.number(), member.parts.owner, member.parts.program);
            match change {
                Change::None => {}
                Change::Sickened(silence) => tracing::warn!(
                    "executor {process} of program {program} of user {owner} has not answered for {} ms",
                    silence.as_millis()
                ),
                Change::Recovered => tracing::info!("executor {process} of program {program} answers again"),
                Change::Killed(_) => {
                    tracing::warn!("executor {process} of program {program} of user {owner} is killed");
                }
            }
        }
        self.groups.tidy();
        self.publish();
    }

    /// Ends all executors, and tells their programs.
    fn end_all(&mut self) {
        for member in self.members.values_mut() {
            member.kill(KillCause::Stopping);
        }
        let end = self.now().saturating_add(END_MAX);
        // What else happens is of no interest any more, and would only wake this thread.
        self.connections.clear();
        self.strangers = Strangers::default();
        self.accepts_at = end;
        while !self.members.is_empty() && self.now() < end {
            let sources = self.wait();
            let ended: BTreeSet<usize> = sources
                .into_iter()
                .filter_map(|source| match source {
                    Source::Process(slot) => Some(slot),
                    _ => None,
                })
                .collect();
            self.published.clear_wake();
            self.looked_at = self.now();
            ended.into_iter().for_each(|slot| self.bury(slot));
        }
        self.groups.tidy();
        self.publish();
    }

    /// What a user may see.
    fn view_for(&mut self, user: u32) -> RoleView {
        let now = self.now();
        for member in self.members.values_mut() {
            let owner = self.owners.of(member.parts.owner);
            member.measure(now, owner);
        }
        let mut view = self.view();
        if user != 0 && user != self.launcher.own_user() {
            view.executors.retain(|executor| executor.owner == user);
        }
        view
    }

    fn view(&self) -> RoleView {
        let now = self.now();
        let mut executors: Vec<_> = self.members.values().map(|member| member.view(now)).collect();
        executors.sort_by_key(|executor| std::cmp::Reverse(executor.age_ms));
        let executors_max = u32::try_from(self.settings.executors_max).unwrap_or(u32::MAX);
        RoleView { is_stopping: self.stops_at.is_some(), executors_max, executors }
    }

    /// Sets what is there at this moment, for metrics and for others of this process.
    fn publish(&mut self) {
        self.owners.clear_levels();
        let (mut conditions, mut running, mut waiting, mut contexts, mut memory) = ([0; 4], 0, 0, 0, 0);
        for member in self.members.values() {
            conditions[member.condition() as usize] += 1;
            let (runs, waits) = member.running_and_waiting();
            running += i64::from(runs);
            waiting += i64::from(waits);
            contexts += i64::from(member.contexts());
            let bytes = member.memory_bytes().unwrap_or(0);
            memory += i64::try_from(bytes).unwrap_or(0);
            let used = self.owners.of(member.parts.owner);
            used.open += 1;
            used.memory_bytes = used.memory_bytes.saturating_add(bytes);
        }
        for (condition, gauge) in [
            (ExecutorCondition::Starting, &events::ExecutorsStarting),
            (ExecutorCondition::Serving, &events::ExecutorsServing),
            (ExecutorCondition::Sick, &events::ExecutorsSick),
            (ExecutorCondition::Ending, &events::ExecutorsEnding),
        ] {
            gauge.set(conditions[condition as usize]);
        }
        events::ContextsRunning.set(running);
        events::CallsWaiting.set(waiting);
        events::Contexts.set(contexts);
        events::MemoryBytes.set(memory);
        let view = self.view();
        self.published.publish(view, &self.owners);
    }
}

/// A number of some bytes that is the same in each run and each release (FNV-1a).
fn stable_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
