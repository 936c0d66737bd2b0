//! Both sides with their memory, storage, threads and connections, one step at a time.
//!
//! The seeded runs choose a step at random, the model checker and the litmus tests take each. The checkers are in
//! [`System::access`], which compares what is read and overwritten with the newest value of each word in the order of the steps, and in
//! [`crate::check`], which looks at the whole system after each step. A page has four words, and a word stands for a byte of the crate's
//! pages.
//!
//! What a discard leaves are zeros. Here each discard has a number, as each write has, and its zeros are that number: so the checkers tell them
//! from the zeros of another discard, and from those of the beginning. At the caller a discard happens at once, at the executor when it
//! arrives. What the executor does before counts as done before the discard: [`Truth::discards`] has what is newest there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::ErrorKind;
use page_coherence::{
    Access, CallId, CallerOutput, CallerSide, CoherenceMode, CoherenceSettings, ExecutorSide, PAGE_BYTES, PageNumber,
    Right, ToCaller, ToExecutor,
};

use crate::truth::{Discarded, Truth};

pub const WORDS: usize = 4;
pub type Contents = [u32; WORDS];
/// A word of memory: its page and its place there.
pub type Word = (u64, usize);

/// What a thread does, one after another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// Reads a word into a register.
    Read(Word, usize),
    /// Writes a value into a word.
    Write(Word, u32),
    /// Writes the next unused value into a word, as an atomic instruction that reads it first.
    Add(Word),
    /// At the caller: drops the contents of pages: the first one, and how many. The zeros are the number, or the next unused value.
    Discard(u64, u64, Option<u32>),
    /// A synchronisation point for all memory.
    Sync,
    /// At the caller: a synchronisation point for some bytes of each page.
    SyncBytes,
    /// At the caller: fetches all bytes that are the other side's, and some of its own, with coherence off.
    Pull,
    /// At the executor: has the caller do something with all memory.
    Service,
    /// At the caller: pushes the program with this number down, and waits for its end.
    Call(usize),
    /// As `Call`, but asks to remove the call from the queue, once.
    CallAndCancel(usize),
}

/// The programs of all threads. They are the same in all states of a run.
#[derive(Clone, Debug)]
pub struct Programs(pub Arc<Vec<Vec<Op>>>);

impl Hash for Programs {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl PartialEq for Programs {
    fn eq(&self, _: &Programs) -> bool {
        true
    }
}

impl Eq for Programs {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    Caller,
    Executor,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    Running,
    /// Waits for a page.
    Faulted(u64),
    /// Waits for a call.
    Calling(CallId),
    /// Waits for a service of the caller.
    Served,
    /// Was not started yet, or is over.
    Idle,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    pub side: Side,
    pub program: usize,
    pub next: usize,
    pub doing: Doing,
    /// The call that the thread runs, at the executor.
    pub call: Option<CallId>,
    pub registers: [u32; 2],
}

/// The bytes behind the head of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    None,
    Page(Contents),
    /// Words with their values: a difference, or a range.
    Words(Vec<(usize, u32)>),
    /// The zeros of a discard, which are no bytes of the message.
    Zeros(u32),
    /// No message of the protocol: a thread of the executor needs a service, or the caller has done it.
    Service(usize),
}

/// What pool memory has of a page that the caller has whole: no thread may find it.
const NOBODYS: u32 = u32::MAX;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Copied {
    pub contents: Contents,
    pub twin: Option<Contents>,
    /// Whether threads may write, if they may access it at all.
    pub writable: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    Thread(usize),
    ToExecutor,
    ToCaller,
    /// The shim of the caller puts the next message off, a request.
    PutOff,
    /// It handles the first request that it has put off.
    HandlePutOff,
    Loaded(u64),
    TickCaller,
    TickExecutor,
    EvictCaller(u64),
    EvictPool(u64),
    Kill(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct System {
    pub mode: CoherenceMode,
    pub caller: CallerSide,
    pub executor: ExecutorSide,
    pub copies: BTreeMap<u64, Copied>,
    pub home: BTreeMap<u64, Contents>,
    /// The temporary table: pages that are mapped, and whether writable.
    pub table: BTreeMap<u64, bool>,
    pub storage: BTreeMap<u64, Contents>,
    pub loading: BTreeSet<u64>,
    pub to_executor: VecDeque<(ToExecutor, Body)>,
    pub to_caller: VecDeque<(ToCaller, Body)>,
    /// Requests that the shim of the caller has put off.
    pub put_off: VecDeque<ToCaller>,
    /// How many more it may put off.
    pub put_offs: u32,
    pub threads: Vec<Thread>,
    pub programs: Programs,
    /// The pages of the programs are those below.
    pub pages: u64,
    /// Whether the caller drops pages that nobody else can have without saying so, in the default mode.
    pub drops_its_own: bool,
    pub now: Duration,
    pub truth: Truth,
    /// Whether snapshots are kept: litmus tests and the model check less, and have fewer states.
    pub follows_floors: bool,
    /// Evictions that may still happen.
    pub evictions: u32,
    /// Whether the caller has evicted a page; kept only where floors are followed.
    pub has_evicted: bool,
    /// Functions that may still be killed.
    pub kills: u32,
    /// Messages that were sent in each direction, and those that have arrived; not counted where floors are not followed.
    pub sent: [u64; 2],
    pub arrived: [u64; 2],
    pub next_value: u32,
    pub wrong: Option<String>,
    /// Ties, for the report of a campaign.
    pub ties: u32,
}

impl System {
    /// A system whose first threads are the caller's, one for each number of a program in `callers`.
    pub fn new(mode: CoherenceMode, settings: CoherenceSettings, programs: Vec<Vec<Op>>, callers: usize) -> System {
        System {
            mode,
            caller: CallerSide::new(settings),
            executor: ExecutorSide::new(settings),
            copies: BTreeMap::new(),
            home: BTreeMap::new(),
            table: BTreeMap::new(),
            storage: BTreeMap::new(),
            loading: BTreeSet::new(),
            to_executor: VecDeque::new(),
            to_caller: VecDeque::new(),
            put_off: VecDeque::new(),
            put_offs: 0,
            threads: (0..callers).map(thread_of_caller).collect(),
            pages: programs.iter().flatten().map(pages_of).max().unwrap_or(0),
            drops_its_own: false,
            programs: Programs(Arc::new(programs)),
            now: Duration::ZERO,
            truth: Truth::default(),
            follows_floors: false,
            evictions: 0,
            has_evicted: false,
            kills: 0,
            sent: [0; 2],
            arrived: [0; 2],
            next_value: 1,
            wrong: None,
            ties: 0,
        }
    }

    /// Lets the caller begin with all pages: a process before its first call. They are zero.
    pub fn own_all(&mut self, settings: CoherenceSettings) {
        self.caller = CallerSide::owning_all(settings);
        let zeros = Copied { contents: Contents::default(), twin: None, writable: None };
        self.copies = (0..self.pages).map(|page| (page, zeros.clone())).collect();
    }

    /// Goes on with other programs, and calls of another mode. All threads have ended, and nothing is on its way.
    pub fn go_on(&mut self, mode: CoherenceMode, programs: Vec<Vec<Op>>) {
        let callers = self.threads.iter().filter(|thread| thread.side == Side::Caller).count();
        self.mode = mode;
        self.threads = (0..callers).map(thread_of_caller).collect();
        self.programs = Programs(Arc::new(programs));
    }

    pub fn fail(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// The pages that anything knows.
    pub fn known_pages(&self) -> BTreeSet<u64> {
        let known = self.copies.keys().chain(self.home.keys()).chain(self.storage.keys()).copied();
        known.chain(self.truth.newest.keys().map(|(page, _)| *page)).collect()
    }

    pub fn next_op(&self, thread: &Thread) -> Option<Op> {
        self.programs.0[thread.program].get(thread.next).copied()
    }

    /// The steps that are possible now.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.wrong.is_some() {
            return steps;
        }
        for (index, thread) in self.threads.iter().enumerate() {
            // The end of a function is a step, the end of a caller's thread is none.
            let has_step = thread.side == Side::Executor || self.next_op(thread).is_some();
            if thread.doing == Doing::Running && has_step {
                steps.push(Step::Thread(index));
            }
            if self.kills > 0 && thread.side == Side::Executor && thread.doing != Doing::Idle {
                steps.push(Step::Kill(index));
            }
        }
        if !self.to_executor.is_empty() {
            steps.push(Step::ToExecutor);
        }
        if !self.to_caller.is_empty() {
            steps.push(Step::ToCaller);
        }
        if !self.put_off.is_empty() {
            steps.push(Step::HandlePutOff);
        }
        if self.put_offs > 0 && matches!(self.to_caller.front(), Some((ToCaller::Request { .. }, _))) {
            steps.push(Step::PutOff);
        }
        steps.extend(self.loading.iter().map(|page| Step::Loaded(*page)));
        if self.caller.next_tick().is_some() {
            steps.push(Step::TickCaller);
        }
        if self.executor.next_tick().is_some() {
            steps.push(Step::TickExecutor);
        }
        if self.evictions > 0 {
            let here = self.copies.keys().filter(|page| !self.caller.is_waiting(PageNumber(**page)));
            steps.extend(here.map(|page| Step::EvictCaller(*page)));
            let pool = self.home.keys().filter(|page| !self.executor.is_waiting(PageNumber(**page)));
            steps.extend(pool.map(|page| Step::EvictPool(*page)));
        }
        steps
    }

    /// Whether all threads have ended.
    pub fn is_done(&self) -> bool {
        self.threads.iter().all(|thread| match thread.side {
            Side::Caller => thread.doing == Doing::Running && self.next_op(thread).is_none(),
            Side::Executor => thread.doing == Doing::Idle,
        })
    }

    pub fn apply(&mut self, step: Step) {
        let (mut caller_out, mut executor_out) = (Vec::new(), Vec::new());
        match step {
            Step::Thread(index) => return self.run_thread(index),
            Step::ToExecutor => {
                let (message, body) = self.to_executor.pop_front().expect("the step was possible");
                self.count_tie(&message);
                self.arrived[0] += u64::from(self.follows_floors);
                if let Body::Service(thread) = body {
                    return self.served(thread);
                }
                self.forget_listed(&message);
                if matches!(message, ToExecutor::Discard { .. }) {
                    self.discard_arrived();
                }
                let result = self.executor.receive(message.clone(), self.now, &mut executor_out);
                if let Err(error) = result {
                    self.fail(format!("the executor refuses {message:?}: {error}"));
                }
                self.run_executor_outputs(executor_out, &body);
                if self.mode == CoherenceMode::Pso && matches!(message, ToExecutor::Call { .. }) {
                    self.acquire(Side::Executor);
                }
                return self.bind_releases();
            }
            Step::ToCaller => {
                let (message, body) = self.next_to_caller();
                if let Body::Service(thread) = body {
                    return self.serve(thread);
                }
                return self.arrive_at_caller(message, &body);
            }
            Step::PutOff => {
                self.put_offs -= 1;
                let (message, _) = self.next_to_caller();
                return self.put_off.push_back(message);
            }
            Step::HandlePutOff => {
                let message = self.put_off.pop_front().expect("the step was possible");
                return self.arrive_at_caller(message, &Body::None);
            }
            Step::Loaded(page) => {
                self.loading.remove(&page);
                self.executor.loaded(PageNumber(page), &mut executor_out);
            }
            Step::TickCaller => {
                self.now = self.now.max(self.caller.next_tick().expect("the step was possible"));
                self.caller.tick(self.now, &mut caller_out);
            }
            Step::TickExecutor => {
                self.now = self.now.max(self.executor.next_tick().expect("the step was possible"));
                self.executor.tick(self.now, &mut executor_out);
            }
            Step::EvictCaller(page) => {
                self.evictions -= 1;
                self.has_evicted |= self.follows_floors;
                self.caller.evict(PageNumber(page), &mut caller_out).expect("it is not on its way");
            }
            Step::EvictPool(page) => {
                self.evictions -= 1;
                self.executor.evict(PageNumber(page), &mut executor_out).expect("it is not on its way");
            }
            Step::Kill(index) => {
                self.kills -= 1;
                let call = self.threads[index].call.expect("it runs a call");
                self.threads[index].doing = Doing::Idle;
                self.release(Side::Executor);
                if let Err(error) = self.executor.kill(call, &mut executor_out) {
                    self.fail(format!("the executor does not know what runs: {error}"));
                }
            }
        }
        self.run_caller_outputs(caller_out, &Body::None);
        self.run_executor_outputs(executor_out, &Body::None);
        self.mark_releases();
    }

    fn next_to_caller(&mut self) -> (ToCaller, Body) {
        self.arrived[1] += u64::from(self.follows_floors);
        self.bind_releases();
        self.to_caller.pop_front().expect("the step was possible")
    }

    fn arrive_at_caller(&mut self, message: ToCaller, body: &Body) {
        let is_reply = matches!(message, ToCaller::Reply { .. });
        let mut out = Vec::new();
        if let Err(error) = self.caller.receive(message.clone(), self.now, &mut out) {
            self.fail(format!("the caller refuses {message:?}: {error}"));
        }
        if is_reply {
            self.acquire_at_caller();
        }
        self.run_caller_outputs(out, body);
    }

    /// Counts a tie. Without evictions of the caller both sides may read the page, and the caller wants to write it (invariant 5).
    fn count_tie(&mut self, message: &ToExecutor) {
        let ToExecutor::Fetch { page, access, holds } = message else { return };
        if !self.follows_floors || !self.executor.has_request(*page) {
            return;
        }
        self.ties += 1;
        let is_upgrade = *access == Access::Write && *holds && self.executor.right(*page) == Right::Read;
        let is_checked = self.mode == CoherenceMode::Coherent && self.executor.has_context() && !self.has_evicted;
        if is_checked && !is_upgrade {
            self.fail(format!("a tie of page {page:?} that is no upgrade"));
        }
    }

    fn run_thread(&mut self, index: usize) {
        let thread = self.threads[index].clone();
        let (mut caller_out, mut executor_out) = (Vec::new(), Vec::new());
        let Some(op) = self.next_op(&thread) else {
            let call = thread.call.expect("a function belongs to a call");
            self.threads[index].doing = Doing::Idle;
            self.release(Side::Executor);
            if let Err(error) = self.executor.finish(call, &mut executor_out) {
                self.fail(format!("the executor does not know what runs: {error}"));
            }
            self.run_executor_outputs(executor_out, &Body::None);
            return self.mark_releases();
        };
        let side = thread.side;
        match (op, side) {
            (Op::Read(word, _), _) => return self.access(index, word, Access::Read, op),
            (Op::Write(word, _) | Op::Add(word), _) => return self.access(index, word, Access::Write, op),
            (Op::Discard(first, count, zeros), _) => self.discard(first..first + count, zeros, &mut caller_out),
            (Op::Sync, Side::Caller) => {
                self.acquire_at_caller();
                self.release(Side::Caller);
                let mut from = Some(0);
                while let Some(address) = from {
                    from = self.caller.syncmem(address, self.pages * PAGE_BYTES - address, &mut caller_out);
                }
            }
            (Op::SyncBytes, _) => {
                self.acquire_at_caller();
                self.release(Side::Caller);
                // All words of this side, and one of the other's.
                for page in self.copies.keys() {
                    let rest = self.caller.syncmem(page * PAGE_BYTES, WORDS as u64 - 1, &mut caller_out);
                    assert_eq!(rest, None);
                }
            }
            (Op::Sync, Side::Executor) => {
                if self.mode == CoherenceMode::Pso {
                    self.acquire(Side::Executor);
                }
                self.release(Side::Executor);
                self.executor.syncmem(&mut executor_out);
            }
            (Op::Service, _) => {
                self.release(Side::Executor);
                self.executor.before_service(&mut executor_out);
                self.threads[index].doing = Doing::Served;
                self.run_executor_outputs(executor_out, &Body::None);
                self.threads[index].next += 1;
                let nothing = ToCaller::CancelAnswer { call: CallId(u64::MAX), removed: false };
                self.sent[1] += u64::from(self.follows_floors);
                self.to_caller.push_back((nothing, Body::Service(index)));
                return self.mark_releases();
            }
            (Op::Pull, _) => {
                for page in self.copies.keys() {
                    let rest = self.caller.pull(page * PAGE_BYTES + 1, WORDS as u64 - 1, &mut caller_out);
                    assert_eq!(rest, None);
                }
            }
            (Op::Call(program) | Op::CallAndCancel(program), _) => {
                // The number of a call says which program it is.
                let call = CallId((thread.next * 100 + index * 10 + program) as u64);
                match self.caller.call(call, self.mode, &mut caller_out) {
                    Ok(()) => {}
                    // Too many are open: the thread tries again.
                    Err(error) if error.kind() == ErrorKind::Retry => {
                        return self.run_caller_outputs(caller_out, &Body::None);
                    }
                    Err(error) => return self.fail(format!("the caller cannot call: {error}")),
                }
                self.release(Side::Caller);
                if matches!(op, Op::CallAndCancel(_)) {
                    self.caller.try_cancel(call, &mut caller_out).expect("the call is open");
                }
                self.threads[index].doing = Doing::Calling(call);
            }
        }
        self.threads[index].next += 1;
        self.run_caller_outputs(caller_out, &Body::None);
        self.run_executor_outputs(executor_out, &Body::None);
        self.mark_releases();
    }

    /// A service of the caller: it sees what the function wrote before, and the function sees afterwards what was written here.
    fn serve(&mut self, thread: usize) {
        let mut out = Vec::new();
        self.caller.before_service(&mut out);
        self.acquire_at_caller();
        self.run_caller_outputs(out, &Body::None);
        self.release(Side::Caller);
        let mut out = Vec::new();
        self.caller.after_service(&mut out);
        self.run_caller_outputs(out, &Body::None);
        self.sent[0] += u64::from(self.follows_floors);
        self.to_executor.push_back((ToExecutor::Cancel(CallId(u64::MAX)), Body::Service(thread)));
        self.mark_releases();
    }

    /// The service is done.
    fn served(&mut self, thread: usize) {
        let mut out = Vec::new();
        self.executor.after_service(&mut out);
        self.run_executor_outputs(out, &Body::None);
        if self.mode == CoherenceMode::Pso {
            self.acquire(Side::Executor);
        }
        if self.threads[thread].doing == Doing::Served {
            self.threads[thread].doing = Doing::Running;
        }
        self.bind_releases();
    }

    /// A call begins a context. Of what the list names as the caller's own, pool memory's contents are not used again, so a shim need
    /// not keep them.
    fn forget_listed(&mut self, message: &ToExecutor) {
        let ToExecutor::Call { resident, .. } = message else { return };
        if self.executor.has_context() {
            return;
        }
        for (pages, _) in resident.runs().filter(|(_, right)| *right == Right::Write) {
            for page in pages.start..pages.end.min(self.pages) {
                if !self.executor.is_waiting(PageNumber(page)) {
                    self.home.entry(page).and_modify(|contents| *contents = [NOBODYS; WORDS]);
                    self.storage.insert(page, [NOBODYS; WORDS]);
                }
            }
        }
    }

    /// The program drops pages: it has them from now on, as zeros.
    fn discard(&mut self, pages: Range<u64>, zeros: Option<u32>, out: &mut Vec<CallerOutput>) {
        let zeros = zeros.unwrap_or(self.next_value);
        self.next_value = self.next_value.max(zeros + 1);
        let is_own = |page: &u64| {
            self.caller.right(PageNumber(*page)) == Right::Write && self.caller.is_dirty(PageNumber(*page))
        };
        let is_quiet = self.drops_its_own && self.mode == CoherenceMode::Coherent;
        let told: Vec<Range<u64>> = match is_quiet {
            true => pages.clone().filter(|page| !is_own(page)).map(|page| page..page + 1).collect(),
            false => vec![pages.clone()],
        };
        for run in told {
            let words = self.truth.newest.range((run.start, 0)..(run.end, 0));
            let before = words.map(|(word, value)| (*word, *value)).collect();
            self.truth.discards.push_back(Discarded { pages: run.clone(), zeros, before });
            self.caller.discard(run, out);
        }
        for page in pages {
            self.copies.insert(page, Copied { contents: [zeros; WORDS], twin: None, writable: None });
            for place in 0..WORDS {
                self.truth.newest.insert((page, place), zeros);
                if self.follows_floors {
                    self.truth.floor.insert((Side::Caller, (page, place)), zeros);
                }
            }
        }
    }

    /// A discard has arrived at the executor, which reads nothing older from now on.
    fn discard_arrived(&mut self) {
        let discard = self.truth.discards.pop_front().expect("each was noted");
        for page in discard.pages.filter(|_| self.follows_floors) {
            for place in 0..WORDS {
                self.truth.floor.insert((Side::Executor, (page, place)), discard.zeros);
            }
        }
    }

    /// The contents and the permission of a page at a side.
    fn mapped(&mut self, side: Side, page: u64) -> Option<(bool, &mut Contents)> {
        match side {
            Side::Caller => {
                let copy = self.copies.get_mut(&page)?;
                Some((copy.writable?, &mut copy.contents))
            }
            Side::Executor => Some((*self.table.get(&page)?, self.home.get_mut(&page)?)),
        }
    }

    /// A thread accesses a word: it does so if the mapping lets it, and faults otherwise.
    fn access(&mut self, index: usize, (page, place): Word, access: Access, op: Op) {
        let side = self.threads[index].side;
        let next_value = self.next_value;
        let newest = self.truth.newest_at(side, page).get(&(page, place)).copied().unwrap_or(0);
        let (mode, was_discarded) = (self.mode, side == Side::Caller || !self.truth.is_discarding(page));
        let floor = self.truth.floor.get(&(side, (page, place))).copied().unwrap_or(0);
        let here = self.mapped(side, page).filter(|(writable, _)| *writable || access == Access::Read);
        let Some((_, contents)) = here else {
            self.threads[index].doing = Doing::Faulted(page);
            let (mut caller_out, mut executor_out) = (Vec::new(), Vec::new());
            match side {
                Side::Caller => self.caller.fault(PageNumber(page), access, &mut caller_out),
                Side::Executor => self.executor.fault(PageNumber(page), access, &mut executor_out),
            }
            self.run_caller_outputs(caller_out, &Body::None);
            return self.run_executor_outputs(executor_out, &Body::None);
        };
        let found = contents[place];
        let mut new = None;
        match op {
            Op::Write(_, value) => new = Some(value),
            Op::Add(_) => new = Some(next_value),
            _ => {}
        }
        if let Some(value) = new {
            contents[place] = value;
        }
        // Side by side the words of a page belong to one side each with shared writes, and to both otherwise.
        let is_own = (place < WORDS / 2) == (side == Side::Caller);
        let must_be_newest = match mode {
            CoherenceMode::Coherent => true,
            CoherenceMode::Pso => new.is_some(),
            CoherenceMode::WeakOrdering | CoherenceMode::Off => is_own && self.follows_floors,
        };
        if must_be_newest && found != newest {
            self.fail(format!("{side:?} finds {found} in word {place} of page {page}, and {newest} is the newest"));
        }
        if was_discarded && self.truth.discarded_values.contains(&found) {
            self.fail(format!("{side:?} finds {found} in word {place} of page {page}, which was discarded"));
        }
        if self.follows_floors {
            if found < floor || found > newest {
                self.fail(format!("{side:?} finds {found} in word {place} of page {page}, after {floor}"));
            }
            self.truth.floor.insert((side, (page, place)), new.unwrap_or(found));
        }
        if let Op::Read(_, register) = op {
            self.threads[index].registers[register] = found;
        }
        if let Some(value) = new {
            self.truth.note_write(side, (page, place), value, self.follows_floors);
            self.next_value = self.next_value.max(value + u32::from(matches!(op, Op::Add(_))));
        }
        self.threads[index].next += 1;
    }
}

fn thread_of_caller(program: usize) -> Thread {
    Thread { side: Side::Caller, program, next: 0, doing: Doing::Running, call: None, registers: [0; 2] }
}

/// The page behind the last one that an operation names.
fn pages_of(op: &Op) -> u64 {
    match op {
        Op::Read((page, _), _) | Op::Write((page, _), _) | Op::Add((page, _)) => page + 1,
        Op::Discard(first, count, _) => first + count,
        Op::Sync | Op::SyncBytes | Op::Pull | Op::Service | Op::Call(_) | Op::CallAndCancel(_) => 0,
    }
}
