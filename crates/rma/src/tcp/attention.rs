//! The connections that a host's progress thread is asked to serve.

use std::sync::{Mutex, PoisonError};

use base::Set;
use rustix::fd::OwnedFd;

/// Wakes the progress thread, and tells it whom to serve.
pub struct AttentionQueue {
    /// Wakes the progress thread.
    pub wake: OwnedFd,
    /// Connections that the progress thread is asked to serve, each once.
    connections: Mutex<Set<u64>>,
}

impl AttentionQueue {
    pub fn new(wake: OwnedFd) -> AttentionQueue {
        AttentionQueue { wake, connections: Mutex::new(Set::default()) }
    }

    /// Asks the progress thread to serve a connection.
    pub fn attend(&self, connection: u64) {
        let is_new = self.connections.lock().unwrap_or_else(PoisonError::into_inner).insert(connection);
        if is_new {
            self.wake();
        }
    }

    pub fn wake(&self) {
        // A full counter wakes the thread as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The connections that ask, each once.
    pub fn take(&self) -> Set<u64> {
        std::mem::take(&mut *self.connections.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
