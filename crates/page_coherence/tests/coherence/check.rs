//! The invariants of the protocol, checked after each step.

use page_coherence::{CoherenceMode, Loss, PageNumber, Payload, Right, RunMap, ToCaller, ToExecutor};

use crate::system::{Body, Doing, Side, System};

/// Most messages of one direction: threads are few, and each waits for one page or call.
const IN_FLIGHT_MAX: usize = 200;

fn is_about(message: &ToExecutor, page: PageNumber) -> bool {
    match message {
        ToExecutor::Fetch { page: other, .. }
        | ToExecutor::Home { page: other, .. }
        | ToExecutor::Answer { page: other, .. } => *other == page,
        ToExecutor::Discard { first, count } => (first.0..first.0 + count).contains(&page.0),
        _ => false,
    }
}

impl System {
    /// Whether nothing about a page is on its way.
    fn is_quiet(&self, page: PageNumber) -> bool {
        let to_executor = self.to_executor.iter().any(|(message, _)| is_about(message, page));
        let to_caller = self.to_caller.iter().any(|(message, _)| match message {
            ToCaller::Grant { page: other, .. } | ToCaller::Request { page: other, .. } => *other == page,
            _ => false,
        });
        !to_executor && !to_caller && !self.caller.is_waiting(page) && !self.executor.is_waiting(page)
    }

    /// Checks everything that must hold after each step; see the numbers at the head of the crate.
    pub fn check(&mut self) {
        for page in self.known_pages() {
            if let Some(wrong) = self.broken(PageNumber(page)) {
                self.fail(format!("{wrong}: page {page}"));
            }
        }
        if self.to_executor.len().max(self.to_caller.len()) > IN_FLIGHT_MAX {
            self.fail("messages pile up".to_owned());
        }
        if self.steps().is_empty() && !self.is_done() {
            let waiting: Vec<_> = self.threads.iter().map(|thread| &thread.doing).collect();
            let waiting = format!("all threads wait: {waiting:?}");
            self.fail(waiting);
        }
    }

    fn broken(&self, page: PageNumber) -> Option<&'static str> {
        let caller = self.copies.get(&page.0).and_then(|copy| copy.writable);
        let executor = self.table.get(&page.0).copied();
        let (here, there) = (self.caller.right(page), self.executor.right(page));
        let has_context = self.executor.has_context();
        // 1: one writer or many readers, in what threads can really do. The executor has what was discarded until it hears of it.
        let is_discarding = self.truth.is_discarding(page.0);
        let is_split = !is_discarding
            && caller.is_some()
            && executor.is_some()
            && (caller == Some(true) || executor == Some(true));
        if self.mode == CoherenceMode::Coherent && is_split {
            return Some("one side may write what the other may access");
        }
        if self.mode == CoherenceMode::Pso && !is_discarding && caller == Some(true) && executor == Some(true) {
            return Some("both sides may write");
        }
        // 2: the rights say the same, and (R, absent) does not exist, when nothing is on its way.
        if self.mode == CoherenceMode::Coherent && has_context && self.is_quiet(page) {
            match (here, there) {
                (Right::None, _) | (Right::Read, Right::Read) | (Right::Write, Right::None) => {}
                (Right::Read, Right::None) => return Some("the caller may read what is absent at the executor"),
                _ => return Some("the sides have rights that exclude each other"),
            }
        }
        // 3: no mapping without a right, and none that is writable of a clean page.
        if caller.is_some() && here == Right::None || executor.is_some() && (there == Right::None || !has_context) {
            return Some("a page is mapped without a right");
        }
        if caller == Some(true) && (here != Right::Write || !self.caller.is_dirty(page)) {
            return Some("the caller may write what counts as clean");
        }
        if executor == Some(true) && (there != Right::Write || !self.executor.is_dirty(page)) {
            return Some("the executor may write what counts as clean");
        }
        if executor.is_some() && !self.executor.is_present(page) {
            return Some("a page is mapped that is not in pool memory");
        }
        if self.executor.is_dirty(page) && !self.executor.is_present(page) {
            return Some("a page counts as dirty that is not in pool memory");
        }
        // 4: what is clean is the same one level below.
        let stored = self.storage.get(&page.0).copied().unwrap_or_default();
        if let Some(home) = self.home.get(&page.0)
            && !self.executor.is_dirty(page)
            && *home != stored
        {
            return Some("a clean page differs from storage");
        }
        None
    }

    /// The executor and the connections are lost. Checks that exactly the pages are in doubt that the executor may have been
    /// writing, or that were on their way, and that all others have their newest contents.
    pub fn lose_executor(&mut self) {
        let mut unconfirmed = RunMap::default();
        for (message, _) in &self.to_executor {
            if let ToExecutor::Home { page, payload, .. } | ToExecutor::Answer { page, payload, .. } = message
                && *payload != Payload::None
            {
                unconfirmed.set(*page, ());
            }
            if let ToExecutor::Discard { first, count } = message {
                unconfirmed.insert(first.0..first.0 + count, ());
            }
        }
        let had_calls = self.caller.open_calls().count() > 0;
        let loss: Loss = self.caller.lost(&unconfirmed);
        if loss.calls.is_empty() == had_calls {
            self.fail("the open calls are not told".to_owned());
        }
        for page in self.known_pages() {
            let number = PageNumber(page);
            let is_torn = loss.may_be_torn(number);
            let can_write = self.executor.has_context() && self.executor.right(number) == Right::Write;
            let executor_writes = can_write && !self.truth.is_discarding(page);
            if executor_writes && had_calls && !is_torn {
                self.fail(format!("page {page} counts as good, and the executor could write it"));
            }
            if self.mode == CoherenceMode::Coherent && self.copies.contains_key(&page) && is_torn {
                self.fail(format!("page {page} counts as torn, and the caller has it"));
            }
            let stored = self.storage.get(&page).copied().unwrap_or_default();
            let home = self.home.get(&page).copied().unwrap_or(stored);
            let contents = self.copies.get(&page).map_or(home, |copy| copy.contents);
            let newest = |place: usize| self.truth.newest.get(&(page, place)).copied().unwrap_or(0);
            if !is_torn && (0..contents.len()).any(|place| contents[place] != newest(place)) {
                self.fail(format!("page {page} counts as good, and has old contents"));
            }
        }
    }

    /// The caller is lost: the executor must drop the context and all that the caller had.
    pub fn lose_caller(&mut self) {
        let mut out = Vec::new();
        self.executor.caller_lost(&mut out);
        let stops = out.iter().filter(|output| matches!(output, page_coherence::Output::Stop(_))).count();
        let running = self.threads.iter().filter(|thread| thread.side == Side::Executor && thread.doing != Doing::Idle);
        if stops != running.count() || self.executor.has_context() || self.executor.next_tick().is_some() {
            self.fail("the executor keeps the context of a lost caller".to_owned());
        }
        for page in self.known_pages() {
            if self.executor.right(PageNumber(page)) != Right::None {
                self.fail(format!("the executor keeps a right to page {page}"));
            }
        }
    }

    /// All calls have ended: sends everything home and to storage, which must have the newest value of each word.
    pub fn settle(&mut self) {
        let mut out = Vec::new();
        for page in self.known_pages() {
            if self.caller.evict(PageNumber(page), &mut out).is_err() {
                self.fail(format!("page {page} is still on its way"));
            }
        }
        self.run_caller_outputs(std::mem::take(&mut out), &Body::None);
        while !self.to_executor.is_empty() && self.wrong.is_none() {
            self.apply(crate::system::Step::ToExecutor);
        }
        for page in self.known_pages() {
            if self.executor.is_waiting(PageNumber(page)) {
                self.fail(format!("page {page} is still awaited"));
                return;
            }
            self.evictions = 1;
            self.apply(crate::system::Step::EvictPool(page));
        }
        let wrong =
            self.truth.newest.iter().find(|((page, place), newest)| {
                self.storage.get(page).is_none_or(|contents| contents[*place] != **newest)
            });
        if let Some(((page, place), newest)) = wrong {
            let stored = self.storage.get(page).map(|contents| contents[*place]);
            self.fail(format!("storage has {stored:?} in word {place} of page {page}, and {newest} is the newest"));
        }
    }
}
