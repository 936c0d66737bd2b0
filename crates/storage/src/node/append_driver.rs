//! The task that sends blocks over the current link and opens a new one when it is lost.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use base::rt::channel::{Receiver, bounded};
use base::rt::net::rpc::{PendingResponse, RpcClient, RpcError};
use base::{ErrorKind, rt};

use super::client::{NodeSession, RemoteStoreConfig, connect};
use super::message::{self, LinkPurpose, Request, Welcome, response};
use super::pending_blocks::RemoteBlocksCore;
use super::{APPENDS_IN_FLIGHT_MAX, RESPONSE_TIMEOUT, hold_up, retry_backoff};
use crate::blocks::SHARDS;
use crate::{Error, events, lock};

/// Asks the node for the ids of its blocks, until all are known here or there are too many.
pub(super) async fn learn_ids(shared: Arc<RemoteBlocksCore>, reads: Arc<NodeSession>) {
    let mut backoff = retry_backoff();
    let mut shard = 0;
    while shard < SHARDS {
        hold_up("storage.node.learning").await;
        let request = Request::Tags(shard as u8);
        let error = match reads.ask(request.encode(), RESPONSE_TIMEOUT).await {
            Ok(response) => match response::read_tags(&response) {
                Ok(tags) => {
                    let mut absence = lock(&shared.tx_id_filter);
                    tags.for_each(|tag| absence.enter((shard as u8, tag)));
                    if !absence.is_learning() {
                        return;
                    }
                    shard += 1;
                    continue;
                }
                Err(malformed) => shared.options.malformed(malformed),
            },
            Err(error) => error,
        };
        if !passes(error.kind()) {
            tracing::warn!(channel = shared.options.channel, %error, "asking the node for each transaction id from now on");
            return lock(&shared.tx_id_filter).give_up();
        }
        backoff.wait().await;
    }
    lock(&shared.tx_id_filter).finish_learning();
}

pub(super) async fn open_link(options: &RemoteStoreConfig) -> Result<(RpcClient, Welcome), Error> {
    let (caller, response) = connect(options, LinkPurpose::Appender, |_| {}).await?;
    let opened = Welcome::decode(response).map_err(|malformed| options.malformed(malformed))?;
    Ok((caller, opened))
}

/// Whether the error may go away when the channel is opened again.
fn passes(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Retry | ErrorKind::Closed | ErrorKind::Ambiguous)
}

/// The driver.
pub(super) async fn drive(shared: Arc<RemoteBlocksCore>, first: RpcClient) {
    let mut link = Some((first, lock(&shared.state).durable.0));
    let mut backoff = retry_backoff();
    loop {
        let (caller, from) = match link.take() {
            Some(open) => open,
            None => match reopen(&shared).await {
                Ok(open) => open,
                Err(error) if passes(error.kind()) => {
                    tracing::warn!(channel = shared.options.channel, %error, "blocks cannot be sent yet");
                    backoff.wait().await;
                    continue;
                }
                Err(error) => return shared.fail(error),
            },
        };
        let durable = *shared.durable.borrow();
        let (to_take, sent) = bounded(APPENDS_IN_FLIGHT_MAX);
        let sending = send_blocks(&shared, &caller, from, to_take);
        let taking = take_answers(&shared, &caller, sent);
        let error = either(taking, sending).await;
        caller.end();
        if !passes(error.kind()) {
            return shared.fail(error);
        }
        if *shared.durable.borrow() > durable {
            backoff.reset();
        }
        tracing::info!(channel = shared.options.channel, %error, "opening the channel again");
        backoff.wait().await;
    }
}

/// Opens another link and resolves ambiguous appends; returns the number of the first block to send.
async fn reopen(shared: &RemoteBlocksCore) -> Result<(RpcClient, u64), Error> {
    let (caller, opened) = open_link(&shared.options).await?;
    let resolved = lock(&shared.state).resolve(&opened);
    resolved.map_err(|(kind, text)| shared.options.error(kind, text))?;
    // Opening a channel makes its whole chain durable.
    let from = shared.advance_durable(opened.tip.height);
    let again = lock(&shared.state).pending.len() as u64;
    events::BlocksResent.add(again);
    Ok((caller, from))
}

/// Sends pending blocks from number `from` on, until the link ends.
async fn send_blocks(
    shared: &RemoteBlocksCore,
    caller: &RpcClient,
    from: u64,
    to_take: base::rt::channel::Sender<PendingResponse>,
) -> Error {
    let mut next = from;
    loop {
        let Some(pending) = shared.pending_at(next) else {
            shared.work.notified().await;
            continue;
        };
        let sent = match caller.start(message::append(&pending.new_block())).await {
            Ok(sent) => sent,
            Err(error) => return shared.options.call_error(error),
        };
        next += 1;
        if to_take.send(sent).await.is_err() {
            return shared.options.call_error(RpcError::Closed);
        }
    }
}

/// Takes answers in the order of sending, until one is an error or the link ends.
async fn take_answers(shared: &RemoteBlocksCore, caller: &RpcClient, mut sent: Receiver<PendingResponse>) -> Error {
    let ended = || shared.options.call_error(RpcError::Closed);
    loop {
        let pending = match either(async { Some(sent.recv().await) }, async {
            caller.ended().await;
            None
        })
        .await
        {
            Some(Some(pending)) => pending,
            _ => return ended(),
        };
        let response = match rt::timeout(RESPONSE_TIMEOUT * 2, pending).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return shared.options.call_error(error),
            Err(_) => return shared.options.call_error(RpcError::Ambiguous),
        };
        match response::read_number(response) {
            Ok(durable) => drop(shared.advance_durable(durable)),
            Err(malformed) => return shared.options.malformed(malformed),
        }
    }
}

/// Runs both until one completes; polls the first one first.
async fn either<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    std::future::poll_fn(|context| match one.as_mut().poll(context) {
        Poll::Pending => other.as_mut().poll(context),
        ready => ready,
    })
    .await
}
