//! Blocks on their way from the nodes that order or store them to the peers that commit them.
//!
//! A source serves the blocks of a channel, and a peer asks for them over a link:
//!
//! ```
//! use std::sync::Arc;
//!
//! use base::Bytes;
//! use base::rt::channel::{WatchReceiver, WatchSender, watch};
//! use base::rt::simulation::Simulation;
//! use base::rt::{self, CancellationToken, net};
//! use block_transport::protocol::{BLOCK_ACKNOWLEDGED, DeliverRequest, DeliverResponse};
//! use block_transport::{BlockSource, ChannelBlocks, serve_link};
//!
//! /// A channel with two blocks, whose contents do not matter here.
//! struct TwoBlocks {
//!     height: WatchSender<u64>,
//!     stop: CancellationToken,
//! }
//!
//! impl ChannelBlocks for TwoBlocks {
//!     fn is_member(&self, organization: &str) -> bool {
//!         organization == "Org1MSP"
//!     }
//!     fn deliverable(&self) -> WatchReceiver<u64> {
//!         self.height.subscribe()
//!     }
//!     fn may_lag(&self) -> bool {
//!         false
//!     }
//!     fn block(&self, number: u64) -> Result<Option<Bytes>, Box<dyn std::error::Error + Send + Sync>> {
//!         Ok((number < 2).then(|| vec![10, number as u8].into()))
//!     }
//!     fn stopping(&self) -> &CancellationToken {
//!         &self.stop
//!     }
//! }
//!
//! struct OneChannel(Arc<TwoBlocks>);
//!
//! impl BlockSource for OneChannel {
//!     fn channel(&self, name: &str) -> Option<Arc<dyn ChannelBlocks>> {
//!         (name == "trade").then(|| self.0.clone() as Arc<dyn ChannelBlocks>)
//!     }
//!     fn stopping(&self) -> &CancellationToken {
//!         &self.0.stop
//!     }
//! }
//!
//! let report = Simulation::new(7).run(|_sim| async {
//!     let channel = TwoBlocks { height: watch(2).0, stop: CancellationToken::new() };
//!     let source = Arc::new(OneChannel(Arc::new(channel)));
//!     let mut listener = net::listen("orderer").await.expect("the address is free");
//!     rt::spawn(async move { serve_link(source, listener.accept().await.expect("a peer connects")).await });
//!
//!     let mut link = net::connect("orderer").await.expect("it listens");
//!     let request = DeliverRequest { channel: "trade".to_owned(), from: 1 };
//!     link.send(request.encode()).await.expect("the link holds");
//!     let response = DeliverResponse::decode(link.receive().await.expect("the link holds"));
//!     link.send(Bytes::from_static(BLOCK_ACKNOWLEDGED)).await.expect("the link holds");
//!     response
//! });
//! let response = report.expect("the run succeeds").value.expect("a response");
//! assert_eq!(response, DeliverResponse::Block(Bytes::from_static(&[10, 1])));
//! ```
//!
//! A peer uses [`receive_blocks`], which also verifies each block and fails over between sources.
//!
//! # Parts
//! * [`protocol`]: the messages, and when each is sent.
//! * [`BlockSource`] and [`serve()`]: the sender's side. An orderer is a source.
//! * [`BlockSink`] and [`receive_blocks`]: the receiver's side. The commit pipeline of a peer's channel is a sink.
//! * [`RecentBlocks`]: the newest blocks in memory, for receivers that follow the tip.
//!
//! # Guarantees
//! * A sink gets the blocks of its channel in order, each once. Each block continues the chain, and is signed as the
//!   channel's configuration requires.
//! * A source that is silent, sends malformed bytes or is on another chain costs a peer only the time until the peer
//!   turns to the next source.
//! * A source sends the blocks of a channel only to organisations of that channel; a link that proves no name is
//!   trusted. It sends at most [`protocol::WINDOW_BLOCKS`] blocks ahead of what the peer has acknowledged.
//! * When a majority of the orderers have a chain that lacks the sink's newest block, the channel ends with an error:
//!   see [`receive`].
//!
//! # Neighbours
//! Below, [`base::rt::net`] carries links, and `ledger` parses blocks and verifies their signatures. Above, `chain` has
//! the source (`chain::order`) and the sink (`chain::commit`). This crate knows neither transactions nor world state.
#![deny(missing_docs)]

pub mod events;
pub mod protocol;
pub mod receive;
mod recent;
mod serve;
mod source;

pub use receive::{BlockSink, ReceivedTip, SinkStopped, SourceAddresses, receive_blocks};
pub use recent::RecentBlocks;
pub use serve::{serve, serve_link};
pub use source::{BlockSource, ChannelBlocks};
