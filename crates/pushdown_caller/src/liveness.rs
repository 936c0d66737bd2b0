//! Whether the executor is still there, while something is expected from it: one that is stopped, or whose threads hold each other up, keeps
//! its end of the socket open.
//!
//! 1. While calls are open or pages are awaited, the library's thread sends a *ping* twice a second. The executor's service thread answers it.
//! 2. If an answer is missing for a quarter of the time that the program allows, the library says so; at its end, the executor is
//!    given up as one that has ended is, and killed.
//! 3. If the executor is one of the role's, the role says why it has ended; the library's thread waits a second for that, without the lock.
//! 4. Time counts only as far as this process runs itself: one that was stopped with its executor must not give it up when both go on.
//!
//! Nothing is sent while nothing is expected. The library's thread sleeps then, and the first call sets the alarm that wakes it.

use std::time::Duration;

use bare::alarm::now;
use pushdown::ToExecutor;

use crate::caller::Caller;
use crate::executor_process::ExecutorProcess;
use crate::message::print;
use crate::watch::Look;

impl Caller {
    fn expects_something(&self) -> bool {
        !self.is_lost && (self.open_calls() > 0 || self.side.has_waiting())
    }

    /// Asks the executor whether it is there, and gives it up if it has not answered for too long. Messages were handled just before.
    pub(crate) fn look_after_executor(&mut self) {
        if !self.expects_something() {
            self.watch.rest();
            return;
        }
        match self.watch.look(now()) {
            Look::Fine => {}
            Look::Ask(number) => {
                let sent = self.tell(&ToExecutor::Ping(number));
                self.check(sent);
            }
            Look::Warn(silence) => {
                let silent_ms = silence.as_millis();
                print(&format!("the executor of pushed-down functions has not answered for {silent_ms} ms"));
            }
            Look::GiveUp(silence) => {
                let silent_ms = silence.as_millis();
                print(&format!(
                    "the executor of pushed-down functions has not answered for {silent_ms} ms, and is given up"
                ));
                self.watch.note_end(format!("it did not answer for {silent_ms} ms"));
                self.lose();
            }
        }
    }

    /// The executor's process, if it is one of the role's, is lost, and nobody knows why.
    pub(crate) fn unexplained(&self) -> Option<ExecutorProcess> {
        let process = self.watch.process();
        (self.is_lost && process.is_of_role() && self.watch.end_reason().is_none()).then_some(process)
    }

    /// The executor has ended, for this reason, which the program's user should know if it is the role's.
    pub(crate) fn note_end(&mut self, reason: String) {
        let line = format!("the executor of pushed-down functions has ended: {reason}");
        if self.watch.note_end(reason) && self.watch.process().is_of_role() {
            print(&line);
        }
    }

    /// For how long the library's thread may sleep, if nobody wakes it; `None` is for ever.
    pub(crate) fn pause(&mut self) -> Option<Duration> {
        let at = [self.side.next_tick(), self.next_cancel()].into_iter().flatten().min();
        // Of a lost executor the calls are still there, and signals have to be looked for.
        let is_needed = self.expects_something() || self.open_calls() > 0;
        self.watch.sleep(at, is_needed, self.calls_made)
    }
}
