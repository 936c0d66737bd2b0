//! The state of the executor, and what it does with messages, faults and system calls. Always under the lock.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use bare::PAGE_BYTES;
use bare::alarm::Alarm;
use bare::system_call::{Errno, exit_group};
use bare::userfault::UserFaults;
use base::Bytes;
use page_coherence::{
    Access, CallId, CallOutcome, CoherenceMode, CoherenceSettings, ExecutorOutput, ExecutorSide, Output, PageNumber,
    Payload, Right, ToCaller as CoherenceToCaller, ToExecutor as CoherenceToExecutor,
};
use pushdown::{CallEnd, Ended, History, Link, MappingKind, Registers, Runner, Stamps, ToCaller, ToExecutor, cycles};

use crate::arrival::Arrival;
use crate::limit::Limits;
use crate::mappings::Mappings;
use crate::pages::{PageContents, Pages};
use crate::storage::{Storage, StorageBounds};

/// Pages that are asked for ahead, at most.
const AHEAD_MAX: u64 = 32;

/// Why this process gives up: the caller broke the protocol, or the operating system refused what it had promised.
#[derive(Debug)]
struct Broken;

impl From<Errno> for Broken {
    fn from(_: Errno) -> Broken {
        Broken
    }
}

/// What came of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultOutcome {
    /// The access can be tried again.
    Served,
    /// The program has no such memory, or may not access it so: the access is an error of the function, with this signal and code.
    Refused(i32, i32),
    /// The function's time is over.
    Over,
}

/// `SEGV_MAPERR`, `SEGV_ACCERR` and `BUS_ADRERR`.
const NOT_MAPPED: FaultOutcome = FaultOutcome::Refused(libc::SIGSEGV, 1);
const NOT_ALLOWED: FaultOutcome = FaultOutcome::Refused(libc::SIGSEGV, 2);
const NOT_THERE: FaultOutcome = FaultOutcome::Refused(libc::SIGBUS, 2);

pub(crate) struct Executor {
    link: &'static Link,
    pub(crate) side: ExecutorSide,
    mappings: Mappings,
    pages: Pages,
    storage: Storage,
    /// How many pages are kept in memory, and the page behind the one that was evicted last.
    memory_pages: Option<u64>,
    hand: PageNumber,
    /// With what the functions of calls begin that have not begun, how long they may run, and when that was heard.
    starts: BTreeMap<CallId, (Registers, Option<NonZeroU32>, u64)>,
    /// The functions that run.
    running: BTreeMap<CallId, Runner>,
    /// Which pages they need.
    history: History,
    limits: Limits,
    /// A ping that the service thread has to answer.
    pinged: Option<u64>,
    /// Calls whose turn it is.
    ready: VecDeque<CallId>,
    /// What system calls have returned.
    pub(crate) returned: BTreeMap<CallId, i64>,
    /// Addresses whose mapping is asked for.
    asked_mappings: Vec<u64>,
    /// Addresses of pages of constant memory that are asked for.
    asked_pages: Vec<u64>,
    /// Answers of the caller that there is no mapping for the executor, and whether there is one at all. Each is for one asker.
    refused: Vec<(u64, bool)>,
    /// Pages that were asked for ahead, to be mapped when they come.
    ahead: BTreeMap<PageNumber, Access>,
    /// The page behind those that were asked for last, and how many those were.
    stream: (u64, u64),
    /// Whether a message was handled that somebody may wait for.
    has_progress: bool,
}

impl Executor {
    /// # Errors
    /// Of the operating system.
    pub(crate) fn new(
        link: Link,
        contexts: u32,
        faults: UserFaults,
        limits: Limits,
        storage: Option<StorageBounds>,
    ) -> Result<Executor, Errno> {
        let settings = CoherenceSettings { contexts_max: contexts as usize, ..CoherenceSettings::default() };
        Ok(Executor {
            link: Box::leak(Box::new(link)),
            side: ExecutorSide::new(settings),
            mappings: Mappings::new(faults),
            pages: Pages::new(faults)?,
            storage: Storage::new(storage),
            memory_pages: storage.map(|storage| storage.memory_pages),
            hand: PageNumber(0),
            starts: BTreeMap::new(),
            running: BTreeMap::new(),
            history: History::default(),
            limits,
            pinged: None,
            ready: VecDeque::new(),
            returned: BTreeMap::new(),
            asked_mappings: Vec::new(),
            asked_pages: Vec::new(),
            refused: Vec::new(),
            ahead: BTreeMap::new(),
            stream: (0, 0),
            has_progress: false,
        })
    }

    pub(crate) fn link(&self) -> &'static Link {
        self.link
    }

    /// What wakes the service thread beside messages. This side never loses a tie, so that is limits and pings alone.
    pub(crate) fn alarm(&self) -> Alarm {
        self.limits.alarm()
    }

    /// What the service thread does beside handling messages; whether functions that wait have to look.
    pub(crate) fn serve(&mut self) -> bool {
        if let Some(number) = self.pinged.take() {
            self.ask(&ToCaller::Pong(number));
        }
        self.limits.keep()
    }

    /// Handles all messages that have come; whether there were any.
    pub(crate) fn handle_messages(&mut self) -> bool {
        self.has_progress = false;
        while let Some(frame) = self.link.receive().unwrap_or_else(|_| exit_group(1)) {
            let message = ToExecutor::decode(frame).unwrap_or_else(|_| exit_group(1));
            if self.handle(message).is_err() {
                exit_group(1);
            }
            self.has_progress = true;
        }
        self.has_progress
    }

    fn handle(&mut self, message: ToExecutor) -> Result<(), Broken> {
        match message {
            ToExecutor::Coherence(bytes) => self.coherence(bytes),
            ToExecutor::Start(call, registers, limit) => {
                self.starts.insert(call, (registers, limit, cycles()));
                Ok(())
            }
            ToExecutor::Mapping { wanted, start, end, protection, kind } => {
                self.asked_mappings.retain(|address| *address != wanted);
                match kind {
                    MappingKind::Refused => self.refused.push((wanted, end > start)),
                    MappingKind::Ordinary | MappingKind::Constant => self.mappings.add(start, end, protection, kind)?,
                }
                Ok(())
            }
            ToExecutor::Pages(first, bytes) => {
                self.asked_pages.retain(|address| *address != first);
                let pages = bytes.chunks_exact(PAGE_BYTES).zip(first / PAGE_BYTES as u64..);
                for (contents, page) in pages {
                    let contents: &PageContents = contents.try_into().map_err(|_| Broken)?;
                    if self.mappings.at(PageNumber(page)).is_some_and(|mapping| mapping.is_constant) {
                        self.pages.map_constant(PageNumber(page), contents)?;
                    }
                }
                Ok(())
            }
            ToExecutor::Returned(call, value) => {
                // That of a function whose time was over meanwhile has nobody who waits for it.
                if self.limits.runs(call) {
                    self.returned.insert(call, value);
                }
                Ok(())
            }
            ToExecutor::Ping(number) => {
                self.pinged = Some(number);
                // This may be another thread.
                self.limits.wake_at(Duration::ZERO);
                Ok(())
            }
            ToExecutor::Unmapped(start, end) if start > end => Err(Broken),
            ToExecutor::Unmapped(start, end) => {
                let pages = start / PAGE_BYTES as u64..end.div_ceil(PAGE_BYTES as u64);
                self.pages.unmapped(pages.clone())?;
                Ok(self.mappings.remove(pages)?)
            }
            ToExecutor::Protected { start, end, .. } if start > end => Err(Broken),
            ToExecutor::Protected { start, end, protection } => Ok(self.protect(start, end, protection)?),
        }
    }

    fn coherence(&mut self, bytes: Bytes) -> Result<(), Broken> {
        let (message, body) = CoherenceToExecutor::decode(bytes).map_err(|_| Broken)?;
        let had_context = self.side.has_context();
        let resident = match &message {
            CoherenceToExecutor::Call { resident, .. } if !had_context => Some(resident.clone()),
            _ => None,
        };
        for (pages, right) in resident.iter().flat_map(|resident| resident.runs()) {
            self.caller_has(pages, right)?;
        }
        if let CoherenceToExecutor::Call { mode, .. } = &message
            && !had_context
            && mode.shares_writes()
        {
            // Each first write of the context has to be noticed: the caller learns which pages were written.
            self.pages.protect_all()?;
        }
        let arrival = Arrival::of(&message);
        let (called, home) = match &message {
            CoherenceToExecutor::Call { call, .. } => (Some(*call), None),
            // A page that comes home is mapped where functions find it, rather than when one faults.
            CoherenceToExecutor::Home { page, payload: Payload::Page, .. } => (None, Some(*page)),
            _ => (None, None),
        };
        let mut out = Vec::new();
        // This side never loses a tie, so it needs no clock.
        self.side.receive(message, Duration::ZERO, &mut out).map_err(|_| Broken)?;
        if let Some(call) = called.filter(|call| !out.contains(&Output::Start(*call))) {
            self.limits.queue(call);
        }
        for output in &out {
            let (call, end) = match output {
                Output::Send(CoherenceToCaller::CancelAnswer { call, removed: true }) => (call, CallEnd::Cancelled),
                Output::Send(CoherenceToCaller::Reply { call, outcome: CallOutcome::Busy, .. }) => {
                    (call, CallEnd::Busy)
                }
                _ => continue,
            };
            self.starts.remove(call);
            self.limits.end_unrun(*call, end);
        }
        self.carry_out(out, Some((arrival, &body)))?;
        self.evict_beyond_memory()?;
        match home.filter(|page| self.mappings.at(*page).is_some_and(|mapping| mapping.allows(Access::Read))) {
            Some(page) => Ok(self.pages.place(page)?),
            None => Ok(()),
        }
    }

    /// Evicts pages for which memory has no room, in the order of their addresses.
    fn evict_beyond_memory(&mut self) -> Result<(), Broken> {
        let Some(most) = self.memory_pages else { return Ok(()) };
        // Pages on their way stay. If all of them are, nothing is evicted.
        let mut tries = 2 * self.pages.count();
        while self.pages.count() > most && tries > 0 {
            tries -= 1;
            let Some(page) = self.pages.next(self.hand) else {
                self.hand = PageNumber(0);
                continue;
            };
            self.hand = PageNumber(page.0 + 1);
            let mut out = Vec::new();
            if self.side.evict(page, &mut out).is_ok() {
                self.carry_out(out, None)?;
            }
        }
        Ok(())
    }

    /// A call begins a context. What the caller took back since the last one, without a message, must not be mapped any more.
    fn caller_has(&mut self, pages: Range<u64>, right: Right) -> Result<(), Broken> {
        if right != Right::Write {
            for page in self.pages.writable_in(pages) {
                self.pages.protect(page)?;
            }
            return Ok(());
        }
        // A request that is on its way may find that both sides wanted to write the page. This side wins then, and the answer comes
        // without the contents, which are here.
        let requested = self.side.requested().filter(|page| pages.contains(&page.0) && self.pages.has(*page));
        let kept: Vec<_> =
            requested.map(|page| (page, self.pages.contents(page, self.mappings.protection(page)))).collect();
        self.pages.drop(pages)?;
        for (page, contents) in kept {
            self.pages.put(page, contents?)?;
        }
        Ok(())
    }

    /// Does what the state machine says, in order. `arrived` is what the message brought that is being handled.
    fn carry_out(&mut self, out: Vec<ExecutorOutput>, arrived: Option<(Arrival, &[u8])>) -> Result<(), Broken> {
        let mut outputs = VecDeque::from(out);
        while let Some(output) = outputs.pop_front() {
            if let Output::Protect(page) | Output::Unmap(page) = output {
                self.limits.note(page, self.pages.access(page));
            }
            match output {
                Output::Map { page, writable } => {
                    if self.mappings.at(page).is_some() {
                        self.pages.map(page, writable)?;
                    }
                }
                Output::Protect(page) => self.pages.protect(page)?,
                Output::Unmap(page) => {
                    let protection = self.mappings.protection(page);
                    self.pages.take(page, protection)?;
                }
                Output::Install(page) => {
                    let (arrival, body) = arrived.ok_or(Broken)?;
                    let protection = self.mappings.protection(page);
                    let is_idle = !self.side.has_context();
                    arrival.install(&mut self.pages, page, protection, is_idle, body).map_err(|_| Broken)?;
                }
                Output::Fill(page) if !self.pages.has(page) => self.load(page)?,
                Output::Drop(pages) => {
                    self.limits.forget(pages.clone());
                    self.storage.drop(pages.clone());
                    self.pages.drop(pages)?;
                }
                Output::Send(message) => self.send(&message)?,
                Output::Start(call) => self.ready.push_back(call),
                Output::Load(page) => {
                    self.load(page)?;
                    let mut more = Vec::new();
                    self.side.loaded(page, &mut more);
                    more.into_iter().rev().for_each(|output| outputs.push_front(output));
                }
                Output::Wake(page) => {
                    self.link.tell_waiting(false);
                    if let Some(access) = self.ahead.remove(&page) {
                        let mut more = Vec::new();
                        self.side.fault(page, access, &mut more);
                        outputs.extend(more);
                    }
                }
                Output::EndContext => {
                    self.ahead.clear();
                    self.limits.end_context();
                }
                Output::Store(page) => {
                    let contents = self.pages.contents(page, self.mappings.protection(page))?;
                    self.storage.store(page, contents);
                }
                Output::Free(page) => self.pages.drop(page.0..page.0 + 1)?,
                Output::Fill(_) | Output::Place(_) => {}
                // Twins are the caller's, and a lost caller ends this process.
                Output::Stop(_)
                | Output::Twin(_)
                | Output::DropTwin(_)
                | Output::Finished(..)
                | Output::CancelDeclined(_) => return Err(Broken),
            }
        }
        Ok(())
    }

    /// Has the contents of a page here. One that nobody has is zero.
    fn load(&mut self, page: PageNumber) -> Result<(), Errno> {
        let contents = self.storage.load(page);
        self.pages.put(page, contents.unwrap_or_else(|| Box::new([0; PAGE_BYTES])))
    }

    fn send(&mut self, message: &CoherenceToCaller) -> Result<(), Broken> {
        let head = ToCaller::Coherence(message.encode());
        match message {
            CoherenceToCaller::Grant { page, access, payload: Payload::Page } => {
                let contents = self.pages.contents(*page, self.mappings.protection(*page))?;
                self.tell(&head, &contents[..])?;
                // In weaker modes functions go on with the page, and a call may be on its way that says so.
                if *access == Access::Write && self.side.mode() == Some(CoherenceMode::Coherent) {
                    self.pages.forget(*page);
                }
                Ok(())
            }
            CoherenceToCaller::Pulled(range) => {
                let contents = self.pages.contents(range.page, self.mappings.protection(range.page))?;
                let from = usize::from(range.offset);
                self.tell(&head, contents.get(from..from + usize::from(range.count)).ok_or(Broken)?)
            }
            _ => self.tell(&head, &[]),
        }
    }

    fn tell(&self, message: &ToCaller, body: &[u8]) -> Result<(), Broken> {
        self.link.send_to_caller(message, body).map_err(|_| Broken)
    }

    /// The next function whose turn it is, for a thread of a context, and when its message was handled.
    pub(crate) fn next_function(&mut self, context: u32, thread: u32) -> Option<(CallId, Registers, u64)> {
        let call = self.ready.pop_front()?;
        match self.starts.remove(&call) {
            Some((registers, limit, handled)) => {
                self.limits.begin(context, thread, call, limit);
                let runner = (registers.function, registers.thread_block);
                self.running.insert(call, runner);
                self.ask_ahead(runner);
                Some((call, registers, handled))
            }
            // The caller did not say what to run.
            None => exit_group(1),
        }
    }

    /// Asks for the pages that a function is expected to need.
    fn ask_ahead(&mut self, runner: Runner) {
        let mut out = Vec::new();
        for (page, access) in self.history.begin(runner) {
            self.ask_for_page(page, access, &mut out);
        }
        self.finish_outputs(out);
    }

    /// Asks for a page that a function may need.
    fn ask_for_page(&mut self, page: PageNumber, access: Access, out: &mut Vec<ExecutorOutput>) {
        let is_ordinary = self.mappings.at(page).is_some_and(|mapping| !mapping.is_constant && mapping.allows(access));
        // What needs no message would count as written.
        let is_free = access == Access::Write
            && self.side.mode().is_some_and(CoherenceMode::shares_writes)
            && self.side.right(page) == Right::Write;
        if is_ordinary && !is_free && self.pages.access(page) < access.right() && !self.side.is_waiting(page) {
            self.ahead.insert(page, access);
            self.side.fault(page, access, out);
        }
    }

    /// Memory has another protection. What was constant may be written now, and has to be asked for again.
    pub(crate) fn protect(&mut self, start: u64, end: u64, protection: u32) -> Result<(), Errno> {
        let pages = start / PAGE_BYTES as u64..end.div_ceil(PAGE_BYTES as u64);
        for run in self.mappings.constant_in(pages.clone()) {
            self.pages.unmapped(run.clone())?;
            self.mappings.remove(run)?;
        }
        self.mappings.protect(pages, protection)
    }

    /// A function has ended, perhaps because its time was over.
    pub(crate) fn end_function(&mut self, context: u32, call: CallId, ended: Ended, stamps: Stamps, is_killed: bool) {
        self.limits.end(context, &ended, is_killed);
        self.running.remove(&call);
        self.returned.remove(&call);
        let mut out = Vec::new();
        let finished = if is_killed {
            // Pages stay writable from one context to the next one.
            self.side.note_written(&self.pages.writable());
            self.side.note_written(self.limits.written());
            self.side.kill(call, &mut out)
        } else {
            self.side.finish(call, &mut out)
        };
        let ended = ToCaller::Ended(call, ended, stamps);
        let told = match out.first() {
            // The caller does not have to look twice.
            Some(Output::Send(reply)) => {
                let reply = ToCaller::Coherence(reply.encode());
                out.remove(0);
                self.link.send_both_to_caller([&ended, &reply]).is_ok()
            }
            _ => self.tell(&ended, &[]).is_ok(),
        };
        if !told || finished.is_err() || self.carry_out(out, None).is_err() {
            exit_group(1);
        }
    }

    /// A function accessed an address without a mapping, or against its protection. `None`: the caller was asked.
    pub(crate) fn mapping_fault(&mut self, address: u64, needed: u32, asked: &mut bool) -> Option<FaultOutcome> {
        let page = address / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let known = self.mappings.at(PageNumber(page / PAGE_BYTES as u64));
        if known.is_some_and(|mapping| mapping.protection & needed != 0) {
            return Some(FaultOutcome::Served);
        }
        if !std::mem::replace(asked, true) {
            self.refused.retain(|(refused, _)| *refused != page);
            if !self.asked_mappings.contains(&page) {
                self.asked_mappings.push(page);
                self.ask(&ToCaller::MappingWanted(page));
            }
            return None;
        }
        if let Some(at) = self.refused.iter().position(|(refused, _)| *refused == page) {
            let (_, is_mapped) = self.refused.swap_remove(at);
            return Some(if is_mapped { NOT_ALLOWED } else { NOT_MAPPED });
        }
        if self.asked_mappings.contains(&page) { None } else { Some(NOT_ALLOWED) }
    }

    /// A function accessed a page that is not there, or is protected. `None`: somebody was asked.
    pub(crate) fn page_fault(
        &mut self,
        call: CallId,
        address: u64,
        access: Access,
        asked: &mut bool,
    ) -> Option<FaultOutcome> {
        let page = PageNumber(address / PAGE_BYTES as u64);
        if self.pages.access(page) >= access.right() {
            return Some(FaultOutcome::Served);
        }
        match self.mappings.at(page) {
            // It was unmapped meanwhile: the next access says so.
            None => return Some(FaultOutcome::Served),
            Some(mapping) if mapping.is_constant && self.pages.has_constant(page) => {
                return Some(FaultOutcome::Served);
            }
            Some(mapping) if mapping.is_constant => {
                let start = page.0 * PAGE_BYTES as u64;
                if *asked && !self.asked_pages.contains(&start) {
                    return Some(NOT_THERE);
                }
                *asked = true;
                if !self.asked_pages.contains(&start) {
                    self.asked_pages.push(start);
                    self.ask(&ToCaller::PagesWanted(start));
                }
            }
            Some(_) => {
                loop {
                    let mut out = Vec::new();
                    self.side.fault(page, access, &mut out);
                    if !std::mem::replace(asked, true) {
                        if let Some(runner) = self.running.get(&call) {
                            self.history.note(*runner, page, access);
                        }
                        self.read_ahead(page, access, &mut out);
                    }
                    self.finish_outputs(out);
                    if self.pages.access(page) >= access.right() {
                        return Some(FaultOutcome::Served);
                    }
                    // A page that was loaded here is mapped when it is asked for again.
                    if self.side.is_waiting(page) {
                        break;
                    }
                }
            }
        }
        None
    }

    /// Asks for the pages behind one that was asked for, if functions go through memory in order.
    fn read_ahead(&mut self, page: PageNumber, access: Access, out: &mut Vec<ExecutorOutput>) {
        let (next, last) = self.stream;
        let count = if page.0 == next { (last * 2).clamp(1, AHEAD_MAX) } else { 0 };
        self.stream = (page.0 + count + 1, count);
        for page in (page.0 + 1..=page.0 + count).map(PageNumber) {
            self.ask_for_page(page, access, out);
        }
    }

    /// Does what the state machine says, for a function.
    pub(crate) fn finish_outputs(&mut self, out: Vec<ExecutorOutput>) {
        if self.carry_out(out, None).and_then(|()| self.evict_beyond_memory()).is_err() {
            exit_group(1);
        }
    }

    /// A synchronisation point of a function.
    pub(crate) fn synchronise(&mut self) {
        let mut out = Vec::new();
        self.side.syncmem(&mut out);
        self.finish_outputs(out);
    }

    pub(crate) fn ask(&self, question: &ToCaller) {
        if self.tell(question, &[]).is_err() {
            exit_group(1);
        }
    }
}
