//! One stream from the chaincode's registration to its end.
//!
//! 1. [`Registration::read`] waits for REGISTER.
//! 2. The caller decides by the package id. [`Registration::accept`] answers REGISTERED and READY, and starts the task that
//!    drives the stream: it routes the chaincode's messages to their calls, and sends what calls have queued.
//! 3. The task ends when the stream ends, when the chaincode breaks the protocol, when the [`CallTable`] asks for it, or
//!    when the [`ChaincodeConnection`] is dropped. It closes the table with the reason.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use base::rt::channel::{Receiver, Sender, bounded};
use base::rt::{self, AbortOnDrop};
use futures_util::future::{Either, select};
use prost::Message;
use proto::protos::chaincode_message::Type;
use proto::protos::{ChaincodeAdditionalParams, ChaincodeId, ChaincodeMessage};

use super::answer::BATCH_MAX;
use super::calls::{CallTable, Delivery};
use super::stream::{ChaincodeStream, MESSAGE_BYTES_MAX, MessageReceiver, MessageSender, ShimError};
use crate::events::{ChaincodeConnectionsFailed, ChaincodeMessagesIgnored, ChaincodesConnected};

/// How long a chaincode may take to register, and to take the answer.
const REGISTER_TIME_MAX: Duration = Duration::from_secs(30);
/// Messages that wait for the stream. Each call has at most one there, so a full queue delays calls, and bounds nothing else.
const OUTBOUND_MESSAGES: usize = 64;
/// Messages after which the task gives way: a flood must not keep a thread.
const MESSAGES_PER_TURN: u32 = 64;
/// Characters of a name that an error repeats.
const SHOWN_CHARS_MAX: usize = 160;

/// A chaincode that has sent REGISTER.
pub struct Registration {
    stream: ChaincodeStream,
    package_id: String,
}

/// A chaincode that is ready. Dropping it ends the stream and fails its calls.
pub struct ChaincodeConnection {
    package_id: String,
    pub(super) calls: Arc<CallTable>,
    outbound: Sender<Bytes>,
    _task: AbortOnDrop<()>,
}

impl Registration {
    /// Step 1. Dropping the future ends the stream.
    ///
    /// # Errors
    /// The stream ended, took too long, or carried something else.
    pub async fn read(mut stream: ChaincodeStream) -> Result<Registration, ShimError> {
        let first = rt::timeout(REGISTER_TIME_MAX, stream.receiver.receive()).await;
        let refused = |problem: String| {
            ChaincodeConnectionsFailed.add(1);
            Err(ShimError::Refused(problem))
        };
        let message = match first {
            Err(_) => return refused(format!("no registration arrived within {} s", REGISTER_TIME_MAX.as_secs())),
            Ok(Err(cause)) => return refused(format!("the stream ended before the registration: {cause}")),
            Ok(Ok(None)) => return refused("the stream ended before the registration".to_owned()),
            Ok(Ok(Some(message))) => message,
        };
        match registered(message) {
            Ok(package_id) => Ok(Registration { stream, package_id }),
            Err(problem) => refused(problem),
        }
    }

    /// What the chaincode says that it runs: a package id, or any name that its operator gave it.
    pub fn package_id(&self) -> &str {
        &self.package_id
    }

    /// The package id, shortened for people.
    pub fn shown(&self) -> String {
        self.package_id.chars().take(SHOWN_CHARS_MAX).collect()
    }

    /// Step 2. Dropping the future ends the stream.
    ///
    /// # Errors
    /// The chaincode does not take the answer.
    pub async fn accept(self) -> Result<ChaincodeConnection, ShimError> {
        let shown = self.shown();
        let Registration { stream: ChaincodeStream { receiver, mut sender }, package_id } = self;
        let batch = BATCH_MAX as u32;
        let offered = ChaincodeAdditionalParams {
            use_write_batch: true,
            max_size_write_batch: batch,
            use_get_multiple_keys: true,
            max_size_get_multiple_keys: batch,
        };
        let ready = ChaincodeMessage { payload: offered.encode_to_vec().into(), ..of_type(Type::Ready) };
        let answered = rt::timeout(REGISTER_TIME_MAX, async {
            sender.send(of_type(Type::Registered).encode_to_vec().into()).await?;
            sender.send(ready.encode_to_vec().into()).await
        });
        let failed = |cause: String| {
            ChaincodeConnectionsFailed.add(1);
            ShimError::Disconnected { chaincode: shown.clone(), cause }
        };
        match answered.await {
            Ok(Ok(())) => {}
            Ok(Err(cause)) => return Err(failed(cause)),
            Err(_) => return Err(failed("it does not take the answer to its registration".to_owned())),
        }
        let calls = CallTable::new();
        let (outbound, queued) = bounded(OUTBOUND_MESSAGES);
        let task = drive(calls.clone(), receiver, sender, outbound.clone(), queued);
        Ok(ChaincodeConnection { package_id, calls, outbound, _task: rt::spawn(task).abort_on_drop() })
    }
}

impl ChaincodeConnection {
    /// What the chaincode registered as.
    pub fn package_id(&self) -> &str {
        &self.package_id
    }

    /// Why the connection ended, once it has.
    pub fn closed(&self) -> Option<String> {
        self.calls.closed()
    }

    /// Completes when the connection has ended.
    pub async fn ended(&self) {
        self.outbound.closed().await;
    }

    /// Ends the connection, and its calls with it, although others hold it.
    pub(super) fn end(&self, reason: &str) {
        self.calls.close(reason.to_owned());
        self.calls.stop().cancel();
    }

    /// Queues a message. If the stream has ended, the call learns it from its inbox.
    pub(super) async fn send(&self, message: &ChaincodeMessage) {
        let _ = self.outbound.send(message.encode_to_vec().into()).await;
    }
}

impl Drop for ChaincodeConnection {
    fn drop(&mut self) {
        // The task is aborted, so it cannot close the table.
        self.calls.close("the peer has closed the connection".to_owned());
    }
}

/// Decrements the gauge when the task ends in any way.
struct Connected;

impl Connected {
    fn count() -> Connected {
        ChaincodesConnected.add(1);
        Connected
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        ChaincodesConnected.add(-1);
    }
}

/// Step 3.
async fn drive(
    calls: Arc<CallTable>,
    mut receiver: Box<dyn MessageReceiver>,
    mut sender: Box<dyn MessageSender>,
    outbound: Sender<Bytes>,
    mut queued: Receiver<Bytes>,
) {
    let _connected = Connected::count();
    let reason = {
        let receiving = pin!(route(&calls, receiver.as_mut(), outbound));
        let sending = pin!(forward(sender.as_mut(), &mut queued));
        let stream = pin!(async {
            match select(receiving, sending).await {
                Either::Left((reason, _)) | Either::Right((reason, _)) => reason,
            }
        });
        calls.stop().run_until_cancelled(stream).await
    };
    let reason = reason.unwrap_or_else(|| "it has not answered for too long".to_owned());
    ChaincodeConnectionsFailed.add(1);
    calls.close(reason);
}

/// Hands messages to their calls until the stream ends, and says why it did.
async fn route(calls: &CallTable, receiver: &mut dyn MessageReceiver, outbound: Sender<Bytes>) -> String {
    let mut this_turn = 0_u32;
    loop {
        let message = match receiver.receive().await {
            Ok(Some(message)) => message,
            Ok(None) => return "the chaincode closed the connection".to_owned(),
            Err(cause) => return cause,
        };
        this_turn = this_turn.saturating_add(1);
        if this_turn >= MESSAGES_PER_TURN {
            this_turn = 0;
            rt::yield_now().await;
        }
        let message = match decode(message) {
            Ok(message) => message,
            Err(problem) => return problem.to_owned(),
        };
        let kind = message.r#type();
        match kind {
            Type::Keepalive => continue,
            Type::Undefined
            | Type::Register
            | Type::Registered
            | Type::Init
            | Type::Ready
            | Type::Transaction
            | Type::Response => return format!("the chaincode sent {}, which only a peer may", kind.as_str_name()),
            _ => {}
        }
        let (tx_id, channel_id) = (message.txid.clone(), message.channel_id.clone());
        match calls.deliver(kind, message) {
            Delivery::Taken => {}
            Delivery::Ignored => ChaincodeMessagesIgnored.add(1),
            Delivery::Abandoned => {
                ChaincodeMessagesIgnored.add(1);
                if !matches!(kind, Type::Completed | Type::Error) {
                    let gone = Bytes::from_static(b"the peer has abandoned the transaction");
                    let answer = ChaincodeMessage { payload: gone, txid: tx_id, channel_id, ..of_type(Type::Error) };
                    // A chaincode that does not read what it is sent gets no answer.
                    let _ = outbound.try_send(answer.encode_to_vec().into());
                }
            }
        }
    }
}

/// Sends queued messages until the stream ends, and says why it did.
async fn forward(sender: &mut dyn MessageSender, queued: &mut Receiver<Bytes>) -> String {
    while let Some(message) = queued.recv().await {
        if let Err(cause) = sender.send(message).await {
            return cause;
        }
    }
    "the peer has closed the connection".to_owned()
}

/// What a chaincode registers as.
pub(super) fn registered(message: Bytes) -> Result<String, String> {
    let message = decode(message).map_err(|_| "the first message is not a message of Fabric's shim".to_owned())?;
    if message.r#type() != Type::Register {
        return Err(format!("the first message is {}, not REGISTER", message.r#type().as_str_name()));
    }
    match ChaincodeId::decode(message.payload) {
        Ok(id) if !id.name.is_empty() => Ok(id.name),
        _ => Err("the registration names no package; set CORE_CHAINCODE_ID_NAME of the chaincode".to_owned()),
    }
}

fn of_type(kind: Type) -> ChaincodeMessage {
    ChaincodeMessage { r#type: kind.into(), ..ChaincodeMessage::default() }
}

pub(super) fn decode(message: Bytes) -> Result<ChaincodeMessage, &'static str> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err("the chaincode sent a message that is too large");
    }
    ChaincodeMessage::decode(message).map_err(|_| "the chaincode sent a message that cannot be decoded")
}
