//! How an executor fares, by what its area says at each look. Pure: time and numbers come from outside.

use std::time::Duration;

use pushdown::{ExecutorLoad, ExecutorState};

/// How long an executor may take to begin.
const BEGIN_MAX: Duration = Duration::from_secs(30);
/// More than this does not count between two looks: the role itself did not run.
const LOOK_MAX: Duration = Duration::from_millis(250);
/// An executor is sick after this part of the silence that is allowed.
const SICK_PART: u32 = 4;

/// What comes of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finding {
    /// It has not begun.
    Starting,
    /// It answers, or nothing is expected of it.
    Serving,
    /// It has not answered for so long.
    Sick(Duration),
    /// It has not answered for all the time that it has.
    Silent(Duration),
    /// It has not begun within its time.
    Late(Duration),
}

/// What the role knows of an executor from earlier looks.
#[derive(Debug)]
pub(crate) struct Supervision {
    silence_max: Duration,
    started: Duration,
    looked_at: Duration,
    silence: Duration,
    /// How far the executor had taken what was sent to it, and the program what the executor had sent.
    taken: u64,
    taken_by_caller: u64,
}

impl Supervision {
    /// Of an executor that starts now.
    pub(crate) fn new(silence_max: Duration, now: Duration) -> Supervision {
        Supervision { silence_max, started: now, looked_at: now, silence: Duration::ZERO, taken: 0, taken_by_caller: 0 }
    }

    /// A look. `None` is an area that cannot be read, or says nothing that makes sense.
    pub(crate) fn look(&mut self, now: Duration, load: Option<&ExecutorLoad>) -> Finding {
        let passed = now.saturating_sub(std::mem::replace(&mut self.looked_at, now)).min(LOOK_MAX);
        let Some(load) = load.filter(|load| load.state != ExecutorState::Starting) else {
            return match now.saturating_sub(self.started) {
                took if took > BEGIN_MAX => Finding::Late(BEGIN_MAX),
                _ => Finding::Starting,
            };
        };
        let has_taken = std::mem::replace(&mut self.taken, load.taken) != load.taken;
        let is_caller_stuck = std::mem::replace(&mut self.taken_by_caller, load.taken_by_caller)
            == load.taken_by_caller
            && load.is_caller_behind;
        if !load.is_behind || has_taken || is_caller_stuck {
            self.silence = Duration::ZERO;
            return Finding::Serving;
        }
        self.silence = self.silence.saturating_add(passed);
        match self.silence {
            silence if silence >= self.silence_max => Finding::Silent(silence),
            silence if silence >= self.silence_max / SICK_PART => Finding::Sick(silence),
            _ => Finding::Serving,
        }
    }

    /// For how long it has not answered.
    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }
}

#[cfg(test)]
mod tests {
    use pushdown::CallEnd;

    use super::*;

    const STEP: Duration = Duration::from_millis(100);
    const SILENCE: Duration = Duration::from_secs(2);

    fn load(is_behind: bool, taken: u64) -> ExecutorLoad {
        ExecutorLoad {
            state: ExecutorState::Ready,
            contexts: 1,
            running: 0,
            waiting: 0,
            queued_ns: 0,
            begun: 0,
            ended: [0; CallEnd::COUNT],
            taken,
            is_behind,
            taken_by_caller: 0,
            is_caller_behind: false,
        }
    }

    #[test]
    fn an_executor_that_takes_nothing_is_sick_and_then_silent() {
        let mut supervision = Supervision::new(SILENCE, Duration::ZERO);
        let mut found = Vec::new();
        for step in 1..=21 {
            found.push(supervision.look(STEP * step, Some(&load(true, 5))));
        }
        // The first look sees that something was taken before.
        assert!(found[..5].iter().all(|finding| *finding == Finding::Serving), "{found:?}");
        assert!(found[5..20].iter().all(|finding| matches!(finding, Finding::Sick(_))), "{found:?}");
        assert_eq!(found[20], Finding::Silent(SILENCE));
    }

    #[test]
    fn one_message_that_is_taken_ends_a_sickness() {
        let mut supervision = Supervision::new(SILENCE, Duration::ZERO);
        for step in 1..=8 {
            supervision.look(STEP * step, Some(&load(true, 5)));
        }
        assert!(supervision.silence() >= SILENCE / SICK_PART);
        assert_eq!(supervision.look(STEP * 9, Some(&load(true, 6))), Finding::Serving);
        assert_eq!(supervision.silence(), Duration::ZERO);
    }

    #[test]
    fn nothing_is_expected_of_an_executor_to_which_nothing_was_sent() {
        let mut supervision = Supervision::new(SILENCE, Duration::ZERO);
        for step in 1..=100 {
            assert_eq!(supervision.look(STEP * step, Some(&load(false, 5))), Finding::Serving);
        }
    }

    #[test]
    fn an_executor_that_waits_for_its_program_is_not_sick() {
        let mut supervision = Supervision::new(SILENCE, Duration::ZERO);
        let stuck = ExecutorLoad { is_caller_behind: true, taken_by_caller: 9, ..load(true, 5) };
        supervision.look(STEP, Some(&stuck));
        for step in 2..=100 {
            assert_eq!(supervision.look(STEP * step, Some(&stuck)), Finding::Serving);
        }
    }

    #[test]
    fn time_in_which_the_role_did_not_run_does_not_count() {
        let mut supervision = Supervision::new(SILENCE, Duration::ZERO);
        supervision.look(STEP, Some(&load(true, 5)));
        assert_eq!(supervision.look(Duration::from_secs(3600), Some(&load(true, 5))), Finding::Serving);
        assert_eq!(supervision.silence(), LOOK_MAX);
    }

    #[test]
    fn an_executor_has_its_time_to_begin() {
        let mut supervision = Supervision::new(SILENCE, Duration::ZERO);
        let starting = ExecutorLoad { state: ExecutorState::Starting, ..load(true, 0) };
        assert_eq!(supervision.look(BEGIN_MAX, Some(&starting)), Finding::Starting);
        assert_eq!(supervision.look(BEGIN_MAX + STEP, Some(&starting)), Finding::Late(BEGIN_MAX));
        assert_eq!(Supervision::new(SILENCE, Duration::ZERO).look(STEP, None), Finding::Starting);
    }
}
