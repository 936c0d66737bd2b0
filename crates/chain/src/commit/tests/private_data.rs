//! Networks of three organisations, of which the first two are the members of a collection.

use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::simulation::Simulation;
use base::{Bytes, ErrorKind, MspId, TxId, Version, rt};
use contract::key::KeyRange;
use contract::{
    Contract, ContractError, ContractRegistry, ContractResponse, ContractStub, KEY_POLICY, Metadata, RangeCursor,
    async_trait,
};
use ledger::config::EndorsementRule;
use ledger::hash::sha256;
use ledger::lifecycle::ContractDefinition;
use ledger::rwset::PrivateSet;
use prost::Message as _;
use proto::common::{ChannelHeader, Envelope, Header, HeaderType, Payload, SignatureHeader};
use proto::protos::collection_config::Payload as Configured;
use proto::protos::collection_policy_config::Payload as Members;
use proto::protos::{CollectionConfig, CollectionPolicyConfig, StaticCollectionConfig};
use storage::tables::ModelEngine;

use ledger::Code;
use private_data::rows::SetLocation;
use private_data::{MemberPeer, MemberPeers, PULL_MAX, SetDigest};

use crate::endorse::{Endorse, EndorsingChannel};
use crate::order::Orderer;
use crate::support::{
    CHANNEL, Client, Consortium, ConsortiumConfig, directory, encode, orderer, peer_options, submit, submit_proposal,
};
use crate::view::ChannelView;
use crate::{Channel, LocalMember, Peer, PeerSetup};

const VAULT: &str = "vault";
const PAIR: &str = "pair";

/// Passes its arguments on to the stub.
struct Vault;

#[async_trait]
impl Contract for Vault {
    fn name(&self) -> &str {
        VAULT
    }

    async fn invoke(
        &self,
        tx: &mut dyn ContractStub,
        function: &str,
        args: &[Bytes],
    ) -> Result<ContractResponse, ContractError> {
        let args: Vec<&str> = args.iter().map(|arg| std::str::from_utf8(arg).expect("tests pass text")).collect();
        let found = match (function, &args[..]) {
            ("put", [collection, key, value]) => {
                let value = Bytes::copy_from_slice(value.as_bytes());
                tx.put_private(collection, key, value).await?;
                None
            }
            ("get", [collection, key]) => tx.get_private(collection, key).await?,
            ("hash", [collection, key]) => tx.get_private_hash(collection, key).await?,
            ("delete", [collection, key]) => {
                tx.delete_private(collection, key).await?;
                None
            }
            ("purge", [collection, key]) => {
                tx.purge_private(collection, key).await?;
                None
            }
            // All of its arguments are keys.
            ("set", keys) => {
                keys.iter().try_for_each(|key| tx.put_state(key, Bytes::from_static(b"v")))?;
                None
            }
            ("key policy", [key, policy]) => {
                tx.set_metadata(key, key_policy(policy))?;
                None
            }
            ("private key policy", [collection, key, policy]) => {
                tx.set_private_metadata(collection, key, key_policy(policy)).await?;
                None
            }
            ("get, then put", [collection, key]) => {
                tx.get_private(collection, key).await?;
                tx.put_private(collection, key, Bytes::from_static(b"v")).await?;
                None
            }
            ("policy", [collection, key, policy]) => {
                let policy = Bytes::copy_from_slice(policy.as_bytes());
                tx.set_private_metadata(collection, key, Metadata::from([(KEY_POLICY.to_owned(), policy)])).await?;
                tx.get_private_metadata(collection, key).await?.remove(KEY_POLICY)
            }
            ("range", [collection]) => {
                let range = tx.open_private_range(collection, KeyRange::all()).await?;
                let (mut cursor, mut keys) = (RangeCursor::over(range), String::new());
                while let Some(entry) = cursor.next(tx).await? {
                    keys.push_str(&format!("{}={} ", entry.key, String::from_utf8_lossy(&entry.value)));
                }
                Some(Bytes::from(keys))
            }
            ("range, then put", [collection]) => {
                tx.open_private_range(collection, KeyRange::all()).await?;
                tx.put_private(collection, "k", Bytes::from_static(b"v")).await?;
                None
            }
            other => return Err(ContractError::application(format!("no such function: {other:?}"))),
        };
        Ok(ContractResponse::success(found.unwrap_or_default()))
    }
}

/// The metadata of a key with this policy, with one that cannot be decoded, or with none.
fn key_policy(policy: &str) -> Metadata {
    let policy = match policy {
        "none" => Bytes::new(),
        "broken" => Bytes::from_static(b"\xff"),
        policy => encode(&identity::policy::parse(policy).expect("a policy")),
    };
    Metadata::from([(KEY_POLICY.to_owned(), policy)])
}

/// A collection of the first two organisations.
fn pair(change: impl FnOnce(&mut StaticCollectionConfig)) -> ContractDefinition {
    let members = identity::policy::parse("OR('Org1MSP.member', 'Org2MSP.member')").expect("a policy");
    let mut collection = StaticCollectionConfig {
        name: PAIR.to_owned(),
        member_orgs_policy: Some(CollectionPolicyConfig { payload: Some(Members::SignaturePolicy(members)) }),
        maximum_peer_count: 2,
        ..StaticCollectionConfig::default()
    };
    change(&mut collection);
    let any = identity::policy::parse("OR('Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')").expect("a policy");
    let mut definition = ContractDefinition::first("1.0", &identity::policy::of_signature(any));
    let configured = CollectionConfig { payload: Some(Configured::StaticCollectionConfig(collection)) };
    definition.collections.config.push(configured);
    definition
}

struct TestNetwork {
    consortium: Consortium,
    root: Directory,
    orderer: Arc<Orderer>,
    definition: ContractDefinition,
    peers: Vec<Arc<Peer>>,
    members: Vec<Arc<MemberPeers>>,
}

fn org(index: usize) -> MspId {
    MspId::new(format!("Org{}MSP", index + 1))
}

impl TestNetwork {
    async fn start(definition: ContractDefinition) -> TestNetwork {
        let root = Directory::open("root").await.expect("the simulated disk works");
        let consortium = Consortium::create(ConsortiumConfig::seeded(3, EndorsementRule::Any));
        let orderer = orderer(&consortium, &root).await;
        let mut network = TestNetwork { consortium, root, orderer, definition, peers: Vec::new(), members: Vec::new() };
        for index in 0..3 {
            let members = Arc::new(MemberPeers::default());
            let peer = network.open(index, members.clone()).await;
            network.peers.push(peer);
            network.members.push(members);
        }
        network
    }

    async fn open(&self, index: usize, members: Arc<MemberPeers>) -> Arc<Peer> {
        let tables = directory(&self.root, &format!("tables{index}")).await;
        let engine = ModelEngine::open(tables).await.expect("the engine opens");
        let mut registry = ContractRegistry::empty();
        registry.register(VAULT, Arc::new(Vault)).expect("the name is free");
        let definitions = [(VAULT.to_owned(), self.definition.clone())].into();
        let options = peer_options(&self.consortium, &self.root, index, engine).await;
        let peer = Peer::open(PeerSetup { members, registry, definitions, ..options }).await.expect("the peer opens");
        peer.join(&self.consortium.genesis).await.expect("the peer joins");
        peer
    }

    /// Lets a peer know the peer of another organisation.
    fn introduce(&self, peer: usize, other: usize) {
        let member = LocalMember::new(org(peer), org(other), std::slice::from_ref(&self.peers[other]));
        self.members[peer].add(Arc::new(member));
    }

    fn introduce_all(&self) {
        for peer in 0..3 {
            (0..3).filter(|other| *other != peer).for_each(|other| self.introduce(peer, other));
        }
    }

    fn client(&self, organization: usize) -> Client {
        Client { signer: self.consortium.clients[organization].clone() }
    }

    fn channel(&self, peer: usize) -> Arc<Channel> {
        self.peers[peer].channel(CHANNEL).expect("it was joined")
    }

    /// Endorses at one peer, and waits until all peers have committed the transaction.
    async fn call(&self, peer: usize, function: &str, args: &[&str]) -> TxId {
        self.call_at(&[peer], function, args).await
    }

    /// The same, at several peers.
    async fn call_at(&self, peers: &[usize], function: &str, args: &[&str]) -> TxId {
        let client = self.client(peers[0]);
        let peers: Vec<&Arc<Peer>> = peers.iter().map(|peer| &self.peers[*peer]).collect();
        let tx_id = submit(&client, &peers, &self.orderer, VAULT, function, args).await;
        for peer in 0..3 {
            let status = self.channel(peer).wait_committed(&tx_id).await.expect("the channel runs");
            assert_eq!(status.code, Code::VALID);
        }
        tx_id
    }

    /// The answer of one peer to a client of its organisation: the payload, or the message of the error.
    async fn ask(&self, peer: usize, function: &str, args: &[&str]) -> Result<String, String> {
        let proposal = self.client(peer).proposal(VAULT, function, args);
        let answer = self.peers[peer].evaluate(proposal.bytes).await.expect("the peer serves");
        match answer.status {
            200 => Ok(String::from_utf8(answer.payload.to_vec()).expect("tests store text")),
            _ => Err(answer.message),
        }
    }

    /// Commits transactions without private data of the collection, one block each.
    async fn pass_blocks(&self, count: usize) {
        for _ in 0..count {
            self.call(2, "put", &["_implicit_org_Org3MSP", "k", "v"]).await;
        }
    }
}

fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce() -> F + Send + 'static) {
    Simulation::new(5).run(|_| test()).expect("the run succeeds");
}

#[test]
fn members_have_values_and_others_only_their_hashes() {
    run(async || {
        let network = TestNetwork::start(pair(|_| {})).await;
        network.introduce_all();
        network.call(0, "put", &[PAIR, "k", "secret"]).await;
        for member in [0, 1] {
            assert_eq!(network.ask(member, "get", &[PAIR, "k"]).await, Ok("secret".to_owned()), "{member}");
            assert_eq!(network.ask(member, "get", &[PAIR, "other"]).await, Ok(String::new()));
        }
        let refused = network.ask(2, "get", &[PAIR, "k"]).await.expect_err("its organisation is no member");
        assert!(refused.contains("private data matching public hash version is not available"), "{refused}");
        let proposal = network.client(2).proposal(VAULT, "hash", &[PAIR, "k"]);
        let hash = network.peers[2].evaluate(proposal.bytes).await.expect("the peer serves").payload;
        assert_eq!(hash[..], sha256(b"secret")[..]);

        network.call(1, "put", &[PAIR, "l", "another"]).await;
        network.call(0, "delete", &[PAIR, "k"]).await;
        for member in [0, 1] {
            assert_eq!(network.ask(member, "get", &[PAIR, "k"]).await, Ok(String::new()));
            assert_eq!(network.ask(member, "range", &[PAIR]).await, Ok("l=another ".to_owned()));
        }
        let refused = network.ask(0, "range, then put", &[PAIR]).await.expect_err("it must not write");
        assert!(refused.ends_with("Writes are not allowed"), "{refused}");
        let refused = network.ask(0, "get", &["nothing", "k"]).await.expect_err("there is no such collection");
        assert_eq!(refused, "collection ch/vault/nothing could not be found");
    });
}

#[test]
fn values_and_transient_sets_survive_a_restart() {
    run(async || {
        let mut network = TestNetwork::start(pair(|_| {})).await;
        network.introduce_all();
        network.call(0, "put", &[PAIR, "k", "secret"]).await;
        let proposal = network.client(0).proposal(VAULT, "put", &[PAIR, "k", "later"]);
        let response = network.peers[0].process(proposal.bytes.clone()).await.expect("it is endorsed");
        for index in [0, 1] {
            network.peers[index].stop().await.expect("the disk works");
            // Alone: it must not need the others.
            let peer = network.open(index, Arc::default()).await;
            network.peers[index] = peer;
            assert_eq!(network.ask(index, "get", &[PAIR, "k"]).await, Ok("secret".to_owned()));
        }
        let envelope = network.client(0).envelope(&proposal, &[response]);
        crate::order::Broadcast::broadcast(&*network.orderer, CHANNEL, envelope).await.expect("the orderer takes it");
        for index in [0, 1] {
            network.channel(index).wait_committed(&proposal.tx_id).await.expect("the channel runs");
            assert_eq!(network.ask(index, "get", &[PAIR, "k"]).await, Ok("later".to_owned()));
        }
    });
}

#[test]
fn a_peer_pulls_what_nobody_has_sent_it() {
    run(async || {
        let network = TestNetwork::start(pair(|collection| collection.maximum_peer_count = 0)).await;
        network.introduce(1, 0);
        network.call(0, "put", &[PAIR, "k", "secret"]).await;
        assert_eq!(network.ask(1, "get", &[PAIR, "k"]).await, Ok("secret".to_owned()));
    });
}

#[test]
fn missing_values_are_refused_until_they_are_reconciled() {
    run(async || {
        let network = TestNetwork::start(pair(|collection| collection.maximum_peer_count = 0)).await;
        network.call(0, "put", &[PAIR, "k", "old"]).await;
        network.call(0, "put", &[PAIR, "k", "new"]).await;
        network.call(0, "put", &[PAIR, "l", "kept"]).await;
        network.call(0, "put", &[PAIR, "m", "gone"]).await;
        network.call(0, "delete", &[PAIR, "m"]).await;
        let refused = network.ask(1, "get", &[PAIR, "k"]).await.expect_err("it lacks the value");
        assert!(refused.contains("not available"), "{refused}");
        assert_eq!(network.ask(1, "range", &[PAIR]).await, Ok(String::new()));
        network.introduce(1, 0);
        rt::sleep(Duration::from_secs(130)).await;
        assert_eq!(network.ask(1, "get", &[PAIR, "k"]).await, Ok("new".to_owned()));
        assert_eq!(network.ask(1, "range", &[PAIR]).await, Ok("k=new l=kept ".to_owned()));
        assert_eq!(network.ask(1, "get", &[PAIR, "m"]).await, Ok(String::new()));
    });
}

#[test]
fn an_endorsement_needs_the_required_number_of_peers() {
    run(async || {
        let network = TestNetwork::start(pair(|collection| collection.required_peer_count = 1)).await;
        let proposal = network.client(0).proposal(VAULT, "put", &[PAIR, "k", "secret"]);
        let refused = network.peers[0].process(proposal.bytes.clone()).await.expect_err("no other peer is known");
        assert_eq!(refused.kind(), ErrorKind::Retry);
        assert!(refused.to_string().contains("must be held by 1 more peers"), "{refused}");
        network.introduce(0, 2);
        network.peers[0].process(proposal.bytes.clone()).await.expect_err("the third organisation is no member");
        network.introduce(0, 1);
        network.peers[0].process(proposal.bytes.clone()).await.expect("the second one is");
    });
}

#[test]
fn a_purge_leaves_nothing_of_a_key() {
    run(async || {
        let network = TestNetwork::start(pair(|_| {})).await;
        network.introduce_all();
        let first = network.call(0, "put", &[PAIR, "k", "one"]).await;
        network.call(0, "put", &[PAIR, "k", "two"]).await;
        network.call(0, "put", &[PAIR, "l", "kept"]).await;
        network.call(0, "purge", &[PAIR, "k"]).await;
        network.call(0, "put", &[PAIR, "k", "three"]).await;
        rt::sleep(Duration::from_secs(5)).await;
        for member in [0, 1] {
            assert_eq!(network.ask(member, "range", &[PAIR]).await, Ok("k=three l=kept ".to_owned()));
            let channel = network.channel(member);
            let (policies, height) = (channel.policies(), channel.height());
            let block = channel.block_by_tx_id(&first).await.expect("it can be read").expect("it is committed");
            let contract = VAULT.to_owned();
            let location = SetLocation { contract, collection: PAIR.to_owned(), version: Version::new(block, 0) };
            let digest = SetDigest { location: location.clone(), tx_id: first.clone(), hash: [0; 32] };
            let private = EndorsingChannel::private(&*channel);
            let provided = private.provide(&org(1), &*policies, height, &[digest]).await.expect("it answers");
            assert_eq!(provided, [Some(Bytes::new())], "the set has no writes any more");
            let older = private.values().value(VAULT, PAIR, "k", block + 2).await;
            assert!(!matches!(older, Ok(Some(_))), "{older:?}");
        }
    });
}

#[test]
fn expired_data_are_removed() {
    run(async || {
        let network = TestNetwork::start(pair(|collection| collection.block_to_live = 2)).await;
        network.introduce_all();
        let tx_id = network.call(0, "put", &[PAIR, "k", "secret"]).await;
        let block = network.channel(0).block_by_tx_id(&tx_id).await.expect("it can be read").expect("it is committed");
        network.pass_blocks(2).await;
        assert_eq!(network.ask(1, "get", &[PAIR, "k"]).await, Ok("secret".to_owned()));
        network.pass_blocks(1).await;
        assert_eq!(network.ask(1, "get", &[PAIR, "k"]).await, Ok(String::new()));
        rt::sleep(Duration::from_secs(3)).await;
        for member in [0, 1] {
            let channel = network.channel(member);
            let private = EndorsingChannel::private(&*channel);
            let version = Version::new(block, 0);
            let location = SetLocation { contract: VAULT.to_owned(), collection: PAIR.to_owned(), version };
            assert_eq!(private.store().set(&location).await.expect("it answers"), None);
            let value = private.values().value(VAULT, PAIR, "k", channel.height()).await;
            assert_eq!(value.expect("it answers"), None);
        }
    });
}

#[test]
fn sets_reach_members_only_and_lies_change_nothing() {
    run(async || {
        let network = TestNetwork::start(pair(|collection| collection.maximum_peer_count = 0)).await;
        network.introduce(1, 0);
        let proposal = network.client(0).proposal(VAULT, "put", &[PAIR, "k", "secret"]);
        // Somebody claims other contents for the transaction before it is ordered.
        let channel = network.channel(1);
        let private = EndorsingChannel::private(&*channel);
        let (policies, height) = (channel.policies(), channel.height());
        let lie = |writes: &'static [u8], collection: &str| PrivateSet {
            namespace: VAULT.to_owned(),
            collection: collection.to_owned(),
            writes: Bytes::from_static(writes),
        };
        for lies in 0..8_u8 {
            let set = PrivateSet { writes: Bytes::from(vec![lies]), ..lie(b"", PAIR) };
            private.accept(&org(2), &*policies, height, &proposal.tx_id, &[set]).await.expect("it may be true");
        }
        let refused = private.accept(&org(2), &*policies, height, &proposal.tx_id, &[lie(b"ninth", PAIR)]).await;
        assert_eq!(refused.expect_err("enough variants").kind(), ErrorKind::Rejected);
        let stranger = MspId::new("StrangerMSP");
        for (from, tx_id, set) in [
            (&stranger, &proposal.tx_id, lie(b"", PAIR)),
            (&org(0), &TxId::new("no hash"), lie(b"", PAIR)),
            (&org(0), &proposal.tx_id, lie(b"", "nothing")),
            (&org(0), &proposal.tx_id, lie(b"", "_implicit_org_Org1MSP")),
        ] {
            let refused = private.accept(from, &*policies, height, tx_id, &[set]).await;
            assert_eq!(refused.expect_err("it is refused").kind(), ErrorKind::Rejected);
        }

        let client = network.client(0);
        submit_proposal(&client, &[&network.peers[0]], &network.orderer, proposal.clone()).await;
        for peer in 0..3 {
            network.channel(peer).wait_committed(&proposal.tx_id).await.expect("the channel runs");
        }
        assert_eq!(network.ask(1, "get", &[PAIR, "k"]).await, Ok("secret".to_owned()));
        let place = channel.tx_status(&proposal.tx_id).await.expect("it can be read").expect("it is committed");
        let location = SetLocation {
            contract: VAULT.to_owned(),
            collection: PAIR.to_owned(),
            version: Version::new(place.block, 0),
        };
        let digest = SetDigest { location, tx_id: proposal.tx_id.clone(), hash: [0; 32] };
        for (to, is_member) in [(org(0), true), (org(2), false), (stranger, false)] {
            let provided = private.provide(&to, &*policies, channel.height(), std::slice::from_ref(&digest)).await;
            assert_eq!(provided.expect("it answers")[0].is_some(), is_member, "{to}");
        }
    });
}

#[test]
fn only_members_read_and_write_collections_that_say_so() {
    run(async || {
        let closed = pair(|collection| {
            collection.member_only_read = true;
            collection.member_only_write = true;
        });
        let network = TestNetwork::start(closed).await;
        network.introduce_all();
        network.call(0, "put", &[PAIR, "k", "secret"]).await;
        let stranger = network.client(2);
        for (function, args) in
            [("get", &["pair", "k"][..]), ("put", &["pair", "k", "v"]), ("policy", &["pair", "k", "p"])]
        {
            let proposal = stranger.proposal(VAULT, function, args);
            let answer = network.peers[0].evaluate(proposal.bytes).await.expect("the peer serves");
            assert_eq!(answer.status, 500);
            let access = if function == "get" { "read" } else { "write" };
            let expected = format!("tx creator does not have {access} access permission");
            assert!(answer.message.contains(&expected), "{}", answer.message);
        }
    });
}

/// A client's signed request for blocks.
fn seek(client: &Client, channel: &str) -> Bytes {
    let channel_header = ChannelHeader {
        r#type: HeaderType::DeliverSeekInfo as i32,
        channel_id: channel.to_owned(),
        ..ChannelHeader::default()
    };
    let creator = client.signer.serialized().clone();
    let signature_header = SignatureHeader { creator, nonce: Bytes::from_static(b"nonce") };
    let header = Header { channel_header: encode(&channel_header), signature_header: encode(&signature_header) };
    client.seal(encode(&Payload { header: Some(header), data: Bytes::new() }))
}

#[test]
fn a_block_is_shown_with_the_private_data_that_its_reader_may_have() {
    for member_only_read in [false, true] {
        run(async move || {
            let network = TestNetwork::start(pair(|collection| collection.member_only_read = member_only_read)).await;
            network.introduce_all();
            let tx_id = network.call(0, "put", &[PAIR, "k", "secret"]).await;
            let channel = network.channel(1);
            let number = channel.block_by_tx_id(&tx_id).await.expect("it can be read").expect("it is committed");
            let shown = async |request: Bytes| ChannelView::private_data(&*channel, number, &request).await;
            for (organization, has_data) in [(0, true), (1, true), (2, !member_only_read)] {
                let found = shown(seek(&network.client(organization), CHANNEL)).await.expect("a member asks");
                assert_eq!(found.len(), usize::from(has_data), "{organization}");
                if has_data {
                    assert_eq!((found[0].position, &found[0].sets[0].collection[..]), (0, PAIR));
                    let writes = ledger::rwset::private_writes(&found[0].sets[0].writes).expect("it can be read");
                    assert_eq!(writes[0].value.as_deref(), Some(&b"secret"[..]));
                }
            }
            let client = network.client(0);
            let forged = {
                let mut envelope = Envelope::decode(seek(&client, CHANNEL)).expect("it was just made");
                envelope.signature = network.client(1).signer.sign(&envelope.payload);
                encode(&envelope)
            };
            for request in [Bytes::from_static(b"nothing"), seek(&client, "another"), forged] {
                assert_eq!(shown(request).await.expect_err("it is refused").kind(), ErrorKind::Rejected);
            }
            // The peer of another organisation has nothing to show.
            let other = network.channel(2);
            let found = ChannelView::private_data(&*other, number, &seek(&client, CHANNEL)).await;
            assert_eq!(found.expect("it answers"), []);
        });
    }
}

#[test]
fn a_new_member_gets_the_data_from_before() {
    run(async || {
        let mut network = TestNetwork::start(pair(|_| {})).await;
        network.introduce_all();
        network.call(0, "put", &[PAIR, "k", "secret"]).await;
        let everybody = identity::policy::parse("OR('Org1MSP.member', 'Org2MSP.member', 'Org3MSP.member')");
        let everybody =
            CollectionPolicyConfig { payload: Some(Members::SignaturePolicy(everybody.expect("a policy"))) };
        network.definition = pair(|collection| collection.member_orgs_policy = Some(everybody));
        network.members = vec![Arc::default(), Arc::default(), Arc::default()];
        for index in 0..3 {
            network.peers[index].stop().await.expect("the disk works");
            let peer = network.open(index, network.members[index].clone()).await;
            network.peers[index] = peer;
        }
        network.introduce_all();
        rt::sleep(Duration::from_secs(10)).await;
        assert_eq!(network.ask(2, "get", &[PAIR, "k"]).await, Ok("secret".to_owned()));
    });
}

#[test]
fn a_set_that_an_organisation_withholds_holds_up_a_block_no_longer_than_the_bound() {
    /// Never answers.
    struct Silent(MspId);

    #[async_trait]
    impl MemberPeer for Silent {
        fn organization(&self) -> &MspId {
            &self.0
        }

        async fn push(&self, _: &base::ChannelId, _: &TxId, _: &[PrivateSet]) -> Result<(), private_data::Error> {
            std::future::pending().await
        }

        async fn pull(&self, _: &base::ChannelId, _: &[SetDigest]) -> Result<Vec<Option<Bytes>>, private_data::Error> {
            std::future::pending().await
        }
    }
    run(async || {
        let network = TestNetwork::start(pair(|_| {})).await;
        network.members[1].add(Arc::new(Silent(org(0))));
        network.members[0].add(Arc::new(Silent(org(1))));
        let started = rt::now();
        for number in 0..5 {
            network.call(0, "put", &[PAIR, "k", &format!("value {number}")]).await;
        }
        // Once, not for each block.
        let elapsed = started.elapsed();
        assert!(elapsed >= PULL_MAX && elapsed < 2 * PULL_MAX, "{elapsed:?}");
        assert_eq!(network.ask(0, "get", &[PAIR, "k"]).await, Ok("value 4".to_owned()));
        network.ask(1, "get", &[PAIR, "k"]).await.expect_err("it lacks the value");
    });
}

impl TestNetwork {
    /// The interest that a peer states for a call: `contract` or `contract/collection`, then `reads` if values are read, `keys`
    /// if the contract's own policy is disregarded, and the policies of keys.
    async fn interest(&self, peer: usize, function: &str, args: &[&str]) -> Vec<String> {
        let proposal = self.client(peer).proposal(VAULT, function, args);
        let response = self.peers[peer].process(proposal.bytes).await.expect("it is endorsed");
        let interest = response.interest.expect("every endorsement states one");
        let shown = interest.chaincodes.iter().map(|call| {
            let collections = call.collection_names.iter().map(|collection| format!("/{collection}"));
            let reads = !call.collection_names.is_empty() && !call.no_private_reads;
            let flags = [(reads, " reads"), (call.disregard_namespace_policy, " keys")];
            let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name.to_owned());
            let policies = call
                .key_policies
                .iter()
                .map(|policy| format!(" {}", identity::policy::SignaturePolicy::compile(policy).expect("a policy")));
            std::iter::once(call.name.clone()).chain(collections).chain(flags).chain(policies).collect::<String>()
        });
        shown.collect()
    }
}

/// An endorser states which policies a transaction's endorsements must satisfy, so that a gateway need not be told: those of the
/// contract and of the collections, and those of the keys that are written.
#[test]
fn an_endorsement_states_the_policies_that_its_transaction_needs() {
    run(async || {
        let network = TestNetwork::start(pair(|_| {})).await;
        network.introduce_all();
        for (function, args, expected) in [
            ("set", &["a"][..], vec!["vault"]),
            ("set", &[], vec!["vault"]),
            ("put", &[PAIR, "k", "v"], vec!["vault/pair"]),
            ("get", &[PAIR, "k"], vec!["vault", "vault/pair reads"]),
            ("get, then put", &[PAIR, "k"], vec!["vault/pair reads"]),
            // Everybody has the hashes.
            ("hash", &[PAIR, "k"], vec!["vault"]),
            ("key policy", &["a", "none"], vec!["vault"]),
        ] {
            assert_eq!(network.interest(0, function, args).await, expected, "{function} {args:?}");
        }

        let all = "AND('Org1MSP.peer', 'Org2MSP.peer', 'Org3MSP.peer')";
        let two = "AND('Org1MSP.peer', 'Org2MSP.peer')";
        // Keys that do not exist have no metadata.
        network.call(0, "set", &["a", "b", "c", "broken"]).await;
        network.call(0, "put", &[PAIR, "k", "v"]).await;
        network.call(0, "key policy", &["a", all]).await;
        network.call(0, "key policy", &["b", all]).await;
        network.call(0, "key policy", &["c", two]).await;
        network.call(0, "private key policy", &[PAIR, "k", two]).await;
        network.call(0, "key policy", &["broken", "broken"]).await;
        let (with_all, with_two) = (format!("vault keys {all}"), format!("vault/pair keys {two}"));
        let (mixed, with_both) = (format!("vault {all}"), format!("vault keys {all} {two}"));
        for peer in 0..3 {
            for (function, args, expected) in [
                ("set", &["a"][..], vec![with_all.as_str()]),
                // One policy is listed once, however many keys have it.
                ("set", &["a", "b"], vec![&with_all]),
                ("set", &["a", "c"], vec![&with_both]),
                ("set", &["a", "d"], vec![&mixed]),
                ("set", &["d"], vec!["vault"]),
                ("key policy", &["a", "none"], vec![&with_all]),
            ] {
                assert_eq!(network.interest(peer, function, args).await, expected, "{function} {args:?} at {peer}");
            }
        }
        assert_eq!(network.interest(0, "put", &[PAIR, "k", "v"]).await, [with_two.as_str()]);
        assert_eq!(network.interest(0, "put", &[PAIR, "l", "v"]).await, ["vault/pair"]);
        let reads_too = [format!("vault/pair reads keys {two}")];
        assert_eq!(network.interest(0, "get, then put", &[PAIR, "k"]).await, reads_too);

        // As in Fabric, nothing is endorsed that writes to a key whose policy cannot be decoded.
        let proposal = network.client(0).proposal(VAULT, "set", &["d", "broken"]);
        let refused = network.peers[0].process(proposal.bytes.clone()).await.expect_err("its policy is broken");
        let answer = refused.response().and_then(|response| response.response).expect("the call itself succeeds");
        assert_eq!(answer.status, 500);
        assert!(
            answer.message.starts_with("error in simulation: the endorsement policy of a key"),
            "{}",
            answer.message
        );
        network.peers[0].evaluate(proposal.bytes).await.expect("nothing is written");

        // The policies are those of the ledger, not of the process.
        network.call_at(&[0, 1, 2], "key policy", &["a", "none"]).await;
        assert_eq!(network.interest(1, "set", &["a"]).await, ["vault"]);
    });
}
