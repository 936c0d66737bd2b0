//! What the library's thread knows of an executor from which something is expected, and when it wakes to find out (`liveness`).

use std::time::Duration;

use bare::alarm::{Alarm, now};

use crate::executor_process::ExecutorProcess;

/// How often the executor is asked.
const PING_EVERY: Duration = Duration::from_millis(500);
/// How often the library's thread looks while calls are open, for this and for signals.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// More than this does not count between two looks.
const LOOK_MAX: Duration = Duration::from_millis(200);
/// The message about the silence comes after this part of the time.
const WARNING_PART: u32 = 4;

/// What comes of a look at the executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// Nothing.
    Fine,
    /// It is to be asked, with this number.
    Ask(u64),
    /// It has not answered for a while, which the program's user should know.
    Warn(Duration),
    /// It has not answered for too long.
    GiveUp(Duration),
}

/// What the library's thread knows of the executor.
pub(crate) struct Watch {
    /// After which silence the executor is given up.
    silence_max: Duration,
    process: ExecutorProcess,
    /// Why the executor has ended, once that is known.
    end_reason: Option<String>,
    /// When it last looked; `None` if nothing was expected then.
    looked_at: Option<Duration>,
    /// For how long an answer has been missing.
    silence: Duration,
    /// The number of the last ping, and that of the last answer.
    asked: u64,
    answered: u64,
    /// When the next ping is due.
    ask_at: Duration,
    has_warned: bool,
    /// What wakes the library's thread, and whether it is set.
    alarm: Alarm,
    is_alarm_set: bool,
    /// When the library's thread wakes by itself; `None` if never.
    wakes_at: Option<Duration>,
    /// The calls made when it last looked.
    calls_seen: u64,
}

impl Watch {
    pub(crate) fn new(silence_max: Duration, process: ExecutorProcess, alarm: Alarm) -> Watch {
        Watch {
            silence_max,
            process,
            end_reason: None,
            looked_at: None,
            silence: Duration::ZERO,
            asked: 0,
            answered: 0,
            ask_at: Duration::ZERO,
            has_warned: false,
            alarm,
            is_alarm_set: false,
            wakes_at: None,
            calls_seen: 0,
        }
    }

    /// What wakes the library's thread beside messages and faults.
    pub(crate) fn alarm(&self) -> Alarm {
        self.alarm
    }

    /// The executor's process.
    pub(crate) fn process(&self) -> ExecutorProcess {
        self.process
    }

    /// Ends the executor. It may have ended already.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    /// The executor has ended, for this reason. The first one that is known counts. Returns whether this is it.
    pub(crate) fn note_end(&mut self, reason: String) -> bool {
        let is_first = self.end_reason.is_none();
        self.end_reason.get_or_insert(reason);
        is_first
    }

    /// Why the executor has ended, if that is known.
    pub(crate) fn end_reason(&self) -> Option<&str> {
        self.end_reason.as_deref()
    }

    /// The library's thread has to be awake at this time.
    pub(crate) fn wake_at(&mut self, at: Duration) {
        if self.wakes_at.is_none_or(|wakes| at < wakes) {
            self.wakes_at = Some(at);
            // A program that has closed all descriptors has no alarm; then the thread wakes later.
            self.is_alarm_set = self.alarm.set(Some(at)).is_ok();
        }
    }

    /// Something is expected from now on. If the library's thread is awake now and then anyway, it will notice.
    pub(crate) fn begin(&mut self) {
        if self.wakes_at.is_none() {
            self.wake_at(now().saturating_add(LOOK_EVERY));
        }
    }

    /// The executor has answered; whether it was asked.
    pub(crate) fn answered(&mut self, number: u64) -> bool {
        self.answered = self.answered.max(number.min(self.asked));
        number <= self.asked
    }

    /// Nothing is expected from the executor.
    pub(crate) fn rest(&mut self) {
        self.looked_at = None;
    }

    /// A look at an executor from which something is expected, after its messages were handled.
    pub(crate) fn look(&mut self, now: Duration) -> Look {
        let Some(looked_at) = self.looked_at.replace(now) else {
            // Calls that end soon need no ping.
            (self.answered, self.silence) = (self.asked, Duration::ZERO);
            self.ask_at = now.saturating_add(PING_EVERY);
            return Look::Fine;
        };
        if self.answered < self.asked {
            self.silence = self.silence.saturating_add(now.saturating_sub(looked_at).min(LOOK_MAX));
            if self.silence >= self.silence_max {
                return Look::GiveUp(self.silence);
            }
            if self.silence >= self.silence_max / WARNING_PART && !self.has_warned {
                self.has_warned = true;
                return Look::Warn(self.silence);
            }
            return Look::Fine;
        }
        (self.silence, self.has_warned) = (Duration::ZERO, false);
        if now < self.ask_at {
            return Look::Fine;
        }
        self.asked += 1;
        self.ask_at = now.saturating_add(PING_EVERY);
        Look::Ask(self.asked)
    }

    /// The library's thread is about to sleep. Something may be due at `at`; it looks at the executor if something is expected, and while
    /// calls are made: programs that call all the time need not wake it each time. Returns for how long it may sleep; `None` is for ever.
    pub(crate) fn sleep(&mut self, at: Option<Duration>, is_needed: bool, calls_made: u64) -> Option<Duration> {
        let is_busy = std::mem::replace(&mut self.calls_seen, calls_made) != calls_made;
        let now = now();
        let look = (is_busy || is_needed).then(|| now.saturating_add(LOOK_EVERY));
        self.wakes_at = [at, look].into_iter().flatten().min();
        if std::mem::take(&mut self.is_alarm_set) {
            let _ = self.alarm.set(None);
        }
        self.wakes_at.map(|at| at.saturating_sub(now))
    }
}
