//! One executor, and what the role knows of it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use base::event::Counter;
use pushdown::{CONTEXTS_MAX, CallEnd, ExecutorLoad};

use crate::area_file::read_load;
use crate::ending::{KillCause, MemoryShortage};
use crate::events;
use crate::groups::ExecutorGroup;
use crate::launch::ExecutorProcess;
use crate::owners::OwnerUse;
use crate::supervision::{Finding, Supervision};
use crate::view::{ExecutorCondition, ExecutorView};

/// Calls that count between two looks, at most: no executor makes more, and one that says so counts no further.
const CALLS_MAX: u64 = 10_000_000;
/// How often memory and processor time are read.
const USAGE_EVERY: Duration = Duration::from_millis(500);

/// By [`CallEnd`].
const END_COUNTERS: [&Counter; CallEnd::COUNT] = [
    &events::CallsReturned,
    &events::CallsSignalled,
    &events::CallsKilled,
    &events::CallsCancelled,
    &events::CallsBusy,
];

/// What an executor is made with.
pub(crate) struct MemberParts {
    pub(crate) owner: u32,
    pub(crate) program: u32,
    pub(crate) program_process: Option<OwnedFd>,
    pub(crate) name: String,
    pub(crate) control: OwnedFd,
    pub(crate) area: OwnedFd,
    pub(crate) process: ExecutorProcess,
    pub(crate) group: Option<ExecutorGroup>,
    pub(crate) silence_max: Duration,
    pub(crate) memory_limit_bytes: Option<u64>,
}

/// An executor.
pub(crate) struct Member {
    pub(crate) parts: MemberParts,
    supervision: Supervision,
    condition: ExecutorCondition,
    cause: Option<KillCause>,
    load: Option<ExecutorLoad>,
    started: Duration,
    used_at: Option<Duration>,
    memory_bytes: Option<u64>,
    processor: Option<Duration>,
}

/// What comes of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Nothing that anybody should be told.
    None,
    /// It does not answer, since this look.
    Sickened(Duration),
    /// It answers again.
    Recovered,
    /// It was killed.
    Killed(KillCause),
}

impl Member {
    /// One that was started now.
    pub(crate) fn new(parts: MemberParts, now: Duration) -> Member {
        let processor = parts.group.as_ref().and_then(ExecutorGroup::cpu_used);
        Member {
            supervision: Supervision::new(parts.silence_max, now),
            parts,
            condition: ExecutorCondition::Starting,
            cause: None,
            load: None,
            started: now,
            used_at: None,
            memory_bytes: None,
            processor,
        }
    }

    pub(crate) fn condition(&self) -> ExecutorCondition {
        self.condition
    }

    /// Whether functions run or wait, as it says.
    pub(crate) fn is_busy(&self) -> bool {
        self.load.is_some_and(|load| load.running > 0 || load.waiting > 0)
    }

    /// The numbers of the last look: functions that run, and calls that wait.
    pub(crate) fn running_and_waiting(&self) -> (u32, u32) {
        self.load.map_or((0, 0), |load| (load.running, load.waiting))
    }

    /// Functions that may run at the same time.
    pub(crate) fn contexts(&self) -> u32 {
        self.load.map_or(0, |load| load.contexts)
    }

    pub(crate) fn memory_bytes(&self) -> Option<u64> {
        self.memory_bytes
    }

    /// Ends it, for the first cause that there is.
    pub(crate) fn kill(&mut self, cause: KillCause) {
        self.cause.get_or_insert(cause);
        self.condition = ExecutorCondition::Ending;
        self.parts.process.kill();
    }

    /// Why it was killed, if the role has killed it.
    pub(crate) fn cause(&self) -> Option<KillCause> {
        self.cause
    }

    /// Whose memory was short, if the kernel has ended it for that.
    pub(crate) fn memory_shortage(&self) -> Option<MemoryShortage> {
        self.parts.group.as_ref().and_then(ExecutorGroup::memory_shortage)
    }

    /// A look at it. What it has done since the last one counts, for its owner too.
    pub(crate) fn look(&mut self, now: Duration, used: &mut OwnerUse) -> Change {
        let load = read_load(&self.parts.area);
        self.count(load, used);
        if self.used_at.is_none_or(|at| now.saturating_sub(at) >= USAGE_EVERY) {
            self.measure(now, used);
        }
        let finding = self.supervision.look(now, load.as_ref());
        let was_sick = self.condition == ExecutorCondition::Sick;
        let (condition, change) = match finding {
            _ if self.cause.is_some() => (ExecutorCondition::Ending, Change::None),
            Finding::Starting => (ExecutorCondition::Starting, Change::None),
            Finding::Serving if was_sick => (ExecutorCondition::Serving, Change::Recovered),
            Finding::Serving => (ExecutorCondition::Serving, Change::None),
            Finding::Sick(_) if was_sick => (ExecutorCondition::Sick, Change::None),
            Finding::Sick(silence) => (ExecutorCondition::Sick, Change::Sickened(silence)),
            Finding::Silent(silence) => (ExecutorCondition::Ending, Change::Killed(KillCause::Silent(silence))),
            Finding::Late(time) => (ExecutorCondition::Ending, Change::Killed(KillCause::Late(time))),
        };
        self.condition = condition;
        if let Change::Killed(cause) = change {
            self.kill(cause);
        }
        change
    }

    /// What the area says is more than before counts, within bounds.
    fn count(&mut self, load: Option<ExecutorLoad>, used: &mut OwnerUse) {
        let Some(load) = load else { return };
        let (begun, ended) = self.load.map_or((0, [0; CallEnd::COUNT]), |load| (load.begun, load.ended));
        let more = |new: u64, old: u64| new.saturating_sub(old).min(CALLS_MAX);
        let calls = more(load.begun, begun);
        events::CallsBegun.add(calls);
        used.calls = used.calls.saturating_add(calls);
        for (counter, (new, old)) in END_COUNTERS.into_iter().zip(load.ended.into_iter().zip(ended)) {
            counter.add(more(new, old));
        }
        self.load = Some(load);
    }

    /// It has ended: what it has done and used since the last look counts.
    pub(crate) fn settle(&mut self, now: Duration, used: &mut OwnerUse) {
        self.count(read_load(&self.parts.area), used);
        self.measure(now, used);
    }

    /// Reads what it uses.
    pub(crate) fn measure(&mut self, now: Duration, used: &mut OwnerUse) {
        self.used_at = Some(now);
        let Some(group) = &self.parts.group else { return };
        self.memory_bytes = group.memory_used();
        if let Some(processor) = group.cpu_used() {
            let more = processor.saturating_sub(self.processor.unwrap_or_default());
            used.processor_us = used.processor_us.saturating_add(u64::try_from(more.as_micros()).unwrap_or(u64::MAX));
            self.processor = Some(processor);
        }
    }

    /// What is shown of it.
    pub(crate) fn view(&self, now: Duration) -> ExecutorView {
        let load = self.load;
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        ExecutorView {
            owner: self.parts.owner,
            program: self.parts.program,
            process: self.parts.process.number(),
            name: self.parts.name.clone(),
            condition: self.condition,
            contexts: self.contexts().min(CONTEXTS_MAX),
            running: load.map_or(0, |load| load.running),
            waiting: load.map_or(0, |load| load.waiting),
            age_ms: milliseconds(now.saturating_sub(self.started)),
            silence_ms: milliseconds(self.supervision.silence()),
            begun: load.map_or(0, |load| load.begun),
            ended: load.map_or([0; CallEnd::COUNT], |load| load.ended),
            queued_ns: load.map_or(0, |load| load.queued_ns),
            memory_bytes: self.memory_bytes,
            memory_limit_bytes: self.parts.memory_limit_bytes,
            processor_us: self.processor.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)),
        }
    }
}
