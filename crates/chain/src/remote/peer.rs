//! A remote peer.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::Parties;
use base::rt::net::rpc::RpcClient;
use base::rt::{self, Backoff, CancellationToken, net};
use base::{Bytes, ChannelId, ErrorKind};
use ledger::{ChannelConfig, Hash};
use proto::discovery::Peer;
use proto::protos::{ProposalResponse, Response};
use replica::NODES_MAX;
use rules::access::ChannelPolicies;
use rules::definitions::ContractDefinitions;

use super::channel::{PeerConnection, RemoteChannel, send_request};
use super::messages::{
    Ask, BlockAt, CommitHashResponse, CommitNotification, ConfigResponse, Hello, NodeReport, NodesRequest,
    NodesResponse, ResultResponse, Welcome, decode,
};
use super::target::PeerTarget;
use super::{
    BACKOFF_MAX, BACKOFF_MIN, HELLO_MAX, MOVE_BACKOFF_MAX, PROBE_MAX, PROBE_PERIOD, PROTOCOL_VERSIONS, REQUESTS_MAX,
};
use crate::Error;
use crate::endorse::{Endorse, EndorseError};
use crate::view::{ChannelView, PeerView};

/// How to reach a peer.
#[derive(Clone, Debug)]
pub struct RemotePeerConfig {
    /// Its name, for errors and logs.
    pub name: String,
    /// Where it answers.
    pub target: PeerTarget,
    /// The organisation of the peer. A node of any other organisation at an address gets no proposals.
    pub parties: Parties,
    /// The contracts of the channels, the same as the peer's.
    pub definitions: ContractDefinitions,
}

/// A remote peer. A background task connects to it and reconnects, until the value is dropped.
pub struct RemotePeer {
    shared: Arc<RemotePeerCore>,
    _task: rt::AbortOnDrop<()>,
}

struct RemotePeerCore {
    options: RemotePeerConfig,
    connection: Arc<PeerConnection>,
    channels: RwLock<BTreeMap<String, Arc<RemoteChannel>>>,
    reached: CancellationToken,
}

impl RemotePeer {
    /// Starts to connect.
    pub fn new(options: RemotePeerConfig) -> RemotePeer {
        let connection = PeerConnection::new(options.name.clone(), options.target.clone());
        let connection = Arc::new(connection);
        let channels = RwLock::default();
        let shared = Arc::new(RemotePeerCore { options, connection, channels, reached: CancellationToken::new() });
        let task = rt::spawn(shared.clone().stay_connected()).abort_on_drop();
        RemotePeer { shared, _task: task }
    }

    /// Completes when the peer was reached for the first time, and its channels are known.
    pub async fn reached(&self) {
        self.shared.reached.cancelled().await;
    }

    /// Why the peer cannot be asked; `None` if it can.
    pub fn problem(&self) -> Option<Error> {
        self.shared.connection.problem()
    }

    /// The commit hash of a block with its number, or that of the peer's newest block if that is older. `None` if the
    /// peer does not know: the block is not among its newest ones, or is the first block.
    ///
    /// # Errors
    /// If the peer cannot be asked, or answers about a later block.
    pub async fn commit_hash(&self, channel: &str, number: u64) -> Result<Option<(u64, Hash)>, Error> {
        let connection = &self.shared.connection;
        let answer = connection.request(Ask::Commit(BlockAt { channel: channel.to_owned(), number })).await?;
        let malformed = |error: &dyn std::fmt::Display| connection.malformed("a commit hash", error);
        let answer: CommitHashResponse = decode(answer).map_err(|error| malformed(&error))?;
        let Some(hash) = answer.hash else { return Ok(None) };
        let hash = Hash::try_from(&hash[..]).map_err(|error| malformed(&error))?;
        match answer.number <= number {
            true => Ok(Some((answer.number, hash))),
            false => Err(malformed(&"it is of a later block than was asked for")),
        }
    }

    /// The compute nodes of the peer, with where they answer and how loaded they are; none if the node at the other end
    /// is not the primary.
    ///
    /// # Errors
    /// If the peer cannot be asked; peers of earlier releases reject the request.
    pub async fn nodes(&self) -> Result<Vec<NodeReport>, Error> {
        let connection = &self.shared.connection;
        let answer = connection.request(Ask::Nodes(NodesRequest {})).await?;
        let answer: NodesResponse =
            decode(answer).map_err(|error| connection.malformed("a list of compute nodes", &error))?;
        match answer.nodes.len() <= NODES_MAX {
            true => Ok(answer.nodes),
            false => Err(connection.malformed("a list of compute nodes", &format!("it has more than {NODES_MAX}"))),
        }
    }

    /// Sends a request, and returns the answer's bytes.
    pub(super) async fn ask(&self, ask: Ask) -> Result<Bytes, Error> {
        self.shared.connection.request(ask).await
    }

    async fn request_result(&self, ask: Ask) -> Result<Bytes, EndorseError> {
        let unserved = |error: &Error| EndorseError::State { kind: error.kind(), message: error.to_string() };
        let answer = self.shared.connection.request(ask).await.map_err(|error| unserved(&error))?;
        let answer = ResultResponse::read(answer);
        let answer = answer.map_err(|error| unserved(&self.shared.connection.malformed("an answer", &error)))?;
        match answer.failure {
            None => Ok(answer.result),
            Some(failure) => Err(failure.into_endorse()),
        }
    }
}

impl PeerView for RemotePeer {
    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelView>> {
        self.shared.channel(name).map(|channel| channel as Arc<dyn ChannelView>)
    }

    fn channels(&self) -> Vec<Arc<dyn ChannelView>> {
        self.shared.all().into_iter().map(|channel| channel as Arc<dyn ChannelView>).collect()
    }

    fn knows_channels(&self) -> bool {
        self.shared.reached.is_cancelled()
    }
}

#[async_trait]
impl Endorse for RemotePeer {
    async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        read(self.request_result(Ask::Process(signed_proposal)).await?)
    }

    async fn evaluate(&self, signed_proposal: Bytes) -> Result<Response, EndorseError> {
        read(self.request_result(Ask::Evaluate(signed_proposal)).await?)
    }

    async fn describe(&self, channel: &str) -> Result<Peer, EndorseError> {
        read(self.request_result(Ask::Describe(channel.to_owned())).await?)
    }
}

fn read<M: prost::Message + Default>(bytes: Bytes) -> Result<M, EndorseError> {
    decode(bytes).map_err(|error| EndorseError::State {
        kind: ErrorKind::Corrupt,
        message: format!("the peer's answer cannot be read: {error}"),
    })
}

impl RemotePeerCore {
    fn channel(&self, name: &str) -> Option<Arc<RemoteChannel>> {
        self.channels.read().expect("no holder of this lock panics").get(name).cloned()
    }

    fn all(&self) -> Vec<Arc<RemoteChannel>> {
        self.channels.read().expect("no holder of this lock panics").values().cloned().collect()
    }

    fn moves(&self) -> bool {
        self.options.target.moves()
    }

    async fn stay_connected(self: Arc<Self>) {
        let pause_max = if self.moves() { MOVE_BACKOFF_MAX } else { BACKOFF_MAX };
        let mut backoff = Backoff::spread(BACKOFF_MIN, pause_max);
        let mut attempt = 0;
        loop {
            let addresses = self.options.target.addresses();
            let reason = match self.connect(&addresses[attempt % addresses.len()]).await {
                Ok(caller) => {
                    backoff.reset();
                    self.reached.cancel();
                    self.until_ended(&caller).await;
                    "the link ended".to_owned()
                }
                Err(reason) => reason,
            };
            attempt += 1;
            tracing::debug!(peer = self.options.name, reason, "not connected");
            self.connection.down(reason);
            for channel in self.all() {
                channel.interrupted();
            }
            backoff.wait().await;
        }
    }

    /// Waits until a new connection is needed: the link has ended, or the node at its other end is no longer the
    /// primary.
    async fn until_ended(&self, caller: &RpcClient) {
        if !self.moves() {
            return caller.ended().await;
        }
        loop {
            if rt::timeout(PROBE_PERIOD, caller.ended()).await.is_ok() {
                return;
            }
            let hello = self.request::<Welcome>(caller, Ask::Hello(Hello::new(PROTOCOL_VERSIONS)), PROBE_MAX).await;
            let is_primary = hello.is_ok_and(|welcome| !welcome.channels.is_empty());
            if !is_primary {
                return caller.end();
            }
        }
    }

    /// Steps 1 to 4 of the protocol.
    async fn connect(self: &Arc<Self>, address: &str) -> Result<RpcClient, String> {
        let hello_max = if self.moves() { PROBE_MAX } else { HELLO_MAX };
        let link = rt::timeout(hello_max, net::connect_to(address, &self.options.parties)).await;
        let link = link.map_err(|_| "no link in time".to_owned())?.map_err(|error| error.to_string())?;
        let shared = Arc::downgrade(self);
        let caller = RpcClient::new(link, REQUESTS_MAX, move |notice| {
            // Anything but a notice of a known channel is ignored.
            if let (Some(shared), Ok(notice)) = (shared.upgrade(), decode::<CommitNotification>(notice))
                && let Some(channel) = shared.channel(&notice.channel)
            {
                if notice.failure.is_some() && shared.moves() {
                    // Another node is the primary, or is about to be.
                    return shared.connection.drop_link();
                }
                let changes_policies = notice.changes_policies;
                channel.handle_notification(notice);
                if changes_policies && channel.count_config_notice() {
                    drop(rt::spawn(async move { shared.refresh(&channel).await }));
                }
            }
        });
        let welcome: Welcome = self.request(&caller, Ask::Hello(Hello::new(PROTOCOL_VERSIONS)), hello_max).await?;
        welcome.version()?;
        welcome.check_channels(&self.channels.read().expect("no holder of this lock panics"))?;
        if welcome.channels.is_empty() && self.moves() {
            return Err("it is not the primary".to_owned());
        }
        for BlockAt { channel: name, .. } in welcome.channels {
            let channel = match self.channel(&name) {
                Some(channel) => channel,
                None => self.learn(&caller, &name).await?,
            };
            let from = BlockAt { channel: name, number: channel.height() };
            let begun: BlockAt = self.request(&caller, Ask::Follow(from), HELLO_MAX).await?;
            channel.raise_height(begun.number);
            // Notices report every change from here on.
            let newest = self.newest_config(&caller, channel.policies().channel().as_str()).await?;
            channel.set_config(&newest).map_err(|error| format!("the newest configuration: {error}"))?;
        }
        self.connection.up(caller.clone());
        Ok(caller)
    }

    /// The newest configuration and definitions of a channel, as the peer's state holds them.
    async fn newest_config(&self, caller: &RpcClient, channel: &str) -> Result<ConfigResponse, String> {
        self.request(caller, Ask::Config(channel.to_owned()), HELLO_MAX).await
    }

    /// Takes over the configurations that notices have reported. If that fails, the link ends: the next one asks again. One task a
    /// channel does this, however many notices arrive.
    async fn refresh(&self, channel: &RemoteChannel) {
        let name = channel.policies().channel().to_string();
        loop {
            let notices = channel.config_notices();
            let refreshed = async {
                let answer = self.connection.request(Ask::Config(name.clone())).await?;
                let answer = decode::<ConfigResponse>(answer);
                channel.set_config(&answer.map_err(|error| self.connection.malformed("a configuration", &error))?)
            };
            if let Err(error) = refreshed.await {
                tracing::warn!(peer = self.options.name, channel = name, %error, "a new configuration could not be taken over");
                self.connection.drop_link();
            }
            if channel.answer_config_notices(notices) {
                return;
            }
        }
    }

    async fn learn(&self, caller: &RpcClient, name: &str) -> Result<Arc<RemoteChannel>, String> {
        let newest = self.newest_config(caller, name).await?;
        let policies = (|| {
            let config = Arc::new(ChannelConfig::from_state(&ChannelId::from(name), newest.content.clone())?);
            let policies = ChannelPolicies::new(config, self.options.definitions.clone())?;
            Ok::<_, Error>(Arc::new(policies.defining(newest.definitions())))
        })();
        let policies = policies.map_err(|error| format!("the configuration of channel {name}: {error}"))?;
        let channel = Arc::new(RemoteChannel::new(self.connection.clone(), policies));
        self.channels.write().expect("no holder of this lock panics").insert(name.to_owned(), channel.clone());
        Ok(channel)
    }

    async fn request<M: prost::Message + Default>(
        &self,
        caller: &RpcClient,
        ask: Ask,
        time: Duration,
    ) -> Result<M, String> {
        let answer = rt::timeout(time, send_request(caller, ask)).await.map_err(|_| "no answer in time".to_owned())?;
        decode(answer.map_err(|error| error.to_string())?).map_err(|error| format!("not an answer: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use base::rt::net::GatherList;
    use base::rt::net::rpc::{self, RpcHandler};
    use base::rt::simulation::Simulation;
    use prost::Message as _;

    use super::*;
    use crate::remote::messages::PeerRequest;
    use crate::remote::{CHANNELS_MAX, serve};

    /// Answers each hello with one channel too many, and nothing else.
    struct ListsTooMany;

    impl RpcHandler for ListsTooMany {
        fn request(&self, request: GatherList) -> rpc::ResponseFuture {
            Box::pin(async move {
                let request =
                    PeerRequest::read(request.concat()).map_err(|error| serve::rejected(error.to_string()))?;
                let Some(Ask::Hello(hello)) = request.ask else { return Err(serve::rejected("no hello".to_owned())) };
                let named = |number| BlockAt { channel: format!("channel{number}"), number: 0 };
                let welcome = hello.answer(|| (0..=CHANNELS_MAX).map(named).collect());
                Ok(welcome.map_err(|error| serve::rejected(error.to_string()))?.encode_to_vec().into())
            })
        }
    }

    #[test]
    fn a_peer_that_lists_too_many_channels_is_not_connected() {
        let run = Simulation::new(1).run(|sim| async move {
            drop(sim.node("peer").spawn(async {
                let (parties, stop) = (Parties::anyone(), CancellationToken::new());
                let serving = serve::serve("peer", &parties, stop, |_| Arc::new(ListsTooMany)).await;
                serving.expect("the address is free").await
            }));
            let gateway = sim.node("gateway").spawn(async {
                let remote = RemotePeer::new(RemotePeerConfig {
                    name: "a peer".to_owned(),
                    target: PeerTarget::Node("peer".to_owned()),
                    parties: Parties::anyone(),
                    definitions: ContractDefinitions::new(),
                });
                let told = async {
                    while !remote.problem().is_some_and(|error| error.to_string().contains("more than 1000")) {
                        rt::sleep(Duration::from_millis(10)).await;
                    }
                };
                rt::timeout(Duration::from_secs(60), told).await.expect("it says why");
                assert!(!remote.knows_channels() && remote.channels().is_empty());
            });
            gateway.await.expect("it ends");
        });
        run.expect("the run succeeds");
    }
}
