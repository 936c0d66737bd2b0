//! The serving end of a peer's links.

use std::pin::pin;
use std::sync::Arc;

use base::rt::net::rpc::{self, Notifier, Rejection, RpcHandler};
use base::rt::net::{GatherList, LinkAcceptor, Parties};
use base::rt::{self, CancellationToken};
use base::{Bytes, ErrorKind, MspId, TxId};
use futures_util::future::{Either, select};
use prost::Message as _;

use super::messages::{
    Ask, BlockAt, BlockResponse, CommitHashResponse, CommitNotification, CommittedTx, ConfigResponse, NodesRequest,
    NodesResponse, PeerRequest, RemoteFailure, ResultResponse, StatusResponse, TransactionStatus,
};
use super::private_messages::{
    PrivateBlock, PrivateBlockResponse, PrivatePull, PrivatePullResponse, PrivatePush, ProvidedSet,
};
use super::{FOLLOW_BLOCKS_MAX, LINKS_MAX, REQUESTS_MAX};
use crate::Error;
use crate::endorse::{Endorse, EndorseError, EndorsingChannel, HostsChannels};
use crate::view::{ChannelView, PeerView};

/// The requests that the other end of a link may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServiceScope {
    /// All requests: a gateway of the same organisation.
    Own,
    /// Running proposals, comparing commit hashes, and where the peer's compute nodes answer: gateways of other
    /// organisations.
    Others,
}

/// Serves `parties` at `address` until `stop`: the organisation's gateways, or other organisations.
///
/// # Errors
/// If the address is in use.
pub async fn serve_peer<P: PeerView + Endorse + HostsChannels>(
    peer: Arc<P>,
    scope: ServiceScope,
    address: &str,
    parties: &Parties,
    stop: CancellationToken,
) -> Result<rt::Task<()>, Error> {
    let handler = Arc::new(PeerServer { peer, scope });
    let handler = move |party: Option<&str>| {
        let party = party.map(MspId::new);
        Arc::new(ServedLink { server: handler.clone(), party, notifier: std::sync::OnceLock::new() })
    };
    serve(address, parties, stop, handler).await
}

/// Accepts links and creates a handler for each, which gets the name that the link proves.
pub(super) async fn serve<H: RpcHandler>(
    address: &str,
    parties: &Parties,
    stop: CancellationToken,
    handler: impl Fn(Option<&str>) -> Arc<H> + Send + 'static,
) -> Result<rt::Task<()>, Error> {
    let mut door = LinkAcceptor::open(address, parties, LINKS_MAX).await.map_err(|error| Error::io(address, &error))?;
    Ok(rt::spawn(async move {
        while let Some(Ok(accepted)) = stop.run_until_cancelled(door.accept()).await {
            let handler = handler(accepted.0.peer());
            let serving = rpc::serve_admitted(accepted, handler, REQUESTS_MAX, stop.clone());
            drop(rt::spawn(async move {
                let ended = serving.await;
                tracing::debug!(?ended, "a link ended");
            }));
        }
    }))
}

struct PeerServer<P> {
    peer: Arc<P>,
    scope: ServiceScope,
}

struct ServedLink<P> {
    server: Arc<PeerServer<P>>,
    /// The name that the link proves.
    party: Option<MspId>,
    notifier: std::sync::OnceLock<Notifier>,
}

impl<P: PeerView + Endorse + HostsChannels> RpcHandler for ServedLink<P> {
    fn opened(&self, notifier: Notifier) {
        // Set once.
        let _ = self.notifier.set(notifier);
    }

    fn request(&self, request: GatherList) -> rpc::ResponseFuture {
        let (server, party) = (self.server.clone(), self.party.clone());
        let notifier = self.notifier.get().cloned();
        Box::pin(async move {
            let request =
                PeerRequest::read(request.concat()).map_err(|error| rejected(format!("not a request: {error}")))?;
            let ask = request.ask.ok_or_else(|| rejected("the request is empty or unknown".to_owned()))?;
            match ask {
                Ask::PrivatePush(push) => server.accept_private(party, push).await,
                Ask::PrivatePull(pull) => server.provide_private(party, pull).await,
                ask => server.answer(ask, notifier).await,
            }
        })
    }
}

pub(super) fn rejected(text: String) -> Rejection {
    Rejection::new(ErrorKind::Rejected, text)
}

fn rejection(error: &Error) -> Rejection {
    Rejection::new(error.kind(), error.to_string())
}

fn body(message: &impl prost::Message) -> GatherList {
    message.encode_to_vec().into()
}

impl<P: PeerView + Endorse + HostsChannels> PeerServer<P> {
    async fn answer(&self, ask: Ask, notifier: Option<Notifier>) -> Result<GatherList, Rejection> {
        let endorsed = |outcome: Result<Vec<u8>, EndorseError>| {
            Ok(body(&match outcome {
                Ok(result) => ResultResponse { result: result.into(), failure: None },
                Err(error) => ResultResponse { result: Bytes::new(), failure: Some(RemoteFailure::of_endorse(&error)) },
            }))
        };
        match ask {
            Ask::Hello(hello) => match hello.answer(|| self.joined_channels()) {
                Ok(welcome) => Ok(body(&welcome)),
                Err(error) => Err(Rejection::new(ErrorKind::Rejected, format!("not a hello: {error}"))),
            },
            Ask::Process(proposal) => {
                endorsed(self.peer.process(proposal).await.map(|response| response.encode_to_vec()))
            }
            Ask::Evaluate(proposal) => {
                endorsed(self.peer.evaluate(proposal).await.map(|response| response.encode_to_vec()))
            }
            Ask::Describe(channel) => endorsed(self.peer.describe(&channel).await.map(|peer| peer.encode_to_vec())),
            Ask::PrivatePush(_) | Ask::PrivatePull(_) => {
                Err(rejected("this request needs the name of its link".to_owned()))
            }
            Ask::Broadcast(_) => Err(rejected("this is a peer; broadcasts go to orderers".to_owned())),
            Ask::Nodes(NodesRequest {}) => {
                Ok(body(&NodesResponse::of(self.peer.nodes(), |addresses| match self.scope {
                    ServiceScope::Own => addresses.own,
                    ServiceScope::Others => addresses.others,
                })))
            }
            Ask::Commit(BlockAt { channel, number }) => {
                let channel = self.channel(&channel)?;
                let height = channel.height();
                let number = number.min(height.saturating_sub(1));
                // The newest blocks are in memory.
                let block = match number + FOLLOW_BLOCKS_MAX >= height {
                    true => channel.committed_block(number).await.map_err(|error| rejection(&error))?,
                    false => None,
                };
                let hash = block.map(|block| block.block().metadata().commit_hash()).transpose();
                let hash = hash.map_err(|error| rejection(&error.into()))?.flatten();
                Ok(body(&CommitHashResponse { number, hash: hash.map(|hash| Bytes::copy_from_slice(&hash)) }))
            }
            _ if self.scope == ServiceScope::Others => {
                let scope =
                    "other organisations may only run proposals, compare commit hashes and exchange private data here";
                Err(rejected(scope.to_owned()))
            }
            Ask::Block(BlockAt { channel, number }) => {
                let block = self.channel(&channel)?.read_block(number).await.map_err(|error| rejection(&error))?;
                // The field's key and length, then the block's own bytes, which are not copied.
                let Some(block) = block else { return Ok(body(&BlockResponse { block: None })) };
                let mut head = Vec::with_capacity(11);
                prost::encoding::encode_key(1, prost::encoding::WireType::LengthDelimited, &mut head);
                prost::encoding::encode_varint(block.len() as u64, &mut head);
                Ok(vec![Bytes::from(head), block].into())
            }
            Ask::PrivateBlock(PrivateBlock { channel, number, request }) => {
                let found = self.channel(&channel)?.private_data(number, &request).await;
                Ok(body(&PrivateBlockResponse::new(found.map_err(|error| rejection(&error))?)))
            }
            Ask::Config(channel) => Ok(body(&ConfigResponse::of(&self.channel(&channel)?.policies()))),
            Ask::Status(of) => {
                let channel = self.channel(&of.channel)?;
                let status = channel.tx_status(&TxId::new(of.tx_id)).await.map_err(|error| rejection(&error))?;
                let status =
                    status.map(|status| TransactionStatus { code: u32::from(status.code.0), block: status.block });
                Ok(body(&StatusResponse { status }))
            }
            Ask::Follow(BlockAt { channel, number }) => {
                let channel = self.channel(&channel)?;
                let notifier = notifier.ok_or_else(|| rejected("the link is not open yet".to_owned()))?;
                let height = channel.height();
                let from = number.min(height).max(height.saturating_sub(FOLLOW_BLOCKS_MAX));
                let name = channel.policies().channel().to_string();
                let begun = BlockAt { channel: name, number: from };
                drop(rt::spawn(async move { notify(channel.as_ref(), from, &notifier).await }));
                Ok(body(&begun))
            }
        }
    }

    /// Takes private data of another organisation.
    async fn accept_private(&self, party: Option<MspId>, push: PrivatePush) -> Result<GatherList, Rejection> {
        let channel = self.hosted(&push.channel)?;
        let (from, tx_id) = (self.sender(party, &push.organization)?, TxId::new(push.tx_id.as_str()));
        let sets = push.into_sets();
        let (policies, height) = (channel.policies(), channel.height());
        let accepted = channel.private().accept(&from, &*policies, height, &tx_id, &sets).await;
        accepted.map(|()| GatherList::default()).map_err(|error| rejection(&error.into()))
    }

    /// Gives another organisation private data.
    async fn provide_private(&self, party: Option<MspId>, pull: PrivatePull) -> Result<GatherList, Rejection> {
        let channel = self.hosted(&pull.channel)?;
        let to = self.sender(party, &pull.organization)?;
        let wanted = pull.into_digests().ok_or_else(|| rejected("a set has no valid hash".to_owned()))?;
        let (policies, height) = (channel.policies(), channel.height());
        let sets = channel
            .private()
            .provide(&to, &*policies, height, &wanted)
            .await
            .map_err(|error| rejection(&error.into()))?;
        let sets = sets.into_iter().map(|writes| ProvidedSet { writes }).collect();
        Ok(body(&PrivatePullResponse { sets }))
    }

    /// The organisation at the other end of a link. A name that the message claims counts only if the link proves none.
    fn sender(&self, party: Option<MspId>, claimed: &str) -> Result<MspId, Rejection> {
        match (self.scope, party) {
            (ServiceScope::Own, _) => {
                Err(rejected("private data are exchanged with other organisations only".to_owned()))
            }
            (ServiceScope::Others, Some(proven)) => Ok(proven),
            (ServiceScope::Others, None) => Ok(MspId::new(claimed)),
        }
    }

    fn hosted(&self, name: &str) -> Result<Arc<dyn EndorsingChannel>, Rejection> {
        self.peer.endorsing_channel(name).ok_or_else(|| rejection(&Error::UnknownChannel(name.to_owned())))
    }

    fn joined_channels(&self) -> Vec<BlockAt> {
        let channels = match self.scope {
            ServiceScope::Own => self.peer.channels(),
            ServiceScope::Others => Vec::new(),
        };
        channels
            .iter()
            .map(|channel| BlockAt { channel: channel.policies().channel().to_string(), number: channel.height() })
            .collect()
    }

    fn channel(&self, name: &str) -> Result<Arc<dyn ChannelView>, Rejection> {
        self.peer.channel(name).ok_or_else(|| rejection(&Error::UnknownChannel(name.to_owned())))
    }
}

/// Step 3 of the protocol, until the link or the channel ends.
async fn notify(channel: &dyn ChannelView, from: u64, notifier: &Notifier) {
    let name = channel.policies().channel().to_string();
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
            Some(CommittedTx { tx_id, code: u32::from(transaction.code.0) })
        });
        let notice = CommitNotification {
            channel: name.clone(),
            number: next,
            transactions: transactions.collect(),
            failure: None,
            changes_policies: block.changes_policies(),
            written_rows: block.written_rows().map(|rows| rows.bytes().clone()).unwrap_or_default(),
        };
        if notifier.notify(notice.encode_to_vec()).await.is_err() {
            return;
        }
        next += 1;
    };
    let notice =
        CommitNotification { channel: name, number: next, failure: Some(failure), ..CommitNotification::default() };
    // If the link has ended, nobody receives the notice.
    let _ = notifier.notify(notice.encode_to_vec()).await;
}
