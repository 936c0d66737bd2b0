//! A file for which a task waits.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A file for which a task waits until it is readable.
pub(crate) struct Watched<T: AsFd>(AsyncFd<Numbered<T>>);

/// A file, with its number.
struct Numbered<T>(T);

impl<T: AsFd> AsRawFd for Numbered<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl<T: AsFd> Watched<T> {
    /// To be called within the runtime.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub(crate) fn new(file: T) -> io::Result<Watched<T>> {
        // SAFETY: the descriptor is the file's, which is open until it is dropped, and nobody gets the file out of here.
        let watched = unsafe { AsyncFd::register_with_interest(Numbered(file), Interest::READABLE) };
        Ok(Watched(watched?))
    }

    pub(crate) fn get(&self) -> &T {
        &self.0.get_ref().0
    }

    /// Waits until the file may be readable, and has `read` read it. `read` returns `None` if there was nothing: then it is waited for again.
    ///
    /// # Errors
    /// The file cannot be waited for any more.
    pub(crate) async fn read<R>(&self, mut read: impl FnMut(&T) -> Option<R>) -> io::Result<R> {
        loop {
            let mut ready = self.0.readable().await?;
            match read(self.get()) {
                Some(found) => return Ok(found),
                None => ready.clear_ready(),
            }
        }
    }

    /// Waits until the file may be readable, and has `drain` read all that there is.
    ///
    /// # Errors
    /// As [`read`](Watched::read).
    pub(crate) async fn drain<R>(&self, drain: impl FnOnce(&T) -> R) -> io::Result<R> {
        let mut ready = self.0.readable().await?;
        let drained = drain(self.get());
        // What has come since is not cleared.
        ready.clear_ready();
        Ok(drained)
    }

    /// Waits until the file is readable, and goes on to be.
    pub(crate) async fn readable(&self) {
        drop(self.0.readable().await);
    }
}
