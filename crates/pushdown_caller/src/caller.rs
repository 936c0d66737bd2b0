//! The state of this side, and what it does with messages, faults and events. Always under the lock.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use bare::PAGE_BYTES;
use bare::alarm::now;
use bare::system_call::Errno;
use base::ErrorKind;
use page_coherence::{
    Access, CallId, CallOutcome, CallerOutput, CallerSide, CoherenceMode, CoherenceSettings, Output, PAGE_NUMBERS,
    PageNumber, Right, RunMap, ToCaller as CoherenceToCaller, ToExecutor as CoherenceToExecutor,
};
use pushdown::{Ended, History, Link, Registers, RingError, Runner, ToCaller, ToExecutor, cycles};

use crate::call_counts::CallCounts;
use crate::far_memory::FarMemory;
use crate::fork_state::Forks;
use crate::mappings::Mappings;
use crate::message::print;
use crate::message_counts::{MessageCounts, PullCounts};
use crate::outcome::{CallStamps, Outcome, Task};
use crate::pages::Pages;
use crate::payload::{TakenPage, payload};
use crate::refused_memory::RefusedMemory;
use crate::terms::{Cancelling, Terms};
use crate::tickets::Tickets;
use crate::times::stamps_from_elsewhere;
use crate::twins::Twins;
use crate::vdso::ForeignVdso;
use crate::watch::Watch;

const UNKNOWN_CALL: Broken = Broken::Protocol("a message about a call that is not open");

/// A call whose thread has not gone on.
pub(crate) struct Call {
    pub(crate) runner: Runner,
    /// A system call for its function that its thread has not made.
    system_call: Option<(u64, [u64; 6])>,
    /// How the function ended, and how the call did.
    ended: Ended,
    pub(crate) outcome: Option<Outcome>,
    stamps: CallStamps,
    /// When it is to be cancelled.
    pub(crate) cancel_at: Option<Duration>,
    pub(crate) cancelling: Cancelling,
    pub(crate) ticket: Option<u64>,
    /// If the function was killed, the pages that it may have left torn.
    pub(crate) torn: Vec<Range<u64>>,
}

/// Bytes of a thread's stack, at most.
const STACK_BYTES_MAX: u64 = 64 << 20;
/// Pages that are asked for at a time: their contents have room in the ring.
pub(crate) const FETCHES_MAX: usize = 128;

/// Why the executor is given up.
pub(crate) enum Broken {
    /// It is gone.
    Gone,
    /// It broke the protocol.
    Protocol(&'static str),
    /// The operating system refused what it must not refuse.
    System(Errno),
}

impl From<Errno> for Broken {
    fn from(error: Errno) -> Broken {
        Broken::System(error)
    }
}

impl From<RingError> for Broken {
    fn from(_: RingError) -> Broken {
        Broken::Gone
    }
}

pub(crate) struct Caller {
    pub(crate) link: &'static Link,
    pub(crate) side: CallerSide,
    pub(crate) pages: Pages,
    pub(crate) twins: Twins,
    pub(crate) mappings: Mappings,
    pub(crate) message_counts: MessageCounts,
    pub(crate) pulls: PullCounts,
    pub(crate) calls: BTreeMap<CallId, Call>,
    pub(crate) calls_made: u64,
    pub(crate) tickets: Tickets,
    pub(crate) call_counts: CallCounts,
    pub(crate) watch: Watch,
    /// Constant memory of which the executor knows.
    pub(crate) constant: RunMap<()>,
    /// The page behind those that were asked for last, and how many of them were asked for ahead.
    pub(crate) stream: (u64, u64),
    /// The function that has returned last, and which pages the program has needed after a return of each.
    pub(crate) returned_last: Runner,
    pub(crate) history: History,
    /// Which pages the executor has asked for in calls of each function.
    pub(crate) asked_for: History,
    /// The executor is gone.
    pub(crate) is_lost: bool,
    /// How many events were handled.
    pub(crate) events_handled: u64,
    /// Memory was moved, and what the executor has of it is on its way.
    pub(crate) is_remapping: bool,
    /// Pages that threads are dropping, one range a thread.
    pub(crate) dropping: Vec<Range<u64>>,
    /// Messages that cannot be handled yet.
    pub(crate) put_off: Vec<ToCaller>,
    /// Events are being handled: what is read meanwhile is left to that.
    pub(crate) is_draining: bool,
    /// What threads that fork need.
    pub(crate) forks: Forks,
    pub(crate) far: FarMemory,
    /// What functions have asked for and cannot have.
    pub(crate) refused: RefusedMemory,
    /// What an executor on another host gets as the vdso.
    pub(crate) vdso: Option<ForeignVdso>,
}

impl Caller {
    /// `vdso` is for an executor on another host.
    pub(crate) fn new(link: Link, pages: Pages, mappings: Mappings, watch: Watch, vdso: Option<ForeignVdso>) -> Caller {
        let contexts_max = link.area().contexts() as usize;
        Caller {
            side: CallerSide::owning_all(CoherenceSettings { contexts_max, ..CoherenceSettings::default() }),
            link: Box::leak(Box::new(link)),
            pages,
            twins: Twins::new(),
            mappings,
            message_counts: MessageCounts::default(),
            pulls: PullCounts::default(),
            calls: BTreeMap::new(),
            calls_made: 0,
            tickets: Tickets::default(),
            call_counts: CallCounts::default(),
            watch,
            constant: RunMap::default(),
            stream: (0, 0),
            returned_last: (0, 0),
            history: History::default(),
            asked_for: History::default(),
            is_lost: false,
            events_handled: 0,
            is_remapping: false,
            dropping: Vec::new(),
            put_off: Vec::new(),
            is_draining: false,
            forks: Forks::default(),
            far: FarMemory::default(),
            refused: RefusedMemory::default(),
            vdso,
        }
    }

    pub(crate) fn link(&self) -> &'static Link {
        self.link
    }

    pub(crate) fn faults(&self) -> i32 {
        self.pages.descriptor()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// How many calls are open.
    pub(crate) fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether a page was asked for that has not come.
    pub(crate) fn is_awaiting_pages(&self) -> bool {
        self.side.is_awaiting()
    }

    /// Handles all messages that have come.
    pub(crate) fn handle_messages(&mut self, is_attending: bool) {
        if self.is_lost || self.forks.is_holding() {
            return;
        }
        let mut has_progress = false;
        loop {
            // Before the message is taken: what follows a move handles those behind it. In weaker modes the end of a call changes pages.
            let is_coherent = self.side.mode().is_none_or(|mode| mode == CoherenceMode::Coherent);
            if self.link.is_memory_next() || !is_coherent && self.link.has_message() {
                self.settle();
            }
            let handled = match self.link.receive() {
                Ok(None) => break,
                Ok(Some(frame)) => ToCaller::decode(frame)
                    .map_err(|_| Broken::Protocol("a malformed message"))
                    .and_then(|message| self.handle(message))
                    .and_then(|()| self.evict_far_pages()),
                Err(_) => Err(Broken::Protocol("a malformed frame")),
            };
            if let Err(why) = handled {
                self.give_up(&why);
                return;
            }
            has_progress = true;
        }
        match self.handle_put_off() {
            Ok(is_any_handled) => has_progress |= is_any_handled,
            Err(why) => self.give_up(&why),
        }
        if has_progress {
            self.link.tell_waiting(is_attending);
            // A page whose tie was lost is asked for again by the library's thread.
            if let Some(at) = self.side.next_tick() {
                self.watch.wake_at(at);
            }
        }
    }

    pub(crate) fn handle(&mut self, message: ToCaller) -> Result<(), Broken> {
        if self.must_wait(&message) {
            return self.put_off(message);
        }
        match message {
            ToCaller::Coherence(bytes) => {
                let (message, body) = CoherenceToCaller::decode(bytes)
                    .map_err(|_| Broken::Protocol("a malformed message about a page"))?;
                self.message_counts.received += 1;
                if let CoherenceToCaller::Reply { call, outcome: CallOutcome::Killed, written } = &message {
                    let runs = written.runs().map(|(pages, _)| pages);
                    self.calls.get_mut(call).ok_or(UNKNOWN_CALL)?.torn = runs.collect();
                }
                self.receive(message, &body)
            }
            ToCaller::MappingWanted(address) => {
                let answer = self.mapping(address);
                self.tell(&answer)
            }
            ToCaller::PagesWanted(address) => self.send_constant(address),
            ToCaller::SystemCall(call, number, arguments) => {
                self.calls.get_mut(&call).ok_or(UNKNOWN_CALL)?.system_call = Some((number, arguments));
                Ok(())
            }
            ToCaller::Ended(call, ended, stamps) => {
                let open = self.calls.get_mut(&call).ok_or(UNKNOWN_CALL)?;
                let is_elsewhere = self.watch.process().is_elsewhere();
                let stamps = if is_elsewhere { stamps_from_elsewhere(stamps, cycles()) } else { stamps };
                (open.ended, open.stamps.executor) = (ended, stamps);
                Ok(())
            }
            ToCaller::Pong(number) => match self.watch.answered(number) {
                true => Ok(()),
                false => Err(Broken::Protocol("an answer to no question")),
            },
        }
    }

    fn receive(&mut self, mut message: CoherenceToCaller, body: &[u8]) -> Result<(), Broken> {
        let pulled = match &message {
            CoherenceToCaller::Pulled(range) => Some(*range),
            _ => None,
        };
        let taken = self.take_for(&mut message)?;
        self.note_request(&message);
        let mut out = Vec::new();
        // The clock says when to ask again for a page that the executor asks for.
        let now = if matches!(message, CoherenceToCaller::Request { .. }) { now() } else { Duration::ZERO };
        self.side.receive(message, now, &mut out).map_err(|_| Broken::Protocol("a message out of turn"))?;
        let done = match pulled.filter(|range| out.contains(&Output::Install(range.page))) {
            Some(range) => self.install_bytes(range, body),
            None => self.carry_out_with(taken, out, body),
        };
        if pulled.is_some() {
            self.pulls.has_come();
        }
        done
    }

    pub(crate) fn tell(&self, message: &ToExecutor) -> Result<(), Broken> {
        Ok(self.link.send_to_executor(message, &[])?)
    }

    /// Does what the state machine says, in order. `body` is that of the message that is being handled.
    pub(crate) fn carry_out(&mut self, out: Vec<CallerOutput>, body: &[u8]) -> Result<(), Broken> {
        self.carry_out_with(None, out, body)
    }

    /// As [`Caller::carry_out`], of a page that was taken from the program already.
    pub(crate) fn carry_out_taken(&mut self, taken: TakenPage, out: Vec<CallerOutput>) -> Result<(), Broken> {
        self.carry_out_with(Some(taken), out, &[])
    }

    /// `taken` is the page that was last taken from the program, which the next message carries.
    fn carry_out_with(
        &mut self,
        mut taken: Option<TakenPage>,
        out: Vec<CallerOutput>,
        body: &[u8],
    ) -> Result<(), Broken> {
        let mut outputs = VecDeque::from(out);
        // A page is out of the program's sight before the executor learns that it may write it.
        for at in 1..outputs.len() {
            if matches!(outputs[at], Output::Unmap(_))
                && matches!(&outputs[at - 1], Output::Send(message) if payload(message).is_none())
            {
                outputs.swap(at - 1, at);
            }
        }
        while let Some(output) = outputs.pop_front() {
            match output {
                Output::Map { page, writable } => {
                    // Each far page counts, so none comes unasked.
                    let owned = if self.far.has(page) { 1 } else { self.owned_from(page) };
                    self.pages.map(page, writable, owned)?;
                    self.far.mapped(page);
                }
                Output::Protect(page) if gives_up(outputs.front(), page) => {
                    if taken.as_ref().is_none_or(|(already, _)| *already != page) {
                        taken = Some((page, Some(self.pages.take(page)?)));
                    }
                }
                Output::Protect(page) => self.pages.protect(page)?,
                Output::Unmap(page) => {
                    if taken.as_ref().is_none_or(|(already, _)| *already != page) {
                        self.pages.take(page)?;
                    }
                    self.far.unmapped(page);
                    self.twins.drop(page);
                }
                Output::Twin(page) => {
                    let contents = self.pages.contents_to_write(page)?;
                    self.twins.keep(page, contents);
                }
                Output::DropTwin(page) => self.twins.drop(page),
                Output::Install(page) => {
                    self.pages.arrived(
                        page,
                        Box::new(body.try_into().map_err(|_| Broken::Protocol("a page of another size"))?),
                    );
                }
                Output::Send(message) => {
                    let body = self.body(&message, &mut taken)?;
                    let head = ToExecutor::Coherence(message.encode());
                    self.link.send_to_executor(&head, &body)?;
                    self.message_counts.sent += 1;
                    self.pulls.open += u64::from(matches!(message, CoherenceToExecutor::Pull(_)));
                }
                Output::Wake(page) => {
                    self.pages.wake(page)?;
                    // A thread of a call may wait for it too, and no message need have come.
                    self.link.tell_waiting(false);
                }
                Output::Finished(call, outcome) => {
                    let open = self.calls.get_mut(&call).ok_or(UNKNOWN_CALL)?;
                    let instruction = open.ended.instruction;
                    open.outcome = Some(match outcome {
                        CallOutcome::Busy => Outcome::Busy,
                        CallOutcome::Done => Outcome::Ended(open.ended),
                        CallOutcome::Killed => Outcome::Killed { call, instruction },
                        CallOutcome::Cancelled => Outcome::Cancelled,
                    });
                }
                Output::CancelDeclined(call) => self.declined(call),
                // The pool's outputs are not this side's.
                _ => return Err(Broken::Protocol("a message that only the executor gets")),
            }
        }
        // While memory follows a move, faults at its new place have to wait.
        if self.is_remapping || std::mem::replace(&mut self.is_draining, true) {
            return Ok(());
        }
        let mut drained = Ok(());
        while drained.is_ok()
            && let Some(event) = self.pages.next_unhandled()
        {
            drained = self.handle_event(event);
        }
        self.is_draining = false;
        drained
    }

    /// How many pages from this one on the program owns.
    fn owned_from(&self, page: PageNumber) -> u64 {
        let run = self.side.resident().runs_in(page.0..PAGE_NUMBERS).next();
        run.filter(|(run, right)| run.start == page.0 && *right == Right::Write)
            .map_or(0, |(run, _)| run.end - run.start)
    }

    /// Opens a call.
    ///
    /// What the calling thread has done with memory was handled: the kernel lets it go on only when the event was read, and who reads
    /// one handles it before the lock is released.
    ///
    /// # Errors
    /// It was refused, or the executor is gone.
    pub(crate) fn call(&mut self, registers: Registers, terms: &Terms) -> Result<CallId, Outcome> {
        let opened = self.open_call(registers, terms);
        if let Err(outcome) = opened {
            self.call_counts.add(outcome);
        }
        opened
    }

    fn open_call(&mut self, registers: Registers, terms: &Terms) -> Result<CallId, Outcome> {
        if self.is_lost {
            return Err(Outcome::Lost);
        }
        let (call, mut out) = (CallId(self.calls_made + 1), Vec::new());
        if self.tickets.is_cancelled(terms.ticket) {
            return Err(Outcome::Cancelled);
        }
        let runner = (registers.function, registers.thread_block);
        let sent_ahead = self.send_ahead(runner, terms.mode);
        self.check(sent_ahead);
        if self.is_lost {
            return Err(Outcome::Lost);
        }
        match self.side.call(call, terms.mode, &mut out) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Retry => return Err(Outcome::Busy),
            Err(_) => return Err(Outcome::Lost),
        }
        self.calls_made += 1;
        self.tickets.open_call(terms.ticket, call);
        let cancel_at = terms.timeout.map(|timeout| now().saturating_add(timeout));
        let open = Call {
            runner,
            system_call: None,
            ended: Ended::default(),
            outcome: None,
            stamps: CallStamps::default(),
            cancel_at,
            cancelling: Cancelling::No,
            ticket: terms.ticket,
            torn: Vec::new(),
        };
        self.calls.insert(call, open);
        self.watch.begin();
        if let Some(at) = cancel_at {
            self.watch.wake_at(at);
        }
        let start = ToExecutor::Start(call, registers, terms.limit);
        let done = match &out[..] {
            // All that a call needs. The executor does not have to look twice.
            [Output::Send(message)] => {
                self.message_counts.sent += 1;
                let both = [&start, &ToExecutor::Coherence(message.encode())];
                let sent = self.link.send_both_to_executor(both);
                if let (Ok(sent), Some(open)) = (&sent, self.calls.get_mut(&call)) {
                    open.stamps.sent = *sent;
                }
                sent.map(|_| ()).map_err(Broken::from)
            }
            _ => self.tell(&start).and_then(|()| self.carry_out(out, &[])),
        };
        self.check(done);
        Ok(call)
    }

    /// What the thread of a call does next.
    pub(crate) fn next_task(&mut self, call: CallId) -> Option<Task> {
        let open = self.calls.get_mut(&call)?;
        if let Some(outcome) = open.outcome {
            let stamps = CallStamps { noticed: cycles(), ..open.stamps };
            let (runner, ticket, torn) = (open.runner, open.ticket, std::mem::take(&mut open.torn));
            self.call_counts.add(outcome);
            self.tickets.close_call(ticket, call, outcome, torn);
            self.calls.remove(&call);
            return Some(Task::End(outcome, stamps, self.ask_back(runner)));
        }
        open.system_call.take().map(|(number, arguments)| Task::SystemCall(number, arguments))
    }

    /// A function has returned: asks for the pages of the executor that the program is expected to need now. Returns them.
    fn ask_back(&mut self, runner: Runner) -> Vec<PageNumber> {
        if self.is_lost {
            return Vec::new();
        }
        self.returned_last = runner;
        let expected = self.history.begin(runner);
        let mut asked = Vec::new();
        for (page, _) in expected {
            if self.is_away(page) {
                let mut out = Vec::new();
                self.side.fault(page, Access::Write, &mut out);
                let done = self.carry_out(out, &[]);
                self.check(done);
                asked.push(page);
            }
        }
        asked
    }

    /// Whether a page was asked for, and can still come.
    pub(crate) fn is_waiting_for(&self, page: PageNumber) -> bool {
        !self.is_lost && self.side.is_waiting(page)
    }

    /// Whether the executor has a page, and nobody has asked for it.
    pub(crate) fn is_away(&self, page: PageNumber) -> bool {
        self.pages.has_registered(page.0..page.0 + 1)
            && self.side.right(page) == Right::None
            && !self.side.is_waiting(page)
    }

    /// The function's system call has returned, and perhaps the function was killed meanwhile.
    pub(crate) fn returned(&mut self, call: CallId, value: i64) {
        self.after_service();
        let is_awaited = self.calls.get(&call).is_some_and(|open| open.outcome.is_none());
        if is_awaited && !self.is_lost {
            let told = self.tell(&ToExecutor::Returned(call, value));
            self.check(told);
        }
    }

    /// Asks again for pages whose tie was lost, cancels calls, and looks whether the executor is there.
    pub(crate) fn tick(&mut self) {
        if !self.forks.is_holding() {
            self.cancel_late();
            self.look_after_executor();
        }
        if self.side.next_tick().is_some() && !self.forks.is_holding() {
            let mut out = Vec::new();
            self.side.tick(now(), &mut out);
            let done = self.carry_out(out, &[]);
            self.check(done);
        }
    }

    pub(crate) fn check(&mut self, outcome: Result<(), Broken>) {
        if let Err(why) = outcome {
            self.give_up(&why);
        }
    }

    /// Says why, since nobody else will.
    fn give_up(&mut self, why: &Broken) {
        match why {
            // A full ring can be all that says so.
            Broken::Gone if self.link.is_open() => {
                print("the executor of pushed-down functions takes no messages, and is given up");
            }
            Broken::Gone => {}
            Broken::Protocol(what) => {
                print(&format!("the executor of pushed-down functions has sent {what}, and is given up"))
            }
            Broken::System(Errno(error)) => {
                print(&format!(
                    "error {error} of the operating system; the executor of pushed-down functions is given up"
                ));
            }
        }
        self.lose();
    }

    /// The executor is gone. Its calls have ended, and pages that it had are lost.
    pub(crate) fn lose(&mut self) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        let waiting: Vec<PageNumber> = self.side.awaited().collect();
        let loss = self.side.lost(&RunMap::default());
        self.twins.clear();
        self.watch.kill();
        self.put_off.clear();
        for page in loss.old.pages() {
            // The function wrote it, and said so. What is here is of no use any more.
            let _ = self.pages.take(page);
        }
        for call in self.calls.values_mut() {
            call.outcome = Some(Outcome::Lost);
        }
        for page in waiting {
            // The thread faults again, and learns it.
            let _ = self.pages.wake(page);
        }
        self.link.tell_waiting(false);
    }

    /// After a lost call: the part of its thread's stack below `stack`, where only the function had anything, is the thread's again.
    pub(crate) fn give_back_stack(&mut self, stack: u64) {
        let Some(found) = self.mappings.find(stack - 1) else { return };
        let pages = pages_of(found.start.max(stack.saturating_sub(STACK_BYTES_MAX)), stack);
        for run in self.not_owned(pages) {
            self.side.discard(run, &mut Vec::new());
        }
    }
}

/// Whether a message gives up a page together with its contents.
fn gives_up(next: Option<&CallerOutput>, page: PageNumber) -> bool {
    let Some(Output::Send(message)) = next else { return false };
    let (CoherenceToExecutor::Answer { left, .. } | CoherenceToExecutor::Home { left, .. }) = message else {
        return false;
    };
    *left == Right::None && payload(message).is_some_and(|(given, _)| given == page)
}

pub(crate) fn pages_of(start: u64, end: u64) -> Range<u64> {
    start / PAGE_BYTES as u64..end.div_ceil(PAGE_BYTES as u64)
}
