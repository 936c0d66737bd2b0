//! The pool's side: the full table of pool memory and, while calls run, the temporary table of the executor. The protocol is at
//! the head of the crate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use crate::context::Context;
use crate::error::CoherenceError;
use crate::fault::{Mutant, mutant};
use crate::message::{CallOutcome, Payload, ToCaller, ToExecutor};
use crate::mode::{CoherenceMode, CoherenceSettings, Favour, next_pause};
use crate::output::{ExecutorOutput, Output};
use crate::page::{Access, CallId, PageNumber, Right};
use crate::page_list::PageList;
use crate::run_map::RunMap;

/// Pages that are on their way from storage, at most: each is waited for by a thread of the caller or of the executor.
const LOADS_MAX: usize = 1 << 16;

/// A fault that the caller has to serve.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Request {
    access: Access,
    pause: Duration,
    /// When to ask again, after a lost tie; `None` while the request is on its way.
    retry_at: Option<Duration>,
}

/// A page that storage is asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Load {
    /// The caller's request that waits for it.
    fetch: Option<Access>,
}

/// The state of the pool's side, for one caller. Times are since any fixed moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ExecutorSide {
    settings: CoherenceSettings,
    /// The full table: pages in pool memory. All others are in storage, or zero.
    present: RunMap<()>,
    /// Pages in pool memory that storage lacks, by the full table.
    dirty: RunMap<()>,
    loads: BTreeMap<PageNumber, Load>,
    requests: BTreeMap<PageNumber, Request>,
    context: Option<Context>,
    running: BTreeSet<CallId>,
    queue: VecDeque<CallId>,
}

impl ExecutorSide {
    /// A pool without pages in memory.
    pub fn new(settings: CoherenceSettings) -> ExecutorSide {
        ExecutorSide {
            settings,
            present: RunMap::default(),
            dirty: RunMap::default(),
            loads: BTreeMap::new(),
            requests: BTreeMap::new(),
            context: None,
            running: BTreeSet::new(),
            queue: VecDeque::new(),
        }
    }

    /// What the executor may do with a page without asking the caller; nothing while no call is there.
    pub fn right(&self, page: PageNumber) -> Right {
        self.context.as_ref().map_or(Right::None, |context| context.right(page))
    }

    /// The mode of the calls; none if no context is there.
    pub fn mode(&self) -> Option<CoherenceMode> {
        self.context.as_ref().map(|context| context.mode)
    }

    /// Whether a context is there.
    pub fn has_context(&self) -> bool {
        self.context.is_some()
    }

    /// Whether the page is in pool memory.
    pub fn is_present(&self, page: PageNumber) -> bool {
        self.present.contains(page)
    }

    /// Whether pool memory has contents of the page that storage lacks.
    pub fn is_dirty(&self, page: PageNumber) -> bool {
        self.dirty.contains(page) || self.context.as_ref().is_some_and(|context| context.dirty.contains(page))
    }

    /// Whether a request for the page is on its way.
    pub fn has_request(&self, page: PageNumber) -> bool {
        self.requests.get(&page).is_some_and(|request| request.retry_at.is_none())
    }

    /// The pages for which a request is on its way.
    pub fn requested(&self) -> impl Iterator<Item = PageNumber> + '_ {
        self.requests.iter().filter(|(_, request)| request.retry_at.is_none()).map(|(page, _)| *page)
    }

    /// Whether the page is on its way from the caller or from storage.
    pub fn is_waiting(&self, page: PageNumber) -> bool {
        self.requests.contains_key(&page) || self.loads.contains_key(&page)
    }

    /// A thread of the executor faulted on a page. It waits for [`Output::Wake`], and then tries again.
    pub fn fault(&mut self, page: PageNumber, access: Access, out: &mut Vec<ExecutorOutput>) {
        self.resolve(page, access, Duration::ZERO, out);
    }

    fn resolve(&mut self, page: PageNumber, access: Access, pause: Duration, out: &mut Vec<ExecutorOutput>) {
        // A thread that was stopped has no context; a page on its way wakes its threads when it is there.
        let Some(context) = &mut self.context else { return };
        if self.loads.contains_key(&page) || self.requests.contains_key(&page) {
            return;
        }
        if context.right(page) < access.right() && !mutant(Mutant::LoadFromStorage) {
            // The caller has the page, or may read it: a coherence fault.
            self.requests.insert(page, Request { access, pause, retry_at: None });
            out.push(Output::Send(ToCaller::Request { page, access }));
        } else if !self.present.contains(page) {
            // The caller does not matter, but pool memory lacks the page: a true fault.
            self.loads.insert(page, Load { fetch: None });
            out.push(Output::Load(page));
        } else {
            if access == Access::Write {
                context.note_write(page);
            }
            out.push(Output::Map { page, writable: context.dirty.contains(page) });
            out.push(Output::Wake(page));
        }
    }

    /// Storage has delivered a page that [`Output::Load`] asked for.
    pub fn loaded(&mut self, page: PageNumber, out: &mut Vec<ExecutorOutput>) {
        let Some(load) = self.loads.remove(&page) else { return };
        if !self.present.contains(page) {
            self.present.set(page, ());
            out.push(Output::Place(page));
        }
        if let Some(access) = load.fetch {
            self.grant(page, access, Payload::Page, out);
        }
        out.push(Output::Wake(page));
    }

    /// Evicts a page from pool memory to storage.
    ///
    /// # Errors
    /// The page is on its way: another page must give way.
    pub fn evict(&mut self, page: PageNumber, out: &mut Vec<ExecutorOutput>) -> Result<(), CoherenceError> {
        if self.is_waiting(page) {
            return Err(CoherenceError::InTransit(page));
        }
        if !self.present.contains(page) {
            return Ok(());
        }
        if self.context.is_some() {
            out.push(Output::Unmap(page));
            self.merge_dirty(page);
        }
        if self.dirty.take(page) {
            out.push(Output::Store(page));
        }
        self.present.take(page);
        out.push(Output::Free(page));
        Ok(())
    }

    /// A synchronisation point of the executor. With partial store order it drops copies that the caller may have
    /// overwritten; with weak ordering it tells the caller which pages it wrote. The caller's writes need nothing here: they
    /// arrive with the caller's `syncmem`.
    pub fn syncmem(&mut self, out: &mut Vec<ExecutorOutput>) {
        self.drop_stale(out);
        if self.context.as_ref().is_some_and(|context| context.mode == CoherenceMode::WeakOrdering) {
            self.tell_written(out);
        }
    }

    /// A function is about to ask its caller for a service that may read what the function wrote, and may write to its memory: a system
    /// call. The caller learns of all that was written, also with coherence off.
    pub fn before_service(&mut self, out: &mut Vec<ExecutorOutput>) {
        if self.context.as_ref().is_some_and(|context| context.mode.shares_writes())
            && !mutant(Mutant::ServeUnannounced)
        {
            self.tell_written(out);
        }
    }

    /// The service is done: what the caller has written for it is seen from now on.
    pub fn after_service(&mut self, out: &mut Vec<ExecutorOutput>) {
        self.drop_stale(out);
    }

    /// Tells the caller which pages were written since it was last told.
    fn tell_written(&mut self, out: &mut Vec<ExecutorOutput>) {
        let written = self.announce(out).into_iter().filter(|list| !list.is_empty());
        let written: Vec<PageList> = written.collect();
        out.extend(written.into_iter().map(|list| Output::Send(ToCaller::Written(list))));
    }

    /// Drops copies that the caller may have overwritten.
    fn drop_stale(&mut self, out: &mut Vec<ExecutorOutput>) {
        let Some(context) = &mut self.context else { return };
        let stale = std::mem::take(&mut context.stale);
        for page in stale.pages() {
            context.set_right(page, Right::None);
            out.push(Output::Unmap(page));
        }
    }

    /// The pages that were written since the caller was last told. Later writes to them fault, and count as new ones.
    fn announce(&mut self, out: &mut Vec<ExecutorOutput>) -> Vec<PageList> {
        let Some(context) = &mut self.context else { return Vec::new() };
        let written = std::mem::take(&mut context.unannounced);
        if mutant(Mutant::ReplyUnnoticed) {
            return Vec::new();
        }
        let mapped = std::mem::take(&mut context.dirty);
        out.extend(mapped.pages().map(Output::Protect));
        self.dirty.unite(&mapped);
        PageList::of_written(&written)
    }

    /// The function of a call has returned. The reply is all that this costs.
    ///
    /// # Errors
    /// The call does not run.
    pub fn finish(&mut self, call: CallId, out: &mut Vec<ExecutorOutput>) -> Result<(), CoherenceError> {
        self.end_call(call, CallOutcome::Done, out)
    }

    /// The shim has left these pages writable from an earlier context, so that writing them was no fault: they count as written in this one.
    /// To be said before [`kill`](ExecutorSide::kill).
    pub fn note_written(&mut self, pages: &RunMap<()>) {
        if let Some(context) = &mut self.context {
            context.written.unite(pages);
        }
    }

    /// The function of a call was ended before it returned. The reply lists all pages that were written in the context, which may
    /// be incomplete.
    ///
    /// # Errors
    /// The call does not run.
    pub fn kill(&mut self, call: CallId, out: &mut Vec<ExecutorOutput>) -> Result<(), CoherenceError> {
        self.end_call(call, CallOutcome::Killed, out)
    }

    fn end_call(
        &mut self,
        call: CallId,
        outcome: CallOutcome,
        out: &mut Vec<ExecutorOutput>,
    ) -> Result<(), CoherenceError> {
        if !self.running.remove(&call) {
            return Err(CoherenceError::WrongCall(call));
        }
        let context = self.context.as_ref().expect("a running call has a context");
        let incomplete = (outcome == CallOutcome::Killed).then(|| PageList::that_covers(&context.written));
        let mut announced = match context.mode.shares_writes() {
            true => self.announce(out),
            false => Vec::new(),
        };
        // What the reply has no room for goes before it.
        let written = match incomplete {
            Some(incomplete) => incomplete,
            None => announced.pop().unwrap_or_default(),
        };
        let before = announced.into_iter().filter(|list| !list.is_empty());
        out.extend(before.map(|list| Output::Send(ToCaller::Written(list))));
        self.end_unused_context(out);
        out.push(Output::Send(ToCaller::Reply { call, outcome, written }));
        self.start_next(out);
        Ok(())
    }

    fn start_next(&mut self, out: &mut Vec<ExecutorOutput>) {
        while self.running.len() < self.settings.contexts_max.max(1) {
            let Some(call) = self.queue.pop_front() else { return };
            self.running.insert(call);
            out.push(Output::Start(call));
        }
    }

    /// Removes the temporary table once no call is left: its dirty bits are merged into the full table.
    fn end_unused_context(&mut self, out: &mut Vec<ExecutorOutput>) {
        if !self.running.is_empty() || !self.queue.is_empty() {
            return;
        }
        if let Some(context) = self.context.take() {
            if !mutant(Mutant::ForgetMerge) {
                self.dirty.unite(&context.dirty);
            }
            out.push(Output::EndContext);
        }
        // A request that is on its way is still answered. One that waits for its turn has no thread any more.
        self.requests.retain(|_, request| request.retry_at.is_none());
    }

    /// The caller, or the connection to it, is lost: running functions end, and the context with them. Pool memory stays as it is.
    pub fn caller_lost(&mut self, out: &mut Vec<ExecutorOutput>) {
        out.extend(std::mem::take(&mut self.running).into_iter().map(Output::Stop));
        self.queue.clear();
        self.end_unused_context(out);
        self.requests.clear();
        self.loads.values_mut().for_each(|load| load.fetch = None);
    }

    /// Handles a message of the caller, to its end.
    ///
    /// # Errors
    /// The caller broke the protocol. Nothing has changed.
    pub fn receive(
        &mut self,
        message: ToExecutor,
        now: Duration,
        out: &mut Vec<ExecutorOutput>,
    ) -> Result<(), CoherenceError> {
        match message {
            ToExecutor::Call { call, mode, resident } => self.called(call, mode, &resident, out),
            ToExecutor::Cancel(call) => {
                self.cancelled(call, out);
                Ok(())
            }
            ToExecutor::Fetch { page, access, holds } => self.fetched(page, access, holds, now, out),
            ToExecutor::Home { page, left, payload } => {
                self.check_left(left)?;
                self.came_home(page, left, payload, out);
                Ok(())
            }
            ToExecutor::Answer { page, left, payload } => {
                self.check_left(left)?;
                if self.requests.get(&page).is_none_or(|request| request.retry_at.is_some()) {
                    return Err(CoherenceError::Protocol("it answered a request that was not made"));
                }
                let request = self.requests.remove(&page).expect("it was just seen");
                // With partial store order the caller keeps an old copy beside the executor's right to write.
                let is_pso = self.context.as_ref().is_some_and(|context| context.mode == CoherenceMode::Pso);
                let left = if is_pso && request.access == Access::Write { Right::None } else { left };
                self.came_home(page, left, payload, out);
                Ok(())
            }
            ToExecutor::Discard { first, count } => {
                self.discarded(first.0..first.0.saturating_add(count), out);
                Ok(())
            }
            ToExecutor::Push(_) | ToExecutor::Pull(_)
                if self.context.as_ref().is_some_and(|context| context.mode != CoherenceMode::Off) =>
            {
                Err(CoherenceError::Protocol("it sends or asks for bytes of a range, and the calls are coherent"))
            }
            ToExecutor::Push(range) => {
                self.fill(range.page, out);
                self.dirty.set(range.page, ());
                out.push(Output::Install(range.page));
                Ok(())
            }
            ToExecutor::Pull(range) => {
                self.fill(range.page, out);
                out.push(Output::Send(ToCaller::Pulled(range)));
                Ok(())
            }
        }
    }

    /// The caller has these pages now, as zeros. A request for one that is on its way is answered as any other.
    fn discarded(&mut self, pages: Range<u64>, out: &mut Vec<ExecutorOutput>) {
        self.present.remove(pages.clone());
        self.dirty.remove(pages.clone());
        if let Some(context) = self.context.as_mut().filter(|_| !mutant(Mutant::KeepDiscarded)) {
            context.discard(pages.clone());
        }
        out.push(Output::Drop(pages.clone()));
        let loading = self.loads.range(PageNumber(pages.start)..PageNumber(pages.end));
        for page in loading.map(|(page, _)| *page).collect::<Vec<_>>() {
            let load = self.loads.remove(&page);
            if let Some(access) = load.and_then(|load| load.fetch) {
                out.push(Output::Send(ToCaller::Grant { page, access, payload: Payload::None }));
            }
            out.push(Output::Wake(page));
        }
    }

    fn called(
        &mut self,
        call: CallId,
        mode: CoherenceMode,
        resident: &PageList,
        out: &mut Vec<ExecutorOutput>,
    ) -> Result<(), CoherenceError> {
        if self.running.contains(&call) || self.queue.contains(&call) {
            return Err(CoherenceError::WrongCall(call));
        }
        let is_full = self.running.len() >= self.settings.contexts_max.max(1);
        if is_full && self.queue.len() >= self.settings.queued_max {
            let written = PageList::default();
            out.push(Output::Send(ToCaller::Reply { call, outcome: CallOutcome::Busy, written }));
            return Ok(());
        }
        match &self.context {
            None => self.context = Some(Context::new(mode, resident)),
            Some(context) if context.mode != mode => {
                return Err(CoherenceError::Protocol("it mixed modes in one context"));
            }
            Some(context) => {
                let in_transit = |page| self.requests.contains_key(&page) || self.loads.contains_key(&page);
                if !context.agrees(resident, in_transit) {
                    return Err(CoherenceError::Protocol("it listed a page that it does not have"));
                }
                // The function sees all that was written before its call.
                self.drop_stale(out);
            }
        }
        self.queue.push_back(call);
        self.start_next(out);
        Ok(())
    }

    fn cancelled(&mut self, call: CallId, out: &mut Vec<ExecutorOutput>) {
        let queued = self.queue.len();
        self.queue.retain(|other| *other != call);
        let removed = self.queue.len() < queued || (mutant(Mutant::CancelRunning) && self.running.remove(&call));
        if removed {
            self.end_unused_context(out);
        }
        out.push(Output::Send(ToCaller::CancelAnswer { call, removed }));
    }

    fn fetched(
        &mut self,
        page: PageNumber,
        access: Access,
        holds: bool,
        now: Duration,
        out: &mut Vec<ExecutorOutput>,
    ) -> Result<(), CoherenceError> {
        if let Some(load) = self.loads.get_mut(&page) {
            if load.fetch.is_some() {
                return Err(CoherenceError::Protocol("it asked twice for a page"));
            }
            load.fetch = Some(access).filter(|_| !mutant(Mutant::ForgetFetch));
            return Ok(());
        }
        if let Some(request) = self.requests.get_mut(&page).filter(|request| request.retry_at.is_none()) {
            // Both asked at the same time, and each side knows it.
            match self.settings.favour {
                Favour::Pool if !mutant(Mutant::ServeInTie) => return Ok(()),
                _ => {
                    request.pause = next_pause(request.pause, &self.settings);
                    request.retry_at = Some(now.saturating_add(request.pause));
                }
            }
        }
        match (holds, self.present.contains(page)) {
            (true, _) => self.grant(page, access, Payload::None, out),
            (false, true) => self.grant(page, access, Payload::Page, out),
            (false, false) if self.loads.len() >= LOADS_MAX => {
                return Err(CoherenceError::Protocol("more of its threads wait for storage than a process has"));
            }
            (false, false) => {
                self.loads.insert(page, Load { fetch: Some(access) });
                out.push(Output::Load(page));
            }
        }
        Ok(())
    }

    /// Gives the caller a page: the executor's right shrinks first, then the contents are sent.
    fn grant(&mut self, page: PageNumber, access: Access, payload: Payload, out: &mut Vec<ExecutorOutput>) {
        if let Some(context) = &mut self.context {
            let right = context.right(page);
            match (context.mode, access) {
                (CoherenceMode::WeakOrdering | CoherenceMode::Off, _) => {}
                (CoherenceMode::Coherent, Access::Write) => {
                    out.push(Output::Unmap(page));
                    context.set_right(page, Right::None);
                    self.merge_dirty(page);
                }
                (CoherenceMode::Pso, Access::Write) => {
                    if right == Right::Write {
                        out.push(Output::Protect(page));
                        self.merge_dirty(page);
                    }
                    self.keep_old_copy(page, right);
                }
                (CoherenceMode::Coherent | CoherenceMode::Pso, Access::Read) => {
                    context.set_right(page, Right::Read);
                    if right == Right::Write {
                        out.push(Output::Protect(page));
                        self.merge_dirty(page);
                    }
                }
            }
        }
        out.push(Output::Send(ToCaller::Grant { page, access, payload }));
    }

    /// With partial store order the executor may still read what the caller overwrites.
    fn keep_old_copy(&mut self, page: PageNumber, right: Right) {
        if let Some(context) = self.context.as_mut().filter(|_| right != Right::None) {
            context.set_right(page, Right::Read);
            context.stale.set(page, ());
        }
    }

    /// The temporary table's dirty bit moves to the full table: the executor may not write the page any more.
    fn merge_dirty(&mut self, page: PageNumber) {
        if let Some(context) = &mut self.context
            && context.dirty.take(page)
            && !mutant(Mutant::DropDirty)
        {
            self.dirty.set(page, ());
        }
    }

    /// The caller may keep the right to write a page that it sends only where both sides may write.
    fn check_left(&self, left: Right) -> Result<(), CoherenceError> {
        let excludes = self.context.as_ref().is_some_and(|context| !context.mode.shares_writes());
        match left == Right::Write && excludes {
            true => Err(CoherenceError::Protocol("it kept the right to write a page that it sent")),
            false => Ok(()),
        }
    }

    /// The caller has sent contents of a page, and keeps a right to it.
    fn came_home(&mut self, page: PageNumber, left: Right, payload: Payload, out: &mut Vec<ExecutorOutput>) {
        if payload == Payload::Diff {
            self.fill(page, out);
        }
        if payload != Payload::None {
            self.present.set(page, ());
            self.dirty.set(page, ());
            out.push(Output::Install(page));
        }
        if let Some(context) = &mut self.context {
            let excludes = left == Right::Read && !context.mode.shares_writes();
            context.set_right(page, if excludes { Right::Read } else { Right::Write });
            context.stale.take(page);
        }
        out.push(Output::Wake(page));
    }

    /// Brings a page into pool memory at once, because bytes of it are about to be changed or read.
    fn fill(&mut self, page: PageNumber, out: &mut Vec<ExecutorOutput>) {
        if !self.present.contains(page) {
            self.present.set(page, ());
            out.push(Output::Fill(page));
        }
    }

    /// When [`tick`](ExecutorSide::tick) has something to do.
    pub fn next_tick(&self) -> Option<Duration> {
        self.requests.values().filter_map(|request| request.retry_at).min()
    }

    /// Asks again for pages whose tie was lost, once the pause has passed (with [`Favour::Caller`] only).
    pub fn tick(&mut self, now: Duration, out: &mut Vec<ExecutorOutput>) {
        let is_due = |request: &Request| request.retry_at.is_some_and(|at| at <= now);
        let due = self.requests.iter().filter(|(_, request)| is_due(request)).map(|(page, _)| *page);
        let due: Vec<PageNumber> = due.collect();
        for page in due {
            let Some(request) = self.requests.remove(&page) else { continue };
            self.resolve(page, request.access, request.pause, out);
        }
    }
}
