//! The calls that run on one stream, and which of the chaincode's messages belongs to which call.
//!
//! 1. [`CallTable::begin`] enters a call under its channel and transaction id.
//! 2. [`CallTable::deliver`] hands a message to its call: a request if the call has none under way, COMPLETED or ERROR at
//!    any time. After COMPLETED or ERROR the call is no longer in the table.
//! 3. A [`RunningCall`] that is dropped before that leaves its entry as abandoned. The chaincode still runs it: its requests
//!    are answered with ERROR, so that the run comes to its end, which removes the entry.
//! 4. [`CallTable::close`] ends the table with the stream. Every running call sees it at once.
//!
//! Bounds: [`CALLS_MAX`] entries. If a call is abandoned after the chaincode has been silent for [`SILENCE_MAX`], or if
//! [`ABANDONED_MAX`] calls are abandoned, the chaincode or its host hangs: the stream is closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt::channel::{Receiver, Sender, bounded};
use base::rt::{self, CancellationToken, Instant};
use proto::protos::ChaincodeMessage;
use proto::protos::chaincode_message::Type;

use super::fault::{Mutant, mutant};
use crate::events::{ChaincodeCalls, ChaincodeCallsAbandoned};

/// Calls of one stream, running and abandoned.
const CALLS_MAX: usize = 4096;
/// Abandoned calls at which a stream is closed.
const ABANDONED_MAX: usize = 1024;
/// If nothing has arrived for this long when a call is abandoned, the stream is closed.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// A request, and the message that ends the call.
const INBOX_MESSAGES: usize = 2;

/// Names a call on its stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CallKey {
    pub(super) channel: String,
    pub(super) tx_id: String,
}

impl CallKey {
    pub(super) fn new(channel: &str, tx_id: &str) -> CallKey {
        CallKey { channel: channel.to_owned(), tx_id: tx_id.to_owned() }
    }
}

enum CallEntry {
    Running { inbox: Sender<ChaincodeMessage>, has_request: bool },
    Abandoned,
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Its call has it.
    Taken,
    /// Its call was abandoned: a request is to be answered with ERROR, so that the chaincode ends the run.
    Abandoned,
    /// The call does not run, or has a request under way already.
    Ignored,
}

/// Why a call cannot begin.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BeginError {
    /// The transaction calls this chaincode already.
    Exists,
    /// An earlier call of the same transaction was abandoned, and the chaincode is still at it.
    StillRuns,
    /// [`CALLS_MAX`].
    TooMany,
    /// The stream has ended, for this reason.
    Closed(String),
}

/// The calls of one stream.
pub(super) struct CallTable {
    entries: Mutex<CallEntries>,
    /// Asks for the end of the stream.
    stop: CancellationToken,
}

struct CallEntries {
    calls: BTreeMap<CallKey, CallEntry>,
    abandoned: usize,
    last_arrival: Instant,
    /// Why the stream ended.
    closed: Option<String>,
}

/// A call that the chaincode runs. Dropping it abandons the call.
pub(super) struct RunningCall {
    table: Arc<CallTable>,
    key: CallKey,
    inbox: Receiver<ChaincodeMessage>,
    begun: Instant,
    is_ended: bool,
}

impl CallTable {
    pub(super) fn new() -> Arc<CallTable> {
        let entries = CallEntries { calls: BTreeMap::new(), abandoned: 0, last_arrival: rt::now(), closed: None };
        Arc::new(CallTable { entries: Mutex::new(entries), stop: CancellationToken::new() })
    }

    fn entries(&self) -> MutexGuard<'_, CallEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fires when the stream should end.
    pub(super) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Why the stream ended, once it has.
    pub(super) fn closed(&self) -> Option<String> {
        self.entries().closed.clone()
    }

    /// Step 1.
    pub(super) fn begin(self: &Arc<Self>, key: CallKey) -> Result<RunningCall, BeginError> {
        let mut entries = self.entries();
        if let Some(reason) = &entries.closed {
            return Err(BeginError::Closed(reason.clone()));
        }
        match entries.calls.get(&key) {
            Some(CallEntry::Running { .. }) => return Err(BeginError::Exists),
            Some(CallEntry::Abandoned) => return Err(BeginError::StillRuns),
            None => {}
        }
        if entries.calls.len() >= CALLS_MAX {
            return Err(BeginError::TooMany);
        }
        let (inbox, messages) = bounded(INBOX_MESSAGES);
        entries.calls.insert(key.clone(), CallEntry::Running { inbox, has_request: false });
        ChaincodeCalls.add(1);
        Ok(RunningCall { table: self.clone(), key, inbox: messages, begun: rt::now(), is_ended: false })
    }

    /// Step 2.
    pub(super) fn deliver(&self, kind: Type, message: ChaincodeMessage) -> Delivery {
        let key = CallKey::new(&message.channel_id, &message.txid);
        let ends = matches!(kind, Type::Completed | Type::Error);
        let mut entries = self.entries();
        entries.last_arrival = rt::now();
        match entries.calls.get_mut(&key) {
            None => Delivery::Ignored,
            Some(CallEntry::Abandoned) => {
                if ends {
                    entries.calls.remove(&key);
                    entries.abandoned -= 1;
                }
                Delivery::Abandoned
            }
            Some(CallEntry::Running { inbox, has_request }) => {
                if !ends && *has_request {
                    return Delivery::Ignored;
                }
                *has_request |= !ends;
                let is_taken = inbox.try_send(message).is_ok();
                if ends {
                    entries.calls.remove(&key);
                }
                if is_taken { Delivery::Taken } else { Delivery::Ignored }
            }
        }
    }

    /// Step 4.
    pub(super) fn close(&self, reason: String) {
        let mut entries = self.entries();
        entries.closed.get_or_insert(reason);
        // The senders go with the entries, which wakes the calls.
        entries.calls.clear();
        entries.abandoned = 0;
    }

    /// Step 3.
    fn abandon(&self, key: &CallKey, begun: Instant) {
        let mut entries = self.entries();
        let Some(entry @ CallEntry::Running { .. }) = entries.calls.get_mut(key) else { return };
        ChaincodeCallsAbandoned.add(1);
        if mutant(Mutant::ForgetAbandoned) {
            entries.calls.remove(key);
            return;
        }
        *entry = CallEntry::Abandoned;
        entries.abandoned += 1;
        let silent_since = entries.last_arrival.max(begun);
        if entries.abandoned >= ABANDONED_MAX || silent_since.elapsed() >= SILENCE_MAX {
            self.stop.cancel();
        }
    }
}

impl RunningCall {
    /// The chaincode's next message: a request, or the end of the call.
    ///
    /// # Errors
    /// Why the stream ended.
    pub(super) async fn next(&mut self) -> Result<(Type, ChaincodeMessage), String> {
        match self.inbox.recv().await {
            Some(message) => {
                let kind = message.r#type();
                self.is_ended = matches!(kind, Type::Completed | Type::Error);
                Ok((kind, message))
            }
            None => Err(self.table.closed().unwrap_or_else(|| "its connection ended".to_owned())),
        }
    }

    /// Notes that the request is answered, before the answer leaves: the chaincode may then send the next one.
    pub(super) fn note_answered(&self) {
        if let Some(CallEntry::Running { has_request, .. }) = self.table.entries().calls.get_mut(&self.key) {
            *has_request = false;
        }
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        ChaincodeCalls.add(-1);
        if !self.is_ended {
            self.table.abandon(&self.key, self.begun);
        }
    }
}
