//! What an operator sees of the copies, and has done about them.

use std::fmt;
use std::sync::{Mutex, PoisonError, Weak};

use base::ErrorKind;
use storage::Error;
use storage::blocks::Blocks as _;
use storage::node::{COPIES_MAX, View};

use crate::keeper::Wish;
use crate::session::{CopiesCore, Session};

/// What an operator sees of one copy.
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

/// Reaches the copies that the primary of this process has opened; they may be gone again.
#[derive(Default)]
pub struct CopiesControl(Mutex<Weak<Session>>);

impl CopiesControl {
    pub(crate) fn note(&self, session: Weak<Session>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = session;
    }

    fn with<T>(&self, act: impl FnOnce(&CopiesCore) -> T) -> Option<T> {
        let session = self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade()?;
        Some(act(&session.core))
    }

    /// The view in force and the copies, those that are being built last; `None` if this process is not the primary of a channel that
    /// has copies.
    pub fn report(&self) -> Option<(View, Vec<CopyReport>)> {
        self.with(CopiesCore::report)
    }

    /// As [`ChannelCopies::add`](crate::ChannelCopies::add).
    ///
    /// # Errors
    /// Those of it; `Rejected` if this process is not the primary of a channel that has copies.
    pub fn add(&self, name: &str) -> Result<(), Error> {
        self.with(|core| core.add(name)).unwrap_or_else(|| Err(not_here(name)))
    }

    /// As [`ChannelCopies::drop_copy`](crate::ChannelCopies::drop_copy).
    ///
    /// # Errors
    /// Those of it; `Rejected` if this process is not the primary of a channel that has copies.
    pub fn drop_copy(&self, name: &str) -> Result<(), Error> {
        self.with(|core| core.drop_copy(name)).unwrap_or_else(|| Err(not_here(name)))
    }
}

fn refuse(name: &str, text: &str) -> Error {
    Error::Remote { node: name.into(), kind: ErrorKind::Rejected, text: text.to_owned() }
}

fn not_here(name: &str) -> Error {
    refuse(name, "this process is not the primary of a channel that has copies")
}

impl CopiesCore {
    pub fn report(&self) -> (View, Vec<CopyReport>) {
        let state = self.lock();
        let members = state.members.iter().map(|member| CopyReport {
            name: member.name().to_owned(),
            is_member: true,
            height: member.blocks.durable_height(),
            private_rows: 0,
        });
        let learner = state.learner.iter().map(|learner| CopyReport {
            name: learner.member.name().to_owned(),
            is_member: false,
            height: learner.member.blocks.durable_height(),
            private_rows: learner.private_rows,
        });
        (state.view.clone(), members.chain(learner).collect())
    }

    pub fn add(&self, name: &str) -> Result<(), Error> {
        if self.set.node(name).is_none() {
            return Err(refuse(name, "it is none of the peer's storage nodes"));
        }
        if self.lock().members.len() >= COPIES_MAX {
            return Err(refuse(name, "the channel has as many copies as it may have; drop one first"));
        }
        self.wish(Wish::Add(name.to_owned()));
        Ok(())
    }

    pub fn drop_copy(&self, name: &str) -> Result<(), Error> {
        let has_other = self.lock().members.iter().any(|member| member.name() != name);
        if !has_other {
            return Err(refuse(name, "it is the last complete copy; add another one first"));
        }
        self.wish(Wish::Drop(name.to_owned()));
        Ok(())
    }
}

impl fmt::Debug for CopiesControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CopiesControl").field(&self.report()).finish()
    }
}
