//! The caller's side: its resident pages are a cache of pool memory. The protocol is at the head of the crate.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use crate::error::CoherenceError;
use crate::fault::{Mutant, mutant};
use crate::loss::Loss;
use crate::message::{CallOutcome, Payload, ToCaller, ToExecutor};
use crate::mode::{CoherenceMode, CoherenceSettings, Favour, next_pause};
use crate::output::{CallerOutput, Output};
use crate::page::{Access, CallId, PAGE_NUMBERS, PageNumber, Right};
use crate::page_list::{PageList, RUNS_MAX};
use crate::run_map::RunMap;

mod synchronise;

/// Most pages that one [`CallerSide::syncmem`] sends before it returns.
pub const SYNC_PAGES_MAX: usize = 1024;

/// A fault that the executor has to serve.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Wait {
    access: Access,
    /// The last pause of this fault; zero if it has lost no tie yet.
    pause: Duration,
    /// When to ask again, after a lost tie; `None` while the request is on its way.
    retry_at: Option<Duration>,
    /// Whether the program has dropped the page since it was asked for: the grant is older than what the caller has.
    is_overtaken: bool,
}

/// The state of the caller's side. Times are since any fixed moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CallerSide {
    settings: CoherenceSettings,
    /// The mode of the open calls.
    mode: Option<CoherenceMode>,
    /// The open calls. Each has a blocked thread.
    calls: BTreeMap<CallId, CoherenceMode>,
    /// The resident pages.
    rights: RunMap<Right>,
    /// Pages that were written since they were last sent home: those that are mapped writable.
    dirty: RunMap<()>,
    /// Dirty pages with a twin.
    twins: RunMap<()>,
    /// Copies that are older than pool memory.
    stale: RunMap<()>,
    /// Faults that the executor has to serve: at most one for each thread.
    waits: BTreeMap<PageNumber, Wait>,
    /// Pages whose bytes are on their way after a pull, in order, and whether the program has dropped the page since, or has sent what it
    /// wrote there.
    pulls: VecDeque<(PageNumber, bool)>,
}

impl CallerSide {
    /// A caller without resident pages.
    pub fn new(settings: CoherenceSettings) -> CallerSide {
        CallerSide {
            settings,
            mode: None,
            calls: BTreeMap::new(),
            rights: RunMap::default(),
            dirty: RunMap::default(),
            twins: RunMap::default(),
            stale: RunMap::default(),
            waits: BTreeMap::new(),
            pulls: VecDeque::new(),
        }
    }

    /// A caller that has all pages, and of whose pages the pool has none: a process before its first call.
    pub fn owning_all(settings: CoherenceSettings) -> CallerSide {
        let mut caller = CallerSide::new(settings);
        caller.rights.insert(0..PAGE_NUMBERS, Right::Write);
        caller.dirty.insert(0..PAGE_NUMBERS, ());
        caller
    }

    /// The contents of these pages, which the caller had, are in the pool from now on, and nobody has to be told: new memory that the pool
    /// has as zeros. No call is open.
    pub fn leave_to_pool(&mut self, pages: Range<u64>) {
        self.rights.remove(pages.clone());
        self.dirty.remove(pages);
    }

    /// The pages for which faults wait.
    pub fn awaited(&self) -> impl Iterator<Item = PageNumber> + '_ {
        self.waits.keys().copied()
    }

    /// What the caller may do with a page without asking.
    pub fn right(&self, page: PageNumber) -> Right {
        self.rights.get(page).unwrap_or(Right::None)
    }

    /// Whether the page was written since it was last sent home.
    pub fn is_dirty(&self, page: PageNumber) -> bool {
        self.dirty.contains(page)
    }

    /// Whether a fault on the page waits for the executor.
    pub fn is_waiting(&self, page: PageNumber) -> bool {
        self.waits.contains_key(&page)
    }

    /// Whether a fetch is on its way.
    pub fn is_awaiting(&self) -> bool {
        self.waits.values().any(|wait| wait.retry_at.is_none())
    }

    /// Whether any fault waits for the executor.
    pub fn has_waiting(&self) -> bool {
        !self.waits.is_empty()
    }

    /// The mode of the open calls; none if no call is open.
    pub fn mode(&self) -> Option<CoherenceMode> {
        self.mode
    }

    /// The resident pages, with the rights to them.
    pub fn resident(&self) -> &RunMap<Right> {
        &self.rights
    }

    /// The open calls.
    pub fn open_calls(&self) -> impl Iterator<Item = CallId> + '_ {
        self.calls.keys().copied()
    }

    /// Sends a call.
    ///
    /// # Errors
    /// Nothing was sent: calls of another mode run, too many are open, the number is in use, or the resident pages are too
    /// fragmented.
    pub fn call(
        &mut self,
        call: CallId,
        mode: CoherenceMode,
        out: &mut Vec<CallerOutput>,
    ) -> Result<(), CoherenceError> {
        if self.mode.is_some_and(|running| running != mode) {
            return Err(CoherenceError::OtherMode);
        }
        let open_max = self.settings.contexts_max + self.settings.queued_max;
        if self.calls.len() >= open_max {
            return Err(CoherenceError::TooManyCalls(open_max));
        }
        if self.calls.contains_key(&call) {
            return Err(CoherenceError::WrongCall(call));
        }
        let shares_writes = mode.shares_writes();
        let resident = self.listed(shares_writes).ok_or(CoherenceError::TooFragmented(RUNS_MAX))?;
        if shares_writes {
            self.send_differences(out);
        }
        self.mode = Some(mode);
        self.calls.insert(call, mode);
        out.push(Output::Send(ToExecutor::Call { call, mode, resident }));
        Ok(())
    }

    /// The list of a call; `None` if it would have too many runs.
    fn listed(&self, shares_writes: bool) -> Option<PageList> {
        let mut listed = Cow::Borrowed(&self.rights);
        if shares_writes && !mutant(Mutant::ListShared) {
            // A call that joins others finds pages that both sides may write. Of those pool memory has the contents, so the list
            // does not name them as the caller's own, in case the context has ended meanwhile.
            let shared = self.clean_and_writable().into_iter().chain(self.twins.runs().map(|(pages, ())| pages));
            shared.for_each(|pages| listed.to_mut().insert(pages, Right::Read));
        }
        // A right that was asked for before the page was dropped is the executor's again when this message arrives.
        let is_ahead = |wait: &Wait| wait.retry_at.is_none() && (!wait.is_overtaken || mutant(Mutant::ListOvertaken));
        let outstanding = self.waits.iter().filter(|(_, wait)| is_ahead(wait));
        for (page, wait) in outstanding.filter(|_| !mutant(Mutant::OmitOutstanding)) {
            listed.to_mut().set(*page, if shares_writes { Right::Read } else { wait.access.right() });
        }
        PageList::of_rights(&listed)
    }

    /// The pages that the caller may write, and has not since they went home: pool memory has their contents.
    fn clean_and_writable(&self) -> Vec<Range<u64>> {
        let mut clean = Vec::new();
        for (pages, _) in self.rights.runs().filter(|(_, right)| *right == Right::Write) {
            let mut at = pages.start;
            for (dirty, ()) in self.dirty.runs_in(pages.clone()) {
                clean.push(at..dirty.start);
                at = dirty.end;
            }
            clean.push(at..pages.end);
        }
        clean.retain(|pages| !pages.is_empty());
        clean
    }

    /// Whether only the caller has the page's contents: it wrote the page, or dropped it, and pool memory has no version that the executor
    /// could use.
    pub fn has_alone(&self, page: PageNumber) -> bool {
        self.dirty.contains(page) && !self.twins.contains(page)
    }

    /// Asks the executor to remove a call that has not started yet. The answer is [`Output::Finished`] with
    /// [`CallOutcome::Cancelled`], or [`Output::CancelDeclined`].
    ///
    /// # Errors
    /// The call is not open.
    pub fn try_cancel(&mut self, call: CallId, out: &mut Vec<CallerOutput>) -> Result<(), CoherenceError> {
        match self.calls.contains_key(&call) {
            true => {
                out.push(Output::Send(ToExecutor::Cancel(call)));
                Ok(())
            }
            false => Err(CoherenceError::WrongCall(call)),
        }
    }

    /// A thread faulted on a page. It waits for [`Output::Wake`], and then tries again.
    pub fn fault(&mut self, page: PageNumber, access: Access, out: &mut Vec<CallerOutput>) {
        if !self.waits.contains_key(&page) {
            self.resolve(page, access, Duration::ZERO, out);
        }
    }

    /// Resolves a fault, here or by a request.
    fn resolve(&mut self, page: PageNumber, access: Access, pause: Duration, out: &mut Vec<CallerOutput>) {
        let right = self.right(page);
        let alone = self.mode.is_none_or(CoherenceMode::shares_writes);
        if right == Right::Write || (access == Access::Write && right == Right::Read && alone) {
            // Outside of calls no other side exists; with shared writes nobody is asked.
            self.rights.set(page, Right::Write);
        }
        if self.right(page) >= access.right() {
            self.map(page, access, out);
        } else {
            let holds = right == Right::Read && !self.stale.contains(page);
            self.waits.insert(page, Wait { access, pause, retry_at: None, is_overtaken: false });
            out.push(Output::Send(ToExecutor::Fetch { page, access, holds }));
        }
    }

    /// Maps a page for an access to which the caller has the right.
    fn map(&mut self, page: PageNumber, access: Access, out: &mut Vec<CallerOutput>) {
        if access == Access::Write && !self.dirty.contains(page) {
            if self.mode.is_some_and(CoherenceMode::shares_writes) {
                self.twins.set(page, ());
                out.push(Output::Twin(page));
            }
            self.dirty.set(page, ());
        }
        out.push(Output::Map { page, writable: self.dirty.contains(page) });
        out.push(Output::Wake(page));
    }

    /// Evicts a page, to make room. A dirty page goes home to the pool, whether calls run or not.
    ///
    /// # Errors
    /// The page is on its way: another page must give way.
    pub fn evict(&mut self, page: PageNumber, out: &mut Vec<CallerOutput>) -> Result<(), CoherenceError> {
        if self.waits.contains_key(&page) {
            return Err(CoherenceError::InTransit(page));
        }
        if self.right(page) != Right::None {
            self.drop_copy(page, out);
        }
        Ok(())
    }

    /// Drops a copy; what the pool lacks of it goes home.
    fn drop_copy(&mut self, page: PageNumber, out: &mut Vec<CallerOutput>) {
        let payload = match mutant(Mutant::EvictClean) {
            true => Payload::None,
            false => self.unsent(page),
        };
        if payload != Payload::None {
            out.push(Output::Protect(page));
        }
        // While calls run, the executor learns that it need not ask for the page any more. Of a stale copy it knows.
        if payload != Payload::None || (self.mode.is_some() && !self.stale.contains(page)) {
            out.push(Output::Send(ToExecutor::Home { page, left: Right::None, payload }));
        }
        self.forget(page, out);
    }

    /// Removes a page whose contents the pool has, or gets.
    fn forget(&mut self, page: PageNumber, out: &mut Vec<CallerOutput>) {
        out.push(Output::Unmap(page));
        self.rights.take(page);
        self.dirty.take(page);
        self.twins.take(page);
        self.stale.take(page);
    }

    /// What a message must carry so that the pool has the page's newest contents.
    fn unsent(&self, page: PageNumber) -> Payload {
        match (self.dirty.contains(page), self.twins.contains(page) && !mutant(Mutant::WholePage)) {
            (false, _) => Payload::None,
            (true, true) => Payload::Diff,
            (true, false) => Payload::Page,
        }
    }

    /// Protects a page and takes note that its contents are sent; returns what to send.
    fn clean(&mut self, page: PageNumber, out: &mut Vec<CallerOutput>) -> Payload {
        let payload = self.unsent(page);
        if payload != Payload::None && !mutant(Mutant::ShareUnprotected) {
            out.push(Output::Protect(page));
        }
        payload
    }

    /// Sends a dirty page home and keeps a copy with a right.
    fn send_home(&mut self, page: PageNumber, left: Right, out: &mut Vec<CallerOutput>) {
        let payload = self.clean(page, out);
        self.rights.set(page, left);
        out.push(Output::Send(ToExecutor::Home { page, left, payload }));
        self.cleaned(page, out);
    }

    /// Forgets that a page is dirty, once the message with its contents is among the outputs.
    fn cleaned(&mut self, page: PageNumber, out: &mut Vec<CallerOutput>) {
        if self.dirty.take(page) {
            self.overtake_pulls(page.0..page.0 + 1);
        }
        if self.twins.take(page) {
            out.push(Output::DropTwin(page));
        }
    }

    /// What was asked for of these pages is older than what the executor gets now.
    fn overtake_pulls(&mut self, pages: Range<u64>) {
        let pulls = self.pulls.iter_mut().filter(|(page, _)| pages.contains(&page.0));
        pulls.for_each(|(_, is_overtaken)| *is_overtaken = true);
    }

    /// The program dropped the contents of pages, or unmapped them. They read as zeros from now on, for both sides, and the caller
    /// has them. The shim has none of the pages mapped any more, and no twin of them; threads that wait for one are woken when its grant comes.
    ///
    /// In the default mode nobody else has a page that is dirty here, so the shim need not report that the program dropped it.
    pub fn discard(&mut self, pages: Range<u64>, out: &mut Vec<CallerOutput>) {
        let pages = pages.start..pages.end.min(PAGE_NUMBERS);
        if pages.is_empty() {
            return;
        }
        let twins = self.twins.runs_in(pages.clone()).flat_map(|(run, ())| run);
        out.extend(twins.map(|page| Output::DropTwin(PageNumber(page))));
        self.twins.remove(pages.clone());
        self.stale.remove(pages.clone());
        self.rights.insert(pages.clone(), Right::Write);
        self.dirty.insert(pages.clone(), ());
        let waits = self.waits.range_mut(PageNumber(pages.start)..PageNumber(pages.end));
        waits.for_each(|(_, wait)| wait.is_overtaken = true);
        self.overtake_pulls(pages.clone());
        let (first, count) = (PageNumber(pages.start), pages.end - pages.start);
        out.push(Output::Send(ToExecutor::Discard { first, count }));
    }

    /// Handles a message of the executor, to its end.
    ///
    /// # Errors
    /// The executor broke the protocol. Nothing has changed.
    pub fn receive(
        &mut self,
        message: ToCaller,
        now: Duration,
        out: &mut Vec<CallerOutput>,
    ) -> Result<(), CoherenceError> {
        match message {
            ToCaller::Grant { page, access, payload } => self.granted(page, access, payload, out)?,
            ToCaller::Request { page, access } => self.requested(page, access, now, out),
            ToCaller::Reply { call, outcome, written } => {
                if self.calls.remove(&call).is_none() {
                    return Err(CoherenceError::WrongCall(call));
                }
                // The list of a killed function is for its caller's thread alone.
                if self.mode.is_some_and(CoherenceMode::shares_writes) && outcome != CallOutcome::Killed {
                    self.note_written(&written);
                }
                self.end_call(call, outcome, out);
            }
            ToCaller::CancelAnswer { call, removed: true } => {
                if self.calls.remove(&call).is_none() {
                    return Err(CoherenceError::WrongCall(call));
                }
                self.end_call(call, CallOutcome::Cancelled, out);
            }
            ToCaller::CancelAnswer { call, removed: false } => {
                if self.calls.contains_key(&call) {
                    out.push(Output::CancelDeclined(call));
                }
            }
            ToCaller::Written(written) => {
                if self.mode.is_some_and(|mode| !mode.shares_writes()) {
                    return Err(CoherenceError::Protocol("it lists what it wrote, and writes are not shared"));
                }
                self.note_written(&written);
            }
            ToCaller::Pulled(range) => {
                let Some(&(_, is_overtaken)) = self.pulls.front().filter(|(page, _)| *page == range.page) else {
                    return Err(CoherenceError::Protocol("it sent bytes that were not asked for"));
                };
                self.pulls.pop_front();
                let is_shared = self.right(range.page) != Right::None && !self.has_alone(range.page);
                if is_overtaken && is_shared && !mutant(Mutant::InstallPulled) {
                    // The bytes may be older than what went home since.
                    self.pulls.push_back((range.page, false));
                    out.push(Output::Send(ToExecutor::Pull(range)));
                } else if is_shared || (mutant(Mutant::InstallDiscarded) && self.right(range.page) != Right::None) {
                    out.push(Output::Install(range.page));
                }
            }
        }
        Ok(())
    }

    fn granted(
        &mut self,
        page: PageNumber,
        access: Access,
        payload: Payload,
        out: &mut Vec<CallerOutput>,
    ) -> Result<(), CoherenceError> {
        let asked = |wait: &&Wait| wait.access == access && wait.retry_at.is_none();
        let Some(wait) = self.waits.get(&page).filter(asked).cloned() else {
            return Err(CoherenceError::Protocol("it granted a page that was not asked for"));
        };
        if wait.is_overtaken && !mutant(Mutant::InstallDiscarded) {
            self.waits.remove(&page);
            self.resolve(page, access, wait.pause, out);
            return Ok(());
        }
        if payload == Payload::None && self.right(page) == Right::None {
            return Err(CoherenceError::Protocol("it granted a page without contents"));
        }
        self.waits.remove(&page);
        if payload == Payload::Page {
            out.push(Output::Install(page));
            self.stale.take(page);
        }
        self.rights.set(page, access.right());
        self.map(page, access, out);
        Ok(())
    }

    /// Gives the executor a page that it needs.
    fn requested(&mut self, page: PageNumber, access: Access, now: Duration, out: &mut Vec<CallerOutput>) {
        if let Some(wait) = self.waits.get_mut(&page).filter(|wait| wait.retry_at.is_none()) {
            // Both asked at the same time, and each side knows it.
            match self.settings.favour {
                Favour::Caller => return,
                Favour::Pool => {
                    wait.pause = next_pause(wait.pause, &self.settings);
                    wait.retry_at = Some(now.saturating_add(wait.pause));
                }
            }
        }
        let left = match (self.right(page), self.mode.unwrap_or_default(), access) {
            (Right::None, _, _) => Right::None,
            (_, CoherenceMode::WeakOrdering | CoherenceMode::Off, _) => Right::Write,
            (_, CoherenceMode::Coherent, Access::Write) => Right::None,
            _ => Right::Read,
        };
        let payload = self.clean(page, out);
        out.push(Output::Send(ToExecutor::Answer { page, left, payload }));
        match left {
            Right::None if mutant(Mutant::KeepOnWrite) => self.cleaned(page, out),
            Right::None if self.right(page) != Right::None => self.forget(page, out),
            Right::None => {}
            Right::Read | Right::Write => {
                self.cleaned(page, out);
                self.rights.set(page, left);
                if self.mode == Some(CoherenceMode::Pso) && access == Access::Write {
                    self.stale.set(page, ());
                }
            }
        }
    }

    /// Takes note of pages that the executor has written. What only the caller has, it has dropped since.
    fn note_written(&mut self, written: &PageList) {
        for (pages, _) in written.runs() {
            let mut old = RunMap::default();
            self.rights.runs_in(pages.clone()).for_each(|(pages, _)| old.insert(pages, ()));
            self.dirty.runs_in(pages.clone()).for_each(|(pages, ())| old.remove(pages));
            self.twins.runs_in(pages).for_each(|(pages, ())| old.insert(pages, ()));
            self.stale.unite(&old);
        }
    }

    /// The end of a call is a synchronisation point: old copies are dropped.
    fn end_call(&mut self, call: CallId, outcome: CallOutcome, out: &mut Vec<CallerOutput>) {
        if !mutant(Mutant::KeepStale) {
            for page in self.stale_in(0..u64::MAX) {
                self.drop_copy(page, out);
            }
        }
        if self.calls.is_empty() {
            let shared_writes = self.mode.take().is_some_and(CoherenceMode::shares_writes);
            if shared_writes && !mutant(Mutant::KeepShared) {
                // What is clean is in pool memory too, so the caller may read it as before, and a later call does not list it as
                // the caller's own.
                let clean = self.clean_and_writable();
                clean.into_iter().for_each(|pages| self.rights.insert(pages, Right::Read));
            }
            // The executor has not written these pages: they may go home whole.
            let twins: Vec<PageNumber> = self.twins.pages().collect();
            out.extend(twins.into_iter().map(Output::DropTwin));
            self.twins = RunMap::default();
        }
        out.push(Output::Finished(call, outcome));
    }

    fn stale_in(&self, pages: Range<u64>) -> Vec<PageNumber> {
        self.stale.runs_in(pages).flat_map(|(pages, ())| pages).map(PageNumber).collect()
    }

    /// When [`tick`](CallerSide::tick) has something to do.
    pub fn next_tick(&self) -> Option<Duration> {
        self.waits.values().filter_map(|wait| wait.retry_at).min()
    }

    /// Asks again for pages whose tie was lost, once the pause has passed.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<CallerOutput>) {
        if mutant(Mutant::NeverRetry) {
            return;
        }
        let is_due = |wait: &Wait| wait.retry_at.is_some_and(|at| at <= now);
        let due: Vec<PageNumber> = self.waits.iter().filter(|(_, wait)| is_due(wait)).map(|(page, _)| *page).collect();
        for page in due {
            let Some(wait) = self.waits.remove(&page) else { continue };
            self.resolve(page, wait.access, wait.pause, out);
        }
    }

    /// The executor, or the connection to it, is lost. `unconfirmed` are the pages whose contents the caller sent home, or that it discarded, in
    /// messages that the transport has not confirmed. The calls are over: of each it is unknown what it did. Threads that wait for
    /// a page get none.
    pub fn lost(&mut self, unconfirmed: &RunMap<()>) -> Loss {
        let calls: Vec<CallId> = std::mem::take(&mut self.calls).into_keys().collect();
        self.waits.clear();
        self.pulls.clear();
        let mode = self.mode.take().unwrap_or_default();
        let mut good = RunMap::default();
        for (pages, right) in self.rights.runs() {
            // A page that the caller may write is nobody else's, and one that it may read was not written by the executor. With
            // weaker modes that holds only for pages that the executor has not had.
            let is_good = match mode {
                _ if calls.is_empty() => true,
                CoherenceMode::Coherent => true,
                CoherenceMode::Pso => right == Right::Write,
                CoherenceMode::WeakOrdering | CoherenceMode::Off => false,
            };
            if is_good || mutant(Mutant::TrustGivenPages) {
                good.insert(pages, ());
            }
        }
        if mode.shares_writes() && !calls.is_empty() {
            // Dirty since before the call, and not asked for since.
            good.unite(&self.dirty);
            self.twins.runs().for_each(|(twins, ())| good.remove(twins));
        }
        // What the executor had is newer. The caller goes on with what it has of the other pages.
        let old = std::mem::take(&mut self.stale);
        for (pages, ()) in old.runs() {
            self.rights.remove(pages.clone());
            self.dirty.remove(pages);
        }
        // What was sent and is still here is sent again.
        for (pages, ()) in unconfirmed.runs() {
            let here: Vec<Range<u64>> = self.rights.runs_in(pages).map(|(run, _)| run).collect();
            for run in here {
                self.rights.insert(run.clone(), Right::Write);
                self.dirty.insert(run, ());
            }
        }
        self.twins = RunMap::default();
        let mut given = unconfirmed.clone();
        good.runs().for_each(|(pages, ())| given.remove(pages));
        Loss { pool_is_good: calls.is_empty() || mutant(Mutant::TrustGivenPages), calls, good, old, given }
    }
}
