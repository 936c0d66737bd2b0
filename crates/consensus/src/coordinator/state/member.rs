//! A memory node as its coordinator knows it, and the verbs that are under way to it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use base::Bytes;
use base::rt::Instant;
use rma::Completion;

use super::LAG_MAX;
use super::keeping::Journal;
use crate::link::Held;

/// Where a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::coordinator) enum Phase {
    Lost,
    Joining,
    Live,
}

/// A memory node.
pub(in crate::coordinator) struct Member {
    pub(in crate::coordinator) phase: Phase,
    pub(in crate::coordinator) held: Option<Held>,
    pub(super) posted: VecDeque<Posted>,
    /// Verbs up to this ticket have completed.
    pub(super) acked: u64,
    /// Of the last header.
    pub(super) sequence: u64,
    pub(super) header_posted: bool,
    /// What the last header that has arrived says is applied.
    pub(super) applied: u64,
    pub(super) lease_at: Option<Instant>,
    /// It is known to have its vote.
    pub(super) votes: bool,
    /// The regions that are copied, of a joining node.
    pub(super) copied: Vec<bool>,
    /// The regions that were written since it came, of a joining node.
    pub(super) touched: Vec<bool>,
    /// Blocks that are being copied to it.
    pub(super) copying: Range<usize>,
    /// Reads that were given up on it.
    pub(super) slow: u32,
    /// What its disk has, of a persistent node.
    pub(super) journal: Option<Journal>,
}

/// A verb.
pub(super) struct Posted {
    pub ticket: u64,
    pub header: Option<u64>,
    pub completion: Completion<()>,
}

impl Member {
    pub(super) fn lost() -> Member {
        Member {
            phase: Phase::Lost,
            held: None,
            posted: VecDeque::new(),
            acked: 0,
            sequence: 0,
            header_posted: false,
            applied: 0,
            lease_at: None,
            votes: false,
            copied: Vec::new(),
            touched: Vec::new(),
            copying: 0..0,
            slow: 0,
            journal: None,
        }
    }

    pub(super) fn is_held_by(&self, held: &Held) -> bool {
        self.held.as_ref().is_some_and(|own| Arc::ptr_eq(&own.link, &held.link))
    }

    /// Posts a verb; an error if it has failed already.
    pub(super) fn post(
        &mut self,
        at: u64,
        parts: &[Bytes],
        ticket: u64,
        header: Option<u64>,
    ) -> Result<(), rma::Error> {
        let Some(held) = &self.held else { return Ok(()) };
        let completion = held.write(at, parts);
        if let Some(journal) = &mut self.journal {
            journal.add(at, parts, ticket, header);
        }
        if self.posted.is_empty() && completion.is_success() {
            self.complete(ticket, header);
            return Ok(());
        }
        let completion = match self.posted.is_empty() {
            false => completion,
            true => match completion.now() {
                Ok(Ok(())) => {
                    self.complete(ticket, header);
                    return Ok(());
                }
                Ok(Err(error)) => return Err(error),
                Err(completion) => completion,
            },
        };
        if self.posted.len() >= LAG_MAX {
            return Err(rma::Error::Busy);
        }
        self.posted.push_back(Posted { ticket, header, completion });
        Ok(())
    }

    /// A verb has completed.
    pub(super) fn complete(&mut self, ticket: u64, header: Option<u64>) {
        match &mut self.journal {
            None => self.acknowledge(ticket, header),
            Some(journal) => {
                journal.complete();
                self.settle();
            }
        }
    }

    /// Counts what has completed and is on disk.
    pub(super) fn settle(&mut self) {
        while let Some((ticket, header)) = self.journal.as_mut().and_then(Journal::settled) {
            self.acknowledge(ticket, header);
        }
    }

    fn acknowledge(&mut self, ticket: u64, header: Option<u64>) {
        self.acked = ticket;
        if let Some(applied) = header {
            self.header_posted = false;
            self.applied = applied;
        }
    }

    pub(super) fn flush(&self) {
        if let Some(held) = &self.held
            && !self.posted.is_empty()
        {
            held.link.endpoint.flush();
        }
    }
}
