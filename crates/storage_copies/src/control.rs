//! An operator's view of the copies, and an operator's requests.

use std::fmt;
use std::sync::{Mutex, PoisonError, Weak};

use base::ErrorKind;
use storage::Error;
use storage::node::View;

/// One copy, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// The name of its storage node.
    pub name: String,
    /// Whether it is complete.
    pub is_member: bool,
    /// Its durable blocks.
    pub height: u64,
    /// Private rows that were copied to it, if it is being built.
    pub private_rows: u64,
}

/// The copies that a primary has opened.
pub(crate) trait OpenCopies: Send + Sync {
    /// As [`CopiesControl::report`].
    fn report(&self) -> (View, Vec<CopyReport>);
    /// As [`ChannelCopies::add`](crate::ChannelCopies::add).
    fn add(&self, name: &str) -> Result<(), Error>;
    /// As [`ChannelCopies::drop_copy`](crate::ChannelCopies::drop_copy).
    fn drop_copy(&self, name: &str) -> Result<(), Error>;
}

/// Reaches the copies that the primary of this process has opened, as long as they are open.
#[derive(Default)]
pub struct CopiesControl(Mutex<Option<Weak<dyn OpenCopies>>>);

impl CopiesControl {
    pub(crate) fn note(&self, opened: Weak<dyn OpenCopies>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
    }

    fn with<T>(&self, act: impl FnOnce(&dyn OpenCopies) -> T) -> Option<T> {
        let opened = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.upgrade()?;
        Some(act(&*opened))
    }

    /// The view in force and the copies, with the learner last; `None` if this process is not the primary of a channel that
    /// has copies.
    pub fn report(&self) -> Option<(View, Vec<CopyReport>)> {
        self.with(|copies| copies.report())
    }

    /// As [`ChannelCopies::add`](crate::ChannelCopies::add).
    ///
    /// # Errors
    /// Those of it; `Rejected` if this process is not the primary of a channel that has copies.
    pub fn add(&self, name: &str) -> Result<(), Error> {
        self.with(|copies| copies.add(name)).unwrap_or_else(|| Err(not_here(name)))
    }

    /// As [`ChannelCopies::drop_copy`](crate::ChannelCopies::drop_copy).
    ///
    /// # Errors
    /// Those of it; `Rejected` if this process is not the primary of a channel that has copies.
    pub fn drop_copy(&self, name: &str) -> Result<(), Error> {
        self.with(|copies| copies.drop_copy(name)).unwrap_or_else(|| Err(not_here(name)))
    }
}

pub(crate) fn refuse(name: &str, text: &str) -> Error {
    Error::Remote { node: name.into(), kind: ErrorKind::Rejected, text: text.to_owned() }
}

fn not_here(name: &str) -> Error {
    refuse(name, "this process is not the primary of a channel that has copies")
}

impl fmt::Debug for CopiesControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CopiesControl").field(&self.report()).finish()
    }
}
