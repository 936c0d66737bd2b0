//! The copies of a channel under one primary.

use std::fmt;
use std::sync::{Arc, Weak};

use base::rt;
use base::{Epoch, ErrorKind};
use futures_util::future::join_all;
use storage::blocks::Blocks;
use storage::node::View;
use storage::{Error, PrivateTable};

use crate::blocks::CopiedBlocks;
use crate::control::{CopyReport, OpenCopies};
use crate::copies_core::{CopiesCore, Session};
use crate::election::{copy_states, newest_view};
use crate::keeper::keep;
use crate::limits::LOST_AFTER;
use crate::member::Member;
use crate::private::CopiedPrivate;
use crate::rows::CopiedRows;
use crate::set::{CopySet, error};

/// The copies of a channel, opened by a primary.
pub struct ChannelCopies {
    session: Arc<Session>,
    blocks: Arc<CopiedBlocks>,
    rows: Arc<CopiedRows>,
    private: [Arc<CopiedPrivate>; 2],
}

impl ChannelCopies {
    /// Opens the copies under an epoch that [`begin_epoch`](crate::begin_epoch) has begun. If some members do not answer, the primary
    /// makes a view of the others.
    ///
    /// # Errors
    /// `Fenced` if a later epoch has begun; `Retry` if no complete copy answers; refusals.
    pub async fn open(set: CopySet, channel: &str, epoch: Epoch) -> Result<ChannelCopies, Error> {
        let states = copy_states(&set, channel).await;
        let view = newest_view(&states);
        if view.id.epoch != epoch {
            return Err(match view.id.epoch > epoch {
                true => Error::Fenced { given: epoch, newest: view.id.epoch },
                false => error(set.first(), ErrorKind::Retry, "the copies do not answer with the view of this epoch"),
            });
        }
        let numbers = states.iter().filter_map(|(_, status)| Some(status.as_ref().ok()?.private_write.1));
        let number = numbers.max().unwrap_or_default();
        let opened = join_all(view.members().filter_map(|name| set.node(name)).map(|node| {
            let (set, channel) = (&set, &channel);
            async move { (node.name.clone(), Member::open(set, node, channel, epoch, false, LOST_AFTER).await) }
        }))
        .await;
        let (mut members, mut failed) = (Vec::new(), None);
        for (name, outcome) in opened {
            match outcome {
                Ok(member) => members.push(Arc::new(member)),
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(error),
                Err(error) => {
                    tracing::warn!(channel, copy = name, %error, "a copy does not open");
                    failed.get_or_insert(error);
                }
            }
        }
        let Some(first) = members.first() else {
            return Err(failed.unwrap_or(error(set.first(), ErrorKind::Retry, "no copy of the channel answers")));
        };
        let tip = first.blocks.tip();
        let is_complete = members.len() == view.members().count();
        let core = Arc::new(CopiesCore::new(set, channel, epoch, view, members, tip, number));
        if !is_complete {
            let names = core.lock().members.iter().map(|member| member.name().to_owned()).collect();
            core.change_view(names, None).await.map_err(|(_, error)| error)?;
        }
        for member in core.members() {
            core.follow(&member);
        }
        let keeper = rt::spawn(keep(Arc::clone(&core))).abort_on_drop();
        let control = Arc::clone(&core.set.control);
        let session = Arc::new(Session::new(core, keeper));
        control.note(Arc::downgrade(&session) as Weak<dyn OpenCopies>);
        let private = [PrivateTable::Committed, PrivateTable::Transient]
            .map(|table| Arc::new(CopiedPrivate::new(Arc::clone(&session), table)));
        Ok(ChannelCopies {
            blocks: Arc::new(CopiedBlocks::new(Arc::clone(&session))),
            rows: Arc::new(CopiedRows::new(Arc::clone(&session))),
            private,
            session,
        })
    }

    /// The blocks.
    pub fn blocks(&self) -> Arc<CopiedBlocks> {
        Arc::clone(&self.blocks)
    }

    /// The rows.
    pub fn rows(&self) -> Arc<CopiedRows> {
        Arc::clone(&self.rows)
    }

    /// The private rows of committed and of transient data.
    pub fn private(&self) -> [Arc<CopiedPrivate>; 2] {
        self.private.clone()
    }

    /// The view in force.
    pub fn view(&self) -> View {
        self.session.core.lock().view.clone()
    }

    /// The copies, with the learner last.
    pub fn report(&self) -> Vec<CopyReport> {
        self.session.report().1
    }

    /// Starts to build a copy at this node, beyond the configured number. Returns at once; [`ChannelCopies::report`] shows the
    /// progress.
    ///
    /// # Errors
    /// `Rejected` if the node is not configured, or there are too many copies.
    pub fn add(&self, name: &str) -> Result<(), Error> {
        self.session.add(name)
    }

    /// Leaves a copy out, if another one is complete. Returns at once. This primary does not build it again unless asked; a later
    /// primary does, if the node is configured and a copy is missing.
    ///
    /// # Errors
    /// `Rejected` if it is the last complete copy.
    pub fn drop_copy(&self, name: &str) -> Result<(), Error> {
        self.session.drop_copy(name)
    }
}

impl fmt::Debug for ChannelCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelCopies").field("view", &self.view()).finish_non_exhaustive()
    }
}
