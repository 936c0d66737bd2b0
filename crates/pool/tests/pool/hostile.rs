//! Tests with invalid messages: from owners to memory nodes, and from memory nodes to owners.

use std::sync::Arc;
use std::time::Duration;

use wire::VersionRange;
use wire::hello::{HelloAnswer, VersionMismatch};

use crate::support::Loopback;
use base::rt::simulation::Simulation;
use base::rt::{self, CancellationToken};
use base::{Bytes, BytesMut, Epoch, ErrorKind};
use pool::{AddressSpace, AddressSpaceConfig, Donor, Error, MemoryNode, MemoryNodeConfig, PROTOCOL_VERSIONS};
use rma::{
    Capability, Credential, Endpoint, Host, HostConfig, IncomingEvent, NodeId, Provider, Rights, TOKEN_BYTES, Token,
};

const SECTION: u64 = 4096;
const TOKEN: Token = Token::new([5; TOKEN_BYTES]);

fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Arc<Loopback>) -> F) {
    Simulation::new(1).run(|_| test(Arc::new(Loopback::default()))).expect("the test succeeds");
}

async fn host(provider: &Arc<Loopback>) -> Arc<dyn Host> {
    let options = HostConfig { node: NodeId(1), tokens: Arc::new(|_| Some(TOKEN)) };
    provider.host("a", options).await.expect("the address is free")
}

async fn donor(provider: &Arc<Loopback>) -> Arc<MemoryNode> {
    let (host, budget_bytes) = (host(provider).await, 4 * SECTION);
    let options = MemoryNodeConfig { host, budget_bytes, section_bytes: SECTION, stop: CancellationToken::new() };
    MemoryNode::start(options).await.expect("the options are good")
}

async fn connect(provider: &Arc<Loopback>, owner: &str) -> Endpoint {
    let credential = Credential { name: owner.to_owned(), token: TOKEN };
    provider.connect("a", &credential).await.expect("the donor is there")
}

/// A request in the notation of `docs/formats/section-table.md`.
fn message(kind: u8, number: u32, body: &[u64]) -> Bytes {
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(number.to_le_bytes());
    bytes.extend(body.iter().flat_map(|word| word.to_le_bytes()));
    bytes.into()
}

fn hello() -> Bytes {
    hello_of(PROTOCOL_VERSIONS)
}

fn hello_of(versions: VersionRange) -> Bytes {
    message(1, 1, &[u64::from_le_bytes(*b"HDLRPOOL"), u64::from_le_bytes(versions.encode()), SECTION])
}

fn fence(number: u32, epoch: u64, holder: u64) -> Bytes {
    message(2, number, &[epoch, holder, 0])
}

/// The kind of the answer, its number, and the words after it; `None` when the connection has ended.
async fn ask(endpoint: &Endpoint, request: Bytes) -> Option<(u8, u32, Vec<u64>)> {
    endpoint.send(&[request]).await.ok()?;
    hear(endpoint).await
}

async fn hear(endpoint: &Endpoint) -> Option<(u8, u32, Vec<u64>)> {
    let IncomingEvent::Message(bytes) = endpoint.receive().await.ok()? else { return None };
    let words = bytes[8..].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
    let number = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
    Some((bytes[0], number, words.collect()))
}

const REFUSED: u8 = 0xFF;

/// The story: a memory node had 1,024 permits for connections, and a connection took one before it had said anything.
#[test]
fn connections_that_say_nothing_keep_no_owner_out() {
    run(|provider| async move {
        let _node = donor(&provider).await;
        let mut silent = Vec::new();
        for _ in 0..2100 {
            silent.push(connect(&provider, "silent").await);
        }
        let owner = connect(&provider, "owner").await;
        let (kind, ..) = ask(&owner, hello()).await.expect("an answer");
        assert_eq!(kind, 0x81);
        // Each is closed when its time is over, and the permits of one owner's name are limited.
        for endpoint in &silent {
            assert_eq!(hear(endpoint).await, None);
        }
        let mut served = Vec::new();
        for _ in 0..128 {
            served.push(connect(&provider, "greedy").await);
            assert_eq!(ask(&served[served.len() - 1], hello()).await.expect("an answer").0, 0x81);
        }
        let late = connect(&provider, "greedy").await;
        assert_eq!(ask(&late, hello()).await.expect("an answer").0, REFUSED);
        assert_eq!(ask(&connect(&provider, "another").await, hello()).await.expect("an answer").0, 0x81);
    });
}

#[test]
fn a_connection_that_does_not_introduce_itself_gets_nothing() {
    run(|provider| async move {
        let node = donor(&provider).await;
        for first in
            [fence(1, 1, 1), message(3, 1, &[SECTION, 1]), message(5, 1, &[]), message(0x77, 1, &[]), Bytes::new()]
        {
            let endpoint = connect(&provider, "owner").await;
            let (kind, _, words) = ask(&endpoint, first.clone()).await.expect("an answer");
            assert_eq!((kind, words[0]), (REFUSED, 1), "{first:?}");
            assert_eq!(hear(&endpoint).await, None, "the connection has ended");
        }
        let silent = connect(&provider, "owner").await;
        assert_eq!(hear(&silent).await, None, "who says nothing is shown the door after a while");
        assert_eq!(node.usage().connections, 0);
    });
}

#[test]
fn nothing_is_given_before_a_fence() {
    run(|provider| async move {
        let _node = donor(&provider).await;
        for request in [message(3, 2, &[SECTION, 1]), message(4, 2, &[1]), message(5, 2, &[]), message(9, 2, &[1])] {
            let endpoint = connect(&provider, "owner").await;
            assert_eq!(ask(&endpoint, hello()).await.expect("an answer").0, 0x81);
            let (kind, number, words) = ask(&endpoint, request).await.expect("an answer");
            assert_eq!((kind, number, words[0]), (REFUSED, 2, 1));
        }
    });
}

#[test]
fn a_connection_that_was_taken_over_can_do_nothing_more() {
    run(|provider| async move {
        let node = donor(&provider).await;
        let old = connect(&provider, "owner").await;
        ask(&old, hello()).await.expect("an answer");
        assert_eq!(ask(&old, fence(2, 1, 7)).await.expect("an answer").0, 0x82);
        assert_eq!(ask(&old, message(3, 3, &[SECTION, 1])).await.expect("an answer").0, 0x83);
        // The same process, which has lost its first connection.
        let new = connect(&provider, "owner").await;
        ask(&new, hello()).await.expect("an answer");
        assert_eq!(ask(&new, fence(2, 1, 7)).await.expect("an answer").0, 0x82);
        let listed = ask(&new, message(5, 3, &[])).await.expect("an answer");
        assert_eq!((listed.0, listed.2[1], listed.2[3]), (0x85, 1, SECTION));
        assert!(ask(&old, message(3, 4, &[SECTION, 2])).await.is_none(), "it was closed");
        assert_eq!(node.usage().sections, 1);
    });
}

#[test]
fn others_sections_cannot_be_released_nor_seen() {
    run(|provider| async move {
        let node = donor(&provider).await;
        let (one, other) = (connect(&provider, "one").await, connect(&provider, "other").await);
        for endpoint in [&one, &other] {
            ask(endpoint, hello()).await.expect("an answer");
            ask(endpoint, fence(2, 1, 1)).await.expect("an answer");
        }
        let granted = ask(&one, message(3, 3, &[SECTION, 1])).await.expect("an answer");
        let section = granted.2[1];
        let refused = ask(&other, message(4, 3, &[section])).await.expect("an answer");
        assert_eq!((refused.0, refused.2[0]), (REFUSED, 6), "it is unknown to others");
        assert_eq!(ask(&other, message(5, 4, &[])).await.expect("an answer").2[1], 0);
        assert_eq!(node.usage().sections, 1);
    });
}

#[test]
fn sections_of_another_size_are_refused() {
    run(|provider| async move {
        let _node = donor(&provider).await;
        let endpoint = connect(&provider, "owner").await;
        ask(&endpoint, hello()).await.expect("an answer");
        ask(&endpoint, fence(2, 1, 1)).await.expect("an answer");
        for bytes in [0, 1, SECTION - 1, 2 * SECTION, u64::MAX] {
            let refused = ask(&endpoint, message(3, 3, &[bytes, 1])).await.expect("an answer");
            assert_eq!((refused.0, refused.2[0], refused.2[1]), (REFUSED, 3, SECTION), "{bytes}");
        }
    });
}

#[test]
fn other_versions_are_refused_with_the_range_of_the_node() {
    run(|provider| async move {
        let _node = donor(&provider).await;
        let endpoint = connect(&provider, "owner").await;
        endpoint.send(&[hello_of(VersionRange::only(99))]).await.expect("it is connected");
        let Ok(IncomingEvent::Message(answer)) = endpoint.receive().await else { panic!("an answer") };
        assert_eq!((answer[0], &answer[8..]), (0x81, &HelloAnswer::refuse(PROTOCOL_VERSIONS).encode()[..]));
        assert!(endpoint.receive().await.is_err(), "the connection ends");
    });
}

/// A donor that answers by a script: the kinds and bodies of the answers, in order, one per request.
async fn scripted(provider: &Arc<Loopback>, script: Vec<(u8, Vec<u8>)>) {
    let host = host(provider).await;
    rt::spawn(async move {
        while let Ok(endpoint) = host.accept().await {
            for (kind, body) in &script {
                let Ok(IncomingEvent::Message(request)) = endpoint.receive().await else { break };
                let head = [&[*kind, 0, 0, 0], &request[4..8]].concat();
                let _ = endpoint.send(&[head.into(), Bytes::copy_from_slice(body)]).await;
            }
            while endpoint.receive().await.is_ok() {}
        }
    });
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn options(provider: &Arc<Loopback>) -> AddressSpaceConfig {
    AddressSpaceConfig {
        owner: "owner".to_owned(),
        epoch: Epoch(1),
        provider: Arc::clone(provider) as Arc<dyn Provider>,
        donors: vec![Donor { address: "a".to_owned(), token: TOKEN }],
        section_bytes: SECTION,
        budget_bytes: 8 * SECTION,
    }
}

fn welcome() -> (u8, Vec<u8>) {
    let hello = HelloAnswer::to(PROTOCOL_VERSIONS, PROTOCOL_VERSIONS).encode();
    (0x81, [&hello[..], &[1, 0, 0, 0], &words(&[SECTION, 8 * SECTION, 8 * SECTION, 1])].concat())
}

fn capability(rights: Rights) -> Vec<u8> {
    let mut bytes = [0; rma::CAPABILITY_BYTES];
    bytes[10] = rights.bits();
    Capability::decode(&bytes).expect("well-formed").encode().to_vec()
}

fn granted(section: u64, bytes: u64, rights: Rights) -> (u8, Vec<u8>) {
    (0x83, [words(&[8 * SECTION, section, bytes]), capability(rights)].concat())
}

#[test]
fn a_donor_of_another_version_is_named() {
    run(|provider| async move {
        let theirs = VersionRange::only(99);
        scripted(&provider, vec![(0x81, HelloAnswer::refuse(theirs).encode().to_vec())]).await;
        let error = AddressSpace::open(options(&provider)).await.expect_err("another version");
        let mismatch = VersionMismatch { ours: PROTOCOL_VERSIONS, theirs };
        assert_eq!(error, Error::Version { address: "a".to_owned(), mismatch });
        assert!(error.to_string().ends_with("upgrade this side, which is older"), "{error}");
    });
}

#[test]
fn grants_of_something_else_are_not_entered() {
    let (fenced, listed) = ((0x82, words(&[0, 0])), (0x85, words(&[0, 0])));
    for (what, grants) in [
        ("another size", vec![granted(1, 2 * SECTION, Rights::ALL)]),
        ("fewer rights", vec![granted(1, SECTION, Rights::READ)]),
        ("the same section twice", vec![granted(1, SECTION, Rights::ALL), granted(1, SECTION, Rights::ALL)]),
        ("a capability cut short", vec![(0x83, words(&[0, 1, SECTION]))]),
        ("an answer to another question", vec![(0x84, words(&[0]))]),
        ("no message at all", vec![(0x77, Vec::new())]),
    ] {
        let script = [vec![welcome(), fenced.clone(), listed.clone()], grants.clone()].concat();
        run(move |provider| async move {
            scripted(&provider, script).await;
            let space = AddressSpace::open(options(&provider)).await.expect("it says what it should so far");
            for _ in 1..grants.len() {
                space.grow().await.expect("the first is good");
            }
            let error = space.grow().await.expect_err(what);
            assert_eq!(error.kind(), ErrorKind::Retry, "{what}: another donor may be better: {error}");
            rt::sleep(Duration::from_secs(1)).await;
            if grants.len() > 1 {
                assert!(space.sections().is_empty(), "{what}: a donor like this is not trusted with the rest");
            }
        });
    }
}

#[test]
fn a_donor_that_revokes_without_a_word_is_found_out_by_the_first_verb() {
    run(|provider| async move {
        let (fenced, listed) = ((0x82, words(&[0, 0])), (0x85, words(&[0, 0])));
        scripted(&provider, vec![welcome(), fenced, listed, granted(1, SECTION, Rights::ALL)]).await;
        let space = AddressSpace::open(options(&provider)).await.expect("it says what it should");
        let section = space.grow().await.expect("it gives a capability of nothing");
        assert_eq!(space.read(section.address, 8, BytesMut::new()).await, Err(rma::Error::Unknown));
        let loss = space.lost().await;
        assert_eq!((loss.sections, loss.reason), (vec![section.id], pool::LossReason::Revoked));
        assert_eq!(space.read(section.address, 8, BytesMut::new()).await, Err(rma::Error::Closed));
    });
}

#[test]
fn a_donor_that_never_answers_does_not_hold_the_owner_up_for_ever() {
    run(|provider| async move {
        let (fenced, listed) = ((0x82, words(&[0, 0])), (0x85, words(&[0, 0])));
        scripted(&provider, vec![welcome(), fenced, listed]).await;
        let space = AddressSpace::open(options(&provider)).await.expect("it says what it should so far");
        let start = rt::now();
        let error = space.grow().await.expect_err("it has fallen silent");
        assert!(matches!(&error, Error::NoDonor(why) if why.contains("did not answer")), "{error}");
        assert!(start.elapsed() <= pool::space::RESPONSE_TIMEOUT + Duration::from_secs(1));
    });
}
