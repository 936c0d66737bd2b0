//! Waiting for what a message brings.

use bare::lock::{RawGuard, RawLock};
use page_coherence::CallId;
use pushdown::Registers;

use crate::executor::Executor;

/// The executor's state; there from the beginning on.
pub(crate) static EXECUTOR: RawLock<Option<Executor>> = RawLock::new(None);
/// Of the threads without a function, one waits for the next one, and has this.
static NEXT: RawLock<()> = RawLock::new(());

/// How often a thread looks for messages before it sleeps: some 120 µs, about as long as it takes to put a processor to sleep and wake it.
const TURNS: u32 = 4000;

/// The state, under its lock.
pub(crate) struct Held(RawGuard<'static, Option<Executor>>);

impl Held {
    pub(crate) fn new() -> Held {
        Held(EXECUTOR.acquire())
    }

    pub(crate) fn executor(&mut self) -> &mut Executor {
        match &mut *self.0 {
            Some(executor) => executor,
            None => bare::system_call::exit_group(1),
        }
    }
}

/// Handles all messages that have come, and tells those who wait.
pub(crate) fn handle_messages(executor: &mut Executor, is_attending: bool) {
    if executor.handle_messages() {
        executor.link().tell_waiting(is_attending);
    }
}

/// Waits until `ready` returns something. It is asked again after each message.
pub(crate) fn wait_until<T>(mut ready: impl FnMut(&mut Executor) -> Option<T>) -> T {
    let link = Held::new().executor().link();
    let attending = link.attend();
    let value = loop {
        let seen = {
            let mut held = Held::new();
            let executor = held.executor();
            handle_messages(executor, true);
            if let Some(value) = ready(executor) {
                break value;
            }
            link.so_far()
        };
        attending.wait(TURNS, seen);
    };
    drop(attending);
    while link.is_message_coming() {
        handle_messages(Held::new().executor(), false);
    }
    value
}

/// Waits for a function to run on a thread of a context, and says when its message was handled.
pub(crate) fn next_function(context: u32, thread: u32) -> (CallId, Registers, u64) {
    let _next = NEXT.acquire();
    wait_until(|executor| executor.next_function(context, thread))
}
