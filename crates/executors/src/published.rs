//! What the role's thread and others of its process have in common.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::owners::Owners;
use crate::view::RoleView;

const RUNS: u8 = 0;
const STOPS: u8 = 1;
const ENDS: u8 = 2;

/// What was asked of the role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// It goes on.
    Run,
    /// It stops, with grace.
    Stop,
    /// It ends at once.
    End,
}

/// What the role shows, and what is asked of it.
pub(crate) struct Published {
    /// Readable when something was asked.
    wake: OwnedFd,
    wish: AtomicU8,
    shown: Mutex<(RoleView, Owners)>,
    /// Whether the role's thread has ended in order, once it has ended.
    end: Mutex<Option<bool>>,
    has_ended: Condvar,
}

/// Says that the role's thread has ended, when it is dropped there.
pub(crate) struct EndGuard(pub(crate) Arc<Published>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        *self.0.lock_end() = Some(!std::thread::panicking());
        self.0.has_ended.notify_all();
    }
}

impl Published {
    pub(crate) fn new(wake: OwnedFd) -> Published {
        Published {
            wake,
            wish: AtomicU8::new(RUNS),
            shown: Mutex::default(),
            end: Mutex::default(),
            has_ended: Condvar::new(),
        }
    }

    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    pub(crate) fn wish(&self) -> Wish {
        match self.wish.load(Ordering::Acquire) {
            RUNS => Wish::Run,
            STOPS => Wish::Stop,
            _ => Wish::End,
        }
    }

    pub(crate) fn stop(&self) {
        self.ask(STOPS);
    }

    pub(crate) fn end(&self) {
        self.ask(ENDS);
    }

    fn ask(&self, wish: u8) {
        self.wish.fetch_max(wish, Ordering::AcqRel);
        // It is full only if the role is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Takes what has woken the role.
    pub(crate) fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    pub(crate) fn publish(&self, view: RoleView, owners: &Owners) {
        *self.lock() = (view, owners.clone());
    }

    pub(crate) fn view(&self) -> RoleView {
        self.lock().0.clone()
    }

    pub(crate) fn owner_metrics(&self) -> String {
        self.lock().1.render()
    }

    /// Blocks until the role's thread has ended. Returns whether it did so in order.
    pub(crate) fn wait(&self) -> bool {
        let mut end = self.lock_end();
        loop {
            match *end {
                Some(is_in_order) => return is_in_order,
                None => end = self.has_ended.wait(end).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Whether the role's thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock_end().is_some()
    }

    fn lock_end(&self) -> MutexGuard<'_, Option<bool>> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, (RoleView, Owners)> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
