//! The answering side of a peer's links.

use std::pin::pin;
use std::sync::Arc;

use base::rt::net::call::{self, Handler, Notifier, Refusal};
use base::rt::net::{Door, Parties, Parts};
use base::rt::{self, Stop};
use base::{Bytes, ErrorKind, TxId};
use futures_util::future::{Either, select};
use prost::Message as _;

use super::messages::{
    Answer, Ask, BlockAnswer, BlockAt, CommitAnswer, Committed, Failure, Notice, Place, Request, StatusAnswer, Welcome,
    decode,
};
use super::{FOLLOW_BLOCKS_MAX, LINKS_MAX, REQUESTS_MAX, VERSION};
use crate::Error;
use crate::endorse::{Endorse, EndorseError};
use crate::view::{ChannelView, PeerView};

/// What the other side of a link may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Everything: a gateway of the same organisation.
    Own,
    /// To have proposals run, and to compare commit hashes: gateways of other organisations.
    Others,
}

/// Answers `parties` at `address` until `stop`: the organisation's gateways, or other organisations.
///
/// # Errors
/// If the address is taken.
pub async fn serve_peer<P: PeerView + Endorse>(
    peer: Arc<P>,
    scope: Scope,
    address: &str,
    parties: &Parties,
    stop: Stop,
) -> Result<rt::Task<()>, Error> {
    let handler = Arc::new(Server { peer, scope });
    let handler = move || Arc::new(Connection { server: handler.clone(), notifier: std::sync::OnceLock::new() });
    serve(address, parties, stop, handler).await
}

/// Accepts links and gives each a handler of its own.
pub(super) async fn serve<H: Handler>(
    address: &str,
    parties: &Parties,
    stop: Stop,
    handler: impl Fn() -> Arc<H> + Send + 'static,
) -> Result<rt::Task<()>, Error> {
    let mut door = Door::open(address, parties, LINKS_MAX).await.map_err(|error| Error::io(address, &error))?;
    Ok(rt::spawn(async move {
        while let Some(Ok(accepted)) = stop.or_stopped(door.accept()).await {
            let serving = call::serve_in(accepted, handler(), REQUESTS_MAX, stop.clone());
            drop(rt::spawn(async move {
                let ended = serving.await;
                tracing::debug!(?ended, "a link ended");
            }));
        }
    }))
}

struct Server<P> {
    peer: Arc<P>,
    scope: Scope,
}

struct Connection<P> {
    server: Arc<Server<P>>,
    notifier: std::sync::OnceLock<Notifier>,
}

impl<P: PeerView + Endorse> Handler for Connection<P> {
    fn opened(&self, notifier: Notifier) {
        // Told once.
        let _ = self.notifier.set(notifier);
    }

    fn request(&self, request: Parts) -> call::Answer {
        let server = self.server.clone();
        let notifier = self.notifier.get().cloned();
        Box::pin(async move {
            let request =
                decode::<Request>(request.concat()).map_err(|error| rejected(format!("not a request: {error}")))?;
            let ask = request.ask.ok_or_else(|| rejected("a request that asks nothing".to_owned()))?;
            server.answer(ask, notifier).await
        })
    }
}

pub(super) fn rejected(text: String) -> Refusal {
    Refusal::new(ErrorKind::Rejected, text)
}

fn refused(error: &Error) -> Refusal {
    Refusal::new(error.kind(), error.to_string())
}

fn body(message: &impl prost::Message) -> Parts {
    message.encode_to_vec().into()
}

impl<P: PeerView + Endorse> Server<P> {
    async fn answer(&self, ask: Ask, notifier: Option<Notifier>) -> Result<Parts, Refusal> {
        let endorsed = |outcome: Result<Vec<u8>, EndorseError>| {
            Ok(body(&match outcome {
                Ok(result) => Answer { result: result.into(), failure: None },
                Err(error) => Answer { result: Bytes::new(), failure: Some(Failure::of_endorse(&error)) },
            }))
        };
        match ask {
            Ask::Hello(_) => Ok(body(&self.welcome())),
            Ask::Process(proposal) => {
                endorsed(self.peer.process(proposal).await.map(|response| response.encode_to_vec()))
            }
            Ask::Evaluate(proposal) => {
                endorsed(self.peer.evaluate(proposal).await.map(|response| response.encode_to_vec()))
            }
            Ask::Broadcast(_) => Err(rejected("this is a peer; broadcasts go to orderers".to_owned())),
            Ask::Commit(BlockAt { channel, number }) => {
                let channel = self.channel(&channel)?;
                let height = channel.height();
                let number = number.min(height.saturating_sub(1));
                // One of the newest is in memory.
                let block = match number + FOLLOW_BLOCKS_MAX >= height {
                    true => channel.committed_block(number).await.map_err(|error| refused(&error))?,
                    false => None,
                };
                let hash = block.map(|block| block.block().metadata().commit_hash()).transpose();
                let hash = hash.map_err(|error| refused(&error.into()))?.flatten();
                Ok(body(&CommitAnswer { number, hash: hash.map(|hash| Bytes::copy_from_slice(&hash)) }))
            }
            _ if self.scope == Scope::Others => {
                let scope = "other organisations may have proposals run here, compare commit hashes, and nothing else";
                Err(rejected(scope.to_owned()))
            }
            Ask::Block(BlockAt { channel, number }) => {
                let block = self.channel(&channel)?.read_block(number).await.map_err(|error| refused(&error))?;
                // The field's key and length, then the block's own bytes, which are not copied.
                let Some(block) = block else { return Ok(body(&BlockAnswer { block: None })) };
                let mut head = Vec::with_capacity(11);
                prost::encoding::encode_key(1, prost::encoding::WireType::LengthDelimited, &mut head);
                prost::encoding::encode_varint(block.len() as u64, &mut head);
                Ok(vec![Bytes::from(head), block].into())
            }
            Ask::Status(of) => {
                let channel = self.channel(&of.channel)?;
                let status = channel.tx_status(&TxId::new(of.tx_id)).await.map_err(|error| refused(&error))?;
                let status = status.map(|status| Place { code: u32::from(status.code.0), block: status.block });
                Ok(body(&StatusAnswer { status }))
            }
            Ask::Follow(BlockAt { channel, number }) => {
                let channel = self.channel(&channel)?;
                let notifier = notifier.ok_or_else(|| rejected("the link is not open yet".to_owned()))?;
                let height = channel.height();
                let from = number.min(height).max(height.saturating_sub(FOLLOW_BLOCKS_MAX));
                let name = channel.rules().channel().to_string();
                let begun = BlockAt { channel: name, number: from };
                drop(rt::spawn(async move { notify(channel.as_ref(), from, &notifier).await }));
                Ok(body(&begun))
            }
        }
    }

    fn welcome(&self) -> Welcome {
        let channels = match self.scope {
            Scope::Own => self.peer.channels(),
            Scope::Others => Vec::new(),
        };
        let channels = channels
            .iter()
            .map(|channel| BlockAt { channel: channel.rules().channel().to_string(), number: channel.height() });
        Welcome { version: VERSION, channels: channels.collect() }
    }

    fn channel(&self, name: &str) -> Result<Arc<dyn ChannelView>, Refusal> {
        self.peer.channel(name).ok_or_else(|| refused(&Error::UnknownChannel(name.to_owned())))
    }
}

/// Step 3 of the protocol, until the link or the channel ends.
async fn notify(channel: &dyn ChannelView, from: u64, notifier: &Notifier) {
    let name = channel.rules().channel().to_string();
    let mut committed = channel.committed();
    let mut next = from;
    let failure = loop {
        let seen = next;
        let ended = pin!(async {
            let gone = pin!(notifier.ended());
            select(gone, channel.stopped()).await;
        });
        let above = pin!(committed.wait_for(move |height| *height > seen));
        match select(above, ended).await {
            Either::Left((Ok(_), _)) => {}
            _ => break channel.failure().map_or_else(|| "it was stopped".to_owned(), |error| error.to_string()),
        }
        let block = match channel.committed_block(next).await {
            Ok(Some(block)) => block,
            Ok(None) => break format!("block {next} is not there"),
            Err(error) => break error.to_string(),
        };
        let transactions = block.transactions().iter().filter_map(|transaction| {
            let tx_id = transaction.tx_id.as_ref()?.to_string();
            Some(Committed { tx_id, code: u32::from(transaction.code.0) })
        });
        let notice =
            Notice { channel: name.clone(), number: next, transactions: transactions.collect(), failure: None };
        if notifier.notify(notice.encode_to_vec()).await.is_err() {
            return;
        }
        next += 1;
    };
    let notice = Notice { channel: name, number: next, transactions: Vec::new(), failure: Some(failure) };
    // Nobody is left to tell when the link has ended.
    let _ = notifier.notify(notice.encode_to_vec()).await;
}
