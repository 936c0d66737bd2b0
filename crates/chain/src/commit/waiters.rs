//! The callers that wait for a transaction's commit.
//!
//! A caller first registers and then checks whether the transaction is committed already. A commit first moves the height
//! and then notifies the waiters. So no commit is missed: a caller that registered too late to be notified finds the
//! transaction below the height.

use std::sync::Mutex;

use base::rt::channel::{OneshotReceiver, OneshotSender, oneshot};
use base::{Map, TxId};
use ledger::Code;

use super::recent::CommittedBlock;
use crate::Error;
use crate::events;

/// The largest number of callers of one channel that may wait at the same time.
pub const WAITERS_MAX: usize = 1 << 16;

/// The outcome of a committed transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxStatus {
    /// Its validation code.
    pub code: Code,
    /// The block it is in.
    pub block: u64,
}

/// The waiting callers, by transaction.
#[derive(Default)]
pub struct TxWaiters {
    inner: Mutex<TxWaitersState>,
}

#[derive(Default)]
struct TxWaitersState {
    by_tx: Map<TxId, Vec<(u64, OneshotSender<TxStatus>)>>,
    count: usize,
    next: u64,
    closed: bool,
}

/// One caller's registration. Dropping it removes the registration.
pub struct TxWaiter<'a> {
    waiters: &'a TxWaiters,
    tx_id: TxId,
    id: u64,
    answer: Option<OneshotReceiver<TxStatus>>,
}

impl TxWaiters {
    /// Registers a caller.
    ///
    /// # Errors
    /// [`Error::TooManyWaiters`], [`Error::Stopped`].
    pub fn register(&self, tx_id: TxId) -> Result<TxWaiter<'_>, Error> {
        let (answer, answered) = oneshot();
        let mut inner = self.lock();
        if inner.closed {
            return Err(Error::Stopped);
        }
        if inner.count >= WAITERS_MAX {
            return Err(Error::TooManyWaiters(WAITERS_MAX));
        }
        let id = inner.next;
        inner.next += 1;
        inner.count += 1;
        inner.by_tx.entry(tx_id.clone()).or_default().push((id, answer));
        events::CommitWaiters.add(1);
        Ok(TxWaiter { waiters: self, tx_id, id, answer: Some(answered) })
    }

    /// Notifies the callers that wait for a transaction of this block.
    pub fn publish(&self, block: &CommittedBlock) {
        let transactions = block.transactions().iter();
        self.notify(
            block.number(),
            transactions.filter_map(|transaction| Some((transaction.tx_id.as_ref()?, transaction.code))),
        );
    }

    /// Notifies the callers that wait for one of these transactions, which are committed in block `number`.
    pub fn notify<'a>(&self, number: u64, transactions: impl Iterator<Item = (&'a TxId, Code)>) {
        let mut told = Vec::new();
        {
            let mut inner = self.lock();
            if inner.count == 0 {
                return;
            }
            for (tx_id, code) in transactions {
                if let Some(waiting) = inner.by_tx.remove(tx_id) {
                    inner.count -= waiting.len();
                    told.push((waiting, TxStatus { code, block: number }));
                }
            }
        }
        for (waiting, status) in told {
            events::CommitWaiters.add(-(waiting.len() as i64));
            for (_, answer) in waiting {
                // A caller that has gone does not want the answer.
                let _ = answer.send(status);
            }
        }
    }

    /// Ends every wait, now and later.
    pub fn close(&self) {
        self.lock().closed = true;
        self.abandon();
    }

    /// Ends every current wait.
    pub fn abandon(&self) {
        let by_tx = {
            let mut inner = self.lock();
            events::CommitWaiters.add(-(inner.count as i64));
            inner.count = 0;
            std::mem::take(&mut inner.by_tx)
        };
        drop(by_tx);
    }

    fn forget(&self, tx_id: &TxId, id: u64) {
        let mut inner = self.lock();
        let Some(waiting) = inner.by_tx.get_mut(tx_id) else { return };
        let before = waiting.len();
        waiting.retain(|(other, _)| *other != id);
        let gone = before - waiting.len();
        if waiting.is_empty() {
            inner.by_tx.remove(tx_id);
        }
        inner.count -= gone;
        events::CommitWaiters.add(-(gone as i64));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TxWaitersState> {
        self.inner.lock().expect("no holder of this lock panics")
    }
}

impl TxWaiter<'_> {
    /// Waits for the commit.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub async fn wait(mut self) -> Result<TxStatus, Error> {
        let answer = self.answer.take().expect("a waiter waits once");
        answer.await.map_err(|_| Error::Stopped)
    }
}

impl Drop for TxWaiter<'_> {
    fn drop(&mut self) {
        self.waiters.forget(&self.tx_id, self.id);
    }
}
