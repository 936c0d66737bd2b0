//! A region in the memory of a program.

use std::io;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use base::rt::{self, Instant};
use farmem_control::{reply, request};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::link::Link;
use super::profile::{AccessCollector, ProgramSampler};
use crate::kernel::userfault::{UserEvent, UserFaults};
use crate::page::{PAGE_BYTES, PageNumber, PageRange};
use crate::pager::{Home, PagerCore};
use crate::pool_store::PoolStore;
use crate::report;
use crate::table::RegionTable;

/// Pages that must be free when a program forks: the thread that forks may touch some, and nothing is evicted meanwhile.
const FORK_PAGES_FREE: u32 = 8;
/// For how long a fork waits for them, because the store is full.
const FORK_WAIT: Duration = Duration::from_secs(10);
/// How often it is checked whether a program lives.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The same once its agent has ended, which is the last but one thing that happens to a program.
const LOOK_SOON: Duration = Duration::from_millis(2);
/// For how long a program may go on without its agent. When it ends, or executes another program, the agent ends first.
const AGENT_GONE_MAX: Duration = Duration::from_secs(5);

/// A program that is about to be served.
pub(super) struct ServedProgram {
    pub(super) memory: Arc<ProgramMemory>,
    pub(super) faults: UserFaults,
    pub(super) table: RegionTable,
}

/// Who serves the children of forks.
pub(super) trait ForkServer: Send + Sync {
    /// A number for a fork, which nobody guesses.
    fn next_fork(&self) -> u64;

    /// Whether one program more can be served.
    fn has_place(&self) -> bool;

    /// Has the child of a fork served, which connects later.
    fn adopt(&self, fork: u64, child: ServedProgram);

    /// Has each access of a child to far memory be an error: it was forked without notice.
    fn refuse(&self, parent: &ProgramMemory, child: UserFaults);
}

/// The memory of one program, and what is known of it.
pub(super) struct ProgramMemory {
    pub(super) name: String,
    pub(super) region: u64,
    pub(super) bytes: u64,
    pub(super) doorbell: u64,
    pub(super) store: Arc<PoolStore>,
    pub(super) forks: Weak<dyn ForkServer>,
    /// If remote accesses are profiled.
    sampler: Option<ProgramSampler>,
    /// Set when the program has connected; the child of a fork does so a little later.
    pub(super) link: OnceLock<Link>,
    /// The thread that is about to fork, or 0.
    forking: AtomicU32,
    /// Since when that thread waits for room.
    fork_waits: Mutex<Option<Instant>>,
    /// Since when there is no agent any more.
    agent_gone: Mutex<Option<Instant>>,
    /// The number of the fork that the kernel will report, or 0.
    fork: AtomicU64,
    has_ended: AtomicBool,
}

/// Has the calling thread sleep, which drives no runtime.
#[allow(clippy::disallowed_methods)] // It blocks in the kernel anyway, and there is no simulation of page faults.
pub(super) fn pause(time: Duration) {
    thread::sleep(time);
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Values that are replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What unwinds the threads of a program that has ended.
struct ProgramEnded;

impl ProgramMemory {
    pub(super) fn new(
        name: String,
        (region, bytes): (u64, u64),
        doorbell: u64,
        store: Arc<PoolStore>,
        forks: Weak<dyn ForkServer>,
        collector: Option<Arc<AccessCollector>>,
    ) -> ProgramMemory {
        let far = [(region, bytes), (doorbell, PAGE_BYTES as u64)];
        let far = far.map(|(start, bytes)| start..start.saturating_add(bytes));
        let sampler = collector.map(|collector| ProgramSampler::new(collector, far));
        ProgramMemory {
            name,
            region,
            bytes,
            doorbell,
            store,
            forks,
            sampler,
            link: OnceLock::new(),
            forking: AtomicU32::new(0),
            fork_waits: Mutex::default(),
            agent_gone: Mutex::default(),
            fork: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
        }
    }

    pub(super) fn address_of(&self, page: PageNumber) -> u64 {
        self.region + page.offset()
    }

    /// The program's connection, which the child of a fork makes first of all.
    ///
    /// # Errors
    /// [`io::ErrorKind::BrokenPipe`] when it ends before.
    pub(super) fn wait_for_link(&self) -> io::Result<&Link> {
        loop {
            match self.link.get() {
                Some(link) => return Ok(link),
                None if self.has_ended.load(Ordering::Acquire) => return Err(io::ErrorKind::BrokenPipe.into()),
                None => pause(Duration::from_millis(1)),
            }
        }
    }

    /// The pages that a request names, if the region has them.
    fn requested_range(&self, link: &Link) -> Option<PageRange> {
        let first = link.request().first.load(Ordering::Relaxed);
        let pages = link.request().pages.load(Ordering::Relaxed);
        let end = first.checked_add(pages)?;
        let is_within = pages > 0 && u64::from(end) * PAGE_BYTES as u64 <= self.bytes;
        is_within.then_some(PageRange { first: PageNumber(first), pages })
    }

    /// Does what the program requests, and returns the reply.
    fn serve(&self, core: &PagerCore, link: &Link, kind: u32, thread: u32) -> u32 {
        match (kind, self.requested_range(link)) {
            (request::DISCARD_BEGIN, Some(range)) => match core.table().begin_discard(range) {
                true => reply::DONE,
                false => reply::BUSY,
            },
            (request::DISCARD_END, Some(range)) if core.table().is_discarding(range) => {
                core.store.discard(range);
                core.table().discarded(range);
                core.wake(range);
                reply::DONE
            }
            (request::FORK_BEGIN, _) => self.begin_fork(core, link, thread),
            (request::FORK_END, _) => {
                self.give_up_fork(core);
                reply::DONE
            }
            _ => reply::REFUSED,
        }
    }

    fn begin_fork(&self, core: &PagerCore, link: &Link, thread: u32) -> u32 {
        let Some(server) = self.forks.upgrade().filter(|server| core.faults.reports_forks() && server.has_place())
        else {
            return reply::REFUSED;
        };
        self.forking.store(thread, Ordering::Release);
        let mut table = core.table();
        if !table.freeze() {
            return reply::BUSY;
        }
        if table.free() < FORK_PAGES_FREE {
            drop(table);
            self.give_up_fork(core);
            core.ask_for_room();
            let mut since = locked(&self.fork_waits);
            if since.get_or_insert_with(rt::now).elapsed() <= FORK_WAIT {
                return reply::BUSY;
            }
            // The next fork waits as long.
            *since = None;
            return reply::REFUSED;
        }
        *locked(&self.fork_waits) = None;
        let number = server.next_fork();
        self.fork.store(number, Ordering::Release);
        link.request().fork.store(number, Ordering::Release);
        reply::DONE
    }
}

impl Home for ProgramMemory {
    fn address(&self) -> u64 {
        self.region
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn wait(&self, faults: &UserFaults, events: &mut Vec<UserEvent>) -> io::Result<bool> {
        if faults.has_unhandled() {
            return faults.read(events).map(|()| true);
        }
        let agent_gone = *locked(&self.agent_gone);
        let mut files = vec![PollFd::from_borrowed_fd(faults.file(), PollFlags::IN)];
        if let Some(link) = self.link.get().filter(|_| agent_gone.is_none()) {
            files.push(PollFd::from_borrowed_fd(link.socket().file(), PollFlags::empty()));
        }
        let look_again = if agent_gone.is_some() { LOOK_SOON } else { LOOK_AGAIN };
        let limit = Timespec { tv_sec: 0, tv_nsec: look_again.subsec_nanos().into() };
        match poll(&mut files, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => return Ok(true),
            Err(error) => return Err(error.into()),
            Ok(0) => {}
            Ok(_) if files[0].revents().contains(PollFlags::ERR) => {
                return Err(io::Error::other("the program has changed its userfaultfd"));
            }
            Ok(_) => faults.read(events)?,
        }
        if files.get(1).is_some_and(|socket| !socket.revents().is_empty()) {
            *locked(&self.agent_gone) = Some(rt::now());
        }
        let is_idle = events.is_empty();
        if agent_gone.is_some_and(|since| since.elapsed() > AGENT_GONE_MAX)
            && let Some(link) = self.link.get()
        {
            // Something has ended its agent alone. Nothing can be evicted any more.
            link.kill();
        }
        // As long as anybody uses the memory, faults are served: without an answer, pages read as zeros.
        Ok(!is_idle || faults.has_process(self.doorbell))
    }

    fn is_doorbell(&self, address: u64) -> bool {
        address == self.doorbell
    }

    fn answer_doorbell(&self, core: &PagerCore, thread: u32) -> io::Result<bool> {
        // Somebody else may have touched the doorbell, or the same thread twice for one request: then the kind is 0.
        if let Some(link) = self.link.get()
            && let kind @ 1.. = link.request().kind.swap(0, Ordering::AcqRel)
        {
            let reply = self.serve(core, link, kind, thread);
            link.request().reply.store(reply, Ordering::Release);
        }
        match core.faults.zero(self.doorbell, PAGE_BYTES as u64) {
            // Somebody else touched it too.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                core.faults.wake(self.doorbell, PAGE_BYTES as u64)?;
            }
            outcome => outcome?,
        }
        Ok(true)
    }

    fn is_postponed(&self, thread: u32) -> bool {
        let forking = self.forking.load(Ordering::Acquire);
        forking != 0 && forking != thread
    }

    fn forked(&self, core: &PagerCore, child: UserFaults) {
        let number = self.fork.swap(0, Ordering::AcqRel);
        let Some(server) = self.forks.upgrade() else { return };
        if number == 0 {
            return server.refuse(self, child);
        }
        let table = core.table().fork();
        let store = Arc::new(self.store.fork());
        self.give_up_fork(core);
        let Some(table) = table else { return server.refuse(self, child) };
        let place = (self.region, self.bytes);
        let collector = self.sampler.as_ref().map(|sampler| Arc::clone(&sampler.collector));
        let forks = Weak::clone(&self.forks);
        let memory = ProgramMemory::new(self.name.clone(), place, self.doorbell, store, forks, collector);
        server.adopt(number, ServedProgram { memory: Arc::new(memory), faults: child, table });
    }

    fn give_up_fork(&self, core: &PagerCore) {
        self.fork.store(0, Ordering::Release);
        self.forking.store(0, Ordering::Release);
        core.table().thaw();
    }

    fn note_remote_access(&self, thread: u32, pages_ahead: u64) {
        if let Some(sampler) = &self.sampler {
            sampler.note(thread, pages_ahead);
        }
    }

    /// The program gets a signal without a reason, so this process says it.
    fn note_loss(&self, range: PageRange, node: &str) {
        let process = self.link.get().map_or(0, |link| link.number);
        report::error(format!(
            "far memory: {} ({process}) has touched {range:?} of its far heap, which were lost with {node}; the signal SIGBUS \
             ends it, unless it handles that",
            self.name
        ));
    }

    fn end(&self, faults: &UserFaults, text: &str) -> ! {
        let is_gone = self.link.get().is_some_and(Link::has_ended);
        if !is_gone && faults.has_process(self.doorbell) {
            report::error(format!("{text}, so the program {} ends", self.name));
            // If it has not connected yet, its accesses are errors from now on.
            self.link.get().into_iter().for_each(Link::kill);
        }
        resume_unwind(Box::new(ProgramEnded));
    }

    fn thread_ended(&self, core: &PagerCore, outcome: thread::Result<()>) {
        if let Err(panic) = outcome
            && !panic.is::<ProgramEnded>()
        {
            report::end("farmem: a thread that serves page faults has panicked, so all its programs end\n");
        }
        self.has_ended.store(true, Ordering::Release);
        core.stop();
    }
}
