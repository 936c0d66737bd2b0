//! The pool's services to its owners, on an RMA provider without faults.

use std::sync::Arc;
use std::time::Duration;

use crate::support::Loopback;
use base::rt::simulation::{Sim, Simulation};
use base::rt::{self, CancellationToken};
use base::{Bytes, BytesMut, Epoch, ErrorKind};
use pool::{
    AddressSpace, AddressSpaceConfig, Donor, Error, LossReason, MemoryNode, MemoryNodeConfig, MemoryNodeUsage,
    ReadGrant, ReadOnlySpace, ReadOnlySpaceConfig,
};
use rma::sim::SimProvider;
use rma::{HostConfig, NodeId, Provider as _, TOKEN_BYTES, Token};

const SECTION: u64 = 4096;

fn token(owner: &str) -> Option<Token> {
    owner.starts_with("owner").then(|| {
        let mut bytes = [0; TOKEN_BYTES];
        bytes[..owner.len()].copy_from_slice(owner.as_bytes());
        Token::new(bytes)
    })
}

async fn donor(provider: &Arc<Loopback>, address: &str, sections: u64) -> Arc<MemoryNode> {
    let options = HostConfig { node: NodeId(1), tokens: Arc::new(token) };
    let host = provider.host(address, options).await.expect("the address is free");
    let budget_bytes = sections * SECTION;
    let options = MemoryNodeConfig { host, budget_bytes, section_bytes: SECTION, stop: CancellationToken::new() };
    MemoryNode::start(options).await.expect("the options are good")
}

fn options(provider: &Arc<Loopback>, owner: &str, epoch: u64, donors: &[&str]) -> AddressSpaceConfig {
    let donor = |address: &&str| Donor {
        address: (*address).to_owned(),
        token: token(owner).unwrap_or_else(|| Token::new([0; TOKEN_BYTES])),
    };
    AddressSpaceConfig {
        owner: owner.to_owned(),
        epoch: Epoch(epoch),
        provider: Arc::clone(provider) as Arc<dyn rma::Provider>,
        donors: donors.iter().map(donor).collect(),
        section_bytes: SECTION,
        budget_bytes: 1 << 20,
    }
}

async fn read_only(provider: &Arc<Loopback>, owner: &str, donors: &[&str]) -> ReadOnlySpace {
    let AddressSpaceConfig { owner, provider, donors, section_bytes, .. } = options(provider, owner, 0, donors);
    let opened = ReadOnlySpace::open(ReadOnlySpaceConfig {
        owner,
        provider,
        donors,
        section_bytes,
        find_donor: Arc::new(|_| None),
    })
    .await;
    opened.expect("the donors are there")
}

async fn open(provider: &Arc<Loopback>, owner: &str, epoch: u64, donors: &[&str]) -> AddressSpace {
    AddressSpace::open(options(provider, owner, epoch, donors)).await.expect("the donors are there")
}

/// Runs in simulated time, so that no result depends on the machine's clock.
fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Arc<Loopback>) -> F) {
    Simulation::new(1).run(|_| test(Arc::new(Loopback::default()))).expect("the test succeeds");
}

#[test]
fn sections_are_read_and_written_through_flat_addresses() {
    run(|provider| async move {
        let _donor = donor(&provider, "a", 4).await;
        let space = open(&provider, "owner", 1, &["a"]).await;
        assert!(space.synchronous() && space.sections().is_empty());
        let (one, other) = (space.grow().await.expect("room"), space.grow().await.expect("room"));
        assert!(one.address >= 4096 && one.address != other.address && one.bytes == SECTION);
        for section in [one, other] {
            let address = section.address + 100;
            let zeros = space.read(address, 8, BytesMut::new()).await.expect("live");
            assert_eq!(zeros[..], [0; 8], "memory is zero when it is given");
            let parts = [Bytes::from(section.id.0.to_le_bytes().to_vec()), Bytes::from_static(b"abcd")];
            space.write(address, &parts).await.expect("live");
        }
        for section in [one, other] {
            let bytes = space.read(section.address + 100, 8, BytesMut::new()).await.expect("live");
            assert_eq!(bytes[..4], section.id.0.to_le_bytes());
            assert_eq!(bytes[4..], *b"abcd");
        }
        let word = other.address;
        assert_eq!(space.compare_swap(word, 0, 7).await, Ok(0));
        assert_eq!(space.fetch_add(word, 2).await, Ok(7));
        assert_eq!(space.compare_swap(word, 7, 1).await, Ok(9));
        let verbs = space.verbs();
        assert_eq!((verbs.reads, verbs.writes, verbs.compare_swaps, verbs.fetch_adds), (4, 2, 2, 1));
    });
}

#[test]
fn ranges_that_no_section_holds_are_refused() {
    run(|provider| async move {
        let _donor = donor(&provider, "a", 4).await;
        let space = open(&provider, "owner", 1, &["a"]).await;
        let (one, _next) = (space.grow().await.expect("room"), space.grow().await.expect("room"));
        let end = one.address + one.bytes;
        for (address, length) in
            [(0, 1), (4095, 1), (end - 1, 2), (end + SECTION, 1), (u64::MAX, 8), (one.address, 1 << 43)]
        {
            let refused = space.read(address, length, BytesMut::new()).await.expect_err("outside");
            assert!(matches!(refused, rma::Error::OutOfBounds { .. }), "{address} {length}: {refused}");
        }
        assert!(space.fetch_add(end - 4, 1).await.is_err());
        assert!(space.read(end - 1, 1, BytesMut::new()).await.is_ok());
        assert_eq!(space.sections().len(), 2, "what the caller did wrong is no loss");
    });
}

#[test]
fn a_released_section_is_gone_and_its_room_is_there_again() {
    run(|provider| async move {
        let node = donor(&provider, "a", 1).await;
        let space = open(&provider, "owner", 1, &["a"]).await;
        let section = space.grow().await.expect("room");
        space.write(section.address, &[Bytes::from_static(b"secret")]).await.expect("live");
        let full = space.grow().await.expect_err("one section is all there is");
        assert_eq!(full.kind(), ErrorKind::Retry);
        assert!(full.to_string().contains("add a memory node"), "{full}");
        space.release(section.id).await.expect("it is ours");
        assert_eq!(
            node.usage(),
            MemoryNodeUsage { budget_bytes: SECTION, owners: 1, connections: 1, ..MemoryNodeUsage::default() }
        );
        assert_eq!(space.read(section.address, 1, BytesMut::new()).await, Err(rma::Error::Closed));
        assert_eq!(space.release(section.id).await, Err(Error::UnknownSection(section.id.0)));
        let next = space.grow().await.expect("room");
        assert_ne!((next.address, next.id), (section.address, section.id));
        let zeros = space.read(next.address, 6, BytesMut::new()).await.expect("live");
        assert_eq!(zeros[..], [0; 6]);
    });
}

#[test]
fn the_next_epoch_adopts_sections_with_their_addresses_and_content() {
    run(|provider| async move {
        let (a, b) = (donor(&provider, "a", 4).await, donor(&provider, "b", 4).await);
        let first = open(&provider, "owner", 1, &["a", "b"]).await;
        let mut sections = Vec::new();
        for number in 0..4u8 {
            let section = first.grow().await.expect("room");
            first.write(section.address + 8, &[Bytes::from(vec![number; 4])]).await.expect("live");
            sections.push(section);
        }
        let lent = first.grant_read(sections[0].id, 5).await.expect("ours");
        let reader = read_only(&provider, "owner", &["a", "b"]).await;
        reader.enter(&lent).expect("it fits");
        assert!(reader.read(sections[0].address, 1, BytesMut::new()).await.is_ok());
        first.release(sections[3].id).await.expect("ours");
        first.leave();
        drop(first);
        let next = AddressSpace::adopt(options(&provider, "owner", 2, &["a", "b"])).await.expect("it is newer");
        assert_eq!(next.sections(), sections[..3]);
        let mut adopted = next.take_adopted();
        adopted.sort_by_key(|section| section.id);
        assert_eq!((adopted.as_slice(), next.take_adopted().len()), (&sections[..3], 0));
        for (number, section) in (0..).zip(&sections[..3]) {
            let bytes = next.read(section.address + 8, 4, BytesMut::new()).await.expect("live");
            assert_eq!(bytes[..], [number; 4]);
            assert!(next.is_settled(section.id));
        }
        assert!(reader.read(sections[0].address, 1, BytesMut::new()).await.is_err(), "its grant ended with epoch 1");
        let grown = next.grow().await.expect("room");
        assert!(grown.id > sections[2].id, "its address was never given before");
        // A process that adopts nothing gets nothing, and nothing is left.
        let last = open(&provider, "owner", 3, &["a", "b"]).await;
        assert!(last.sections().is_empty());
        assert_eq!((a.usage().sections, b.usage().sections), (0, 0));
    });
}

#[test]
fn a_fenced_holder_changes_no_section_that_was_adopted() {
    run(|provider| async move {
        let _donor = donor(&provider, "a", 4).await;
        let old = open(&provider, "owner", 1, &["a"]).await;
        let section = old.grow().await.expect("room");
        let new = AddressSpace::adopt(options(&provider, "owner", 2, &["a"])).await.expect("it is newer");
        assert_eq!(new.sections(), [section]);
        assert!(old.write(section.address, &[Bytes::from_static(b"late")]).await.is_err());
        let bytes = new.read(section.address, 4, BytesMut::new()).await.expect("live");
        assert_eq!(bytes[..], [0; 4]);
        let error = old.grow().await.expect_err("it is fenced");
        assert_eq!(error.kind(), ErrorKind::Fenced);
    });
}

#[test]
fn what_the_budget_does_not_allow_is_not_adopted() {
    run(|provider| async move {
        let node = donor(&provider, "a", 8).await;
        let old = open(&provider, "owner", 1, &["a"]).await;
        for _ in 0..5 {
            old.grow().await.expect("room");
        }
        let config = AddressSpaceConfig { budget_bytes: 2 * SECTION, ..options(&provider, "owner", 2, &["a"]) };
        let new = AddressSpace::adopt(config).await.expect("it is newer");
        assert_eq!((new.sections().len(), node.usage().sections), (2, 2));
        assert!(matches!(new.grow().await, Err(Error::Exhausted(_))));
    });
}

#[test]
fn growth_stays_within_the_owners_budget() {
    run(|provider| async move {
        let _donor = donor(&provider, "a", 8).await;
        let space = open(&provider, "owner", 1, &["a"]).await;
        space.set_budget(2 * SECTION);
        let first = space.grow().await.expect("room");
        space.grow().await.expect("room");
        let full = space.grow().await.expect_err("the budget is used up");
        assert!(matches!(&full, Error::Exhausted(why) if why.contains("raise the budget")), "{full}");
        space.release(first.id).await.expect("ours");
        space.grow().await.expect("room again");
        space.set_budget(3 * SECTION);
        space.grow().await.expect("more room");
        assert_eq!(space.sections().len(), 3);
    });
}

#[test]
fn sections_come_from_the_donor_with_most_room() {
    run(|provider| async move {
        let (small, large) = (donor(&provider, "small", 2).await, donor(&provider, "large", 5).await);
        let space = open(&provider, "owner", 1, &["small", "large"]).await;
        for _ in 0..3 {
            space.grow().await.expect("room");
        }
        assert_eq!((small.usage().sections, large.usage().sections), (0, 3));
        // Another owner takes the memory that the first still believes to be free.
        let other = open(&provider, "owner2", 1, &["small"]).await;
        other.grow().await.expect("room");
        other.grow().await.expect("room");
        rt::sleep(Duration::from_secs(2)).await;
        space.grow().await.expect("room");
        space.grow().await.expect("room");
        assert_eq!(large.usage().sections, 5);
        assert_eq!(space.grow().await.expect_err("all are full").kind(), ErrorKind::Retry);
    });
}

#[test]
fn a_newer_epoch_fences_the_older_holder() {
    run(|provider| async move {
        let nodes = [donor(&provider, "a", 2).await, donor(&provider, "b", 2).await];
        let old = open(&provider, "owner", 1, &["a", "b"]).await;
        let held = [old.grow().await.expect("room"), old.grow().await.expect("room")];
        let new = open(&provider, "owner", 2, &["a", "b"]).await;
        assert!(nodes.iter().all(|node| node.usage().granted_bytes == 0), "the fence took everything back");
        for section in held {
            assert!(old.write(section.address, &[Bytes::from_static(b"late")]).await.is_err());
        }
        let mut lost = Vec::new();
        while lost.len() < 2 {
            let loss = old.lost().await;
            lost.extend(loss.sections);
        }
        assert_eq!(lost, [held[0].id, held[1].id]);
        rt::sleep(Duration::from_secs(10)).await;
        assert!(old.is_fenced() && !new.is_fenced());
        let fenced = old.grow().await.expect_err("fenced");
        assert_eq!(fenced, Error::Fenced { owner: "owner".to_owned(), ours: Epoch(1), newest: Epoch(2) });
        let late = AddressSpace::open(options(&provider, "owner", 1, &["a", "b"])).await.expect_err("an older epoch");
        assert_eq!(late.kind(), ErrorKind::Fenced);
        let twin = AddressSpace::open(options(&provider, "owner", 2, &["a", "b"])).await.expect_err("the same epoch");
        assert_eq!(twin.kind(), ErrorKind::Fenced);
        new.grow().await.expect("the new owner continues");
    });
}

#[test]
fn owners_see_their_own_sections_alone() {
    run(|provider| async move {
        let node = donor(&provider, "a", 4).await;
        let (one, other) = (open(&provider, "owner1", 5, &["a"]).await, open(&provider, "owner2", 1, &["a"]).await);
        let ours = one.grow().await.expect("room");
        let theirs = other.grow().await.expect("room");
        one.write(ours.address, &[Bytes::from_static(b"ours")]).await.expect("live");
        let zeros = other.read(theirs.address, 4, BytesMut::new()).await.expect("live");
        assert_eq!(zeros[..], [0; 4]);
        // The fence of one owner does not affect the other.
        let _newer = open(&provider, "owner2", 9, &["a"]).await;
        one.write(ours.address, &[Bytes::from_static(b"ours")]).await.expect("still live");
        assert_eq!((node.usage().owners, node.usage().sections), (2, 1));
    });
}

#[test]
fn a_lost_donor_is_reported_once_and_grown_from_again_when_it_is_back() {
    run(|provider| async move {
        let (kept, lost) = (donor(&provider, "kept", 1).await, donor(&provider, "lost", 3).await);
        let space = open(&provider, "owner", 1, &["kept", "lost"]).await;
        let mut sections = Vec::new();
        for _ in 0..4 {
            sections.push(space.grow().await.expect("room"));
        }
        lost.stop().await;
        let loss = space.lost().await;
        assert_eq!((loss.sections.len(), loss.reason, loss.donor.as_str()), (3, LossReason::Disconnected, "lost"));
        for section in &sections {
            let outcome = space.read(section.address, 1, BytesMut::new()).await;
            match loss.sections.contains(&section.id) {
                true => assert_eq!(outcome, Err(rma::Error::Closed)),
                false => assert!(outcome.is_ok()),
            }
        }
        assert!(rt::timeout(Duration::from_secs(60), space.lost()).await.is_err(), "each section is reported once");
        assert_eq!(space.grow().await.expect_err("what is left is full").kind(), ErrorKind::Retry);
        let problem = space.donors()[1].problem.clone();
        assert!(problem.is_some_and(|problem| problem.contains("cannot reach lost")));
        let back = donor(&provider, "lost", 3).await;
        rt::sleep(Duration::from_secs(15)).await;
        let again = space.grow().await.expect("it is back, and empty");
        assert!(sections.iter().all(|section| section.id != again.id && section.address != again.address));
        assert_eq!((back.usage().sections, kept.usage().sections), (1, 1));
    });
}

/// The story: a memory node that hung without closing its connections stayed healthy in its owner's view for ever.
#[test]
fn a_donor_that_stops_without_a_word_shows_when_it_is_probed() {
    let scenario = |sim: Sim| async move {
        let provider = SimProvider::new(&sim);
        let hosted = provider.clone();
        sim.node("memory").start(move || {
            let provider = hosted.clone();
            async move {
                let options = HostConfig { node: NodeId(1), tokens: Arc::new(token) };
                let host = provider.host("a", options).await.expect("the address is free");
                let (budget_bytes, section_bytes, stop) = (SECTION, SECTION, CancellationToken::new());
                let options = MemoryNodeConfig { host, budget_bytes, section_bytes, stop };
                let _node = MemoryNode::start(options).await.expect("the options are good");
                std::future::pending::<()>().await;
            }
        });
        let memory = sim.node("memory");
        let watching = sim.node("owner").spawn(async move {
            rt::sleep(Duration::from_millis(100)).await;
            let provider = Arc::new(provider) as Arc<dyn rma::Provider>;
            let options = AddressSpaceConfig { provider, ..options(&Arc::default(), "owner", 1, &["a"]) };
            let space = AddressSpace::open(options).await.expect("the donor is there");
            let probed = async || {
                rt::sleep(Duration::from_secs(2)).await;
                space.probe().await;
                let [status] = &space.donors()[..] else { panic!("there is one donor") };
                status.clone()
            };
            assert!(probed().await.answers);
            memory.pause();
            let status = probed().await;
            assert!(status.connected && !status.answers, "{status:?}");
            assert!(status.problem.as_ref().is_some_and(|problem| problem.contains("answers nothing")), "{status:?}");
            memory.resume();
            let status = probed().await;
            assert!(status.answers && status.problem.is_none(), "{status:?}");
        });
        watching.await.expect("it does not crash");
    };
    Simulation::new(1).run(scenario).expect("it holds");
}

#[test]
fn a_donor_that_is_not_there_at_first_joins_later() {
    run(|provider| async move {
        let space = open(&provider, "owner", 1, &["late"]).await;
        let nobody = space.grow().await.expect_err("nobody is there");
        assert!(matches!(&nobody, Error::NoDonor(donors) if donors.contains("late")), "{nobody}");
        let _late = donor(&provider, "late", 1).await;
        rt::sleep(Duration::from_secs(15)).await;
        space.grow().await.expect("it is there");
    });
}

#[test]
fn a_closed_space_has_given_everything_back() {
    run(|provider| async move {
        let node = donor(&provider, "a", 4).await;
        let space = open(&provider, "owner", 1, &["a"]).await;
        let section = space.grow().await.expect("room");
        space.grow().await.expect("room");
        space.close().await;
        assert_eq!(node.usage().sections, 0);
        assert_eq!(space.read(section.address, 1, BytesMut::new()).await, Err(rma::Error::Closed));
        assert_eq!(space.grow().await, Err(Error::Closed));
    });
}

#[test]
fn an_abandoned_owner_keeps_its_sections_until_another_needs_the_room() {
    run(|provider| async move {
        let node = donor(&provider, "a", 2).await;
        let gone = open(&provider, "owner1", 1, &["a"]).await;
        gone.grow().await.expect("room");
        gone.grow().await.expect("room");
        drop(gone);
        let needy = open(&provider, "owner2", 1, &["a"]).await;
        assert!(needy.grow().await.is_err(), "it may come back");
        rt::sleep(pool::node::ABANDONED_AFTER * 2).await;
        assert_eq!(node.usage().sections, 2, "nobody has needed it");
        needy.grow().await.expect("now it is needed");
        assert_eq!(node.usage().sections, 2, "no more is taken than is needed");
    });
}

#[test]
fn bad_configurations_are_refused_with_what_to_do() {
    run(|provider| async move {
        let options_of = |section_bytes, budget_bytes| {
            let provider = Arc::clone(&provider);
            async move {
                let options = HostConfig { node: NodeId(1), tokens: Arc::new(token) };
                let host = provider.host("refused", options).await.expect("free");
                MemoryNodeConfig { host, budget_bytes, section_bytes, stop: CancellationToken::new() }
            }
        };
        for (section_bytes, budget_bytes, advice) in [
            (SECTION, SECTION - 1, "raise it"),
            (SECTION + 1, 1 << 20, "power of two"),
            (1024, 1 << 20, "power of two"),
        ] {
            let refused = MemoryNode::start(options_of(section_bytes, budget_bytes).await).await.err().expect("bad");
            assert_eq!(refused.kind(), ErrorKind::Rejected);
            assert!(refused.to_string().contains(advice), "{refused}");
        }
        let _node = donor(&provider, "a", 1).await;
        let good = options(&provider, "owner", 1, &["a"]);
        for (bad, advice) in [
            (AddressSpaceConfig { budget_bytes: SECTION - 1, ..good.clone() }, "raise it"),
            (AddressSpaceConfig { section_bytes: 2 * SECTION, ..good.clone() }, "configure the same section_bytes"),
            (AddressSpaceConfig { donors: Vec::new(), ..good.clone() }, "name 1 to"),
            (AddressSpaceConfig { owner: String::new(), ..good.clone() }, "name"),
            (options(&provider, "stranger", 1, &["a"]), "register this owner"),
            (options(&provider, "owner", 1, &["a", "a"]), "twice"),
        ] {
            let refused = AddressSpace::open(bad).await.expect_err("bad");
            assert_eq!(refused.kind(), ErrorKind::Rejected, "{refused}");
            assert!(refused.to_string().contains(advice), "{refused}");
        }
    });
}

#[test]
fn a_reader_reads_what_is_shared_with_it_until_that_is_revoked_or_given_back() {
    run(|provider| async move {
        let _donor = donor(&provider, "a", 4).await;
        let space = open(&provider, "owner", 1, &["a"]).await;
        let lent = |owner: &str| ReadOnlySpaceConfig {
            owner: owner.to_owned(),
            provider: Arc::clone(&provider) as Arc<dyn rma::Provider>,
            donors: options(&provider, owner, 1, &["a"]).donors,
            section_bytes: SECTION,
            find_donor: Arc::new(|_| None),
        };
        let readers = [ReadOnlySpace::open(lent("owner")).await, ReadOnlySpace::open(lent("owner")).await];
        let readers = readers.map(|reader| reader.expect("the donor is there"));
        let (one, other) = (space.grow().await.expect("room"), space.grow().await.expect("room"));
        for section in [one, other] {
            space.write(section.address + 8, &[Bytes::from_static(b"a record")]).await.expect("live");
            for (number, reader) in readers.iter().enumerate() {
                let read = reader.read(section.address + 8, 8, BytesMut::new()).await;
                assert_eq!(read, Err(rma::Error::Closed), "it was not shared yet");
                let shared = space.grant_read(section.id, number as u64).await.expect("it is live");
                let again = space.grant_read(section.id, number as u64).await.expect("it is live");
                assert_eq!(shared.encode(), again.encode(), "a reader has one capability a section");
                let shared = ReadGrant::decode(section, &shared.encode()).expect("it is one");
                reader.enter(&shared).expect("its donor is known");
                let read = reader.read(section.address + 8, 8, BytesMut::new()).await.expect("it is shared");
                assert_eq!(read[..], *b"a record");
                assert!(reader.read(section.address + SECTION - 4, 8, BytesMut::new()).await.is_err());
            }
        }
        space.revoke_reads(0).await.expect("the donor confirms");
        assert!(readers[0].read(one.address + 8, 8, BytesMut::new()).await.is_err(), "it was revoked");
        assert!(readers[1].read(one.address + 8, 8, BytesMut::new()).await.is_ok(), "of the other reader nothing was");
        space.release(one.id).await.expect("the donor confirms");
        assert!(readers[1].read(one.address + 8, 8, BytesMut::new()).await.is_err(), "it was given back");
        assert!(space.grant_read(one.id, 1).await.is_err());
        let _newer = open(&provider, "owner", 2, &["a"]).await;
        assert!(readers[1].read(other.address + 8, 8, BytesMut::new()).await.is_err(), "it is a newer owner's");
        assert!(ReadOnlySpace::open(lent("")).await.is_err());
    });
}

/// A message about read grants that is lost ends the connection: the owner gets an error, and may ask again. The simulations lose
/// no such message.
#[test]
fn a_lost_read_grant_or_revocation_is_an_error() {
    let points = [
        "pool.read_grant.answer_lost",
        "pool.read_grant.lost",
        "pool.read_revoke.answer_lost",
        "pool.read_revoke.lost",
    ];
    for point in points {
        let run = Simulation::new(1).run(|sim| async move {
            let provider = Arc::new(Loopback::default());
            let _donor = donor(&provider, "a", 4).await;
            let space = open(&provider, "owner", 1, &["a"]).await;
            let reader = ReadOnlySpace::open(ReadOnlySpaceConfig {
                owner: "owner".to_owned(),
                provider: Arc::clone(&provider) as Arc<dyn rma::Provider>,
                donors: options(&provider, "owner", 1, &["a"]).donors,
                section_bytes: SECTION,
                find_donor: Arc::new(|_| None),
            });
            let reader = reader.await.expect("the donor is there");
            let (one, other) = (space.grow().await.expect("room"), space.grow().await.expect("room"));
            let granted = space.grant_read(one.id, 0).await.expect("it is live");
            reader.enter(&granted).expect("its donor is known");
            reader.read(one.address, 8, BytesMut::new()).await.expect("it is shared");
            sim.inject_next(point, 1);
            let outcome = match point.starts_with("pool.read_grant") {
                true => space.grant_read(other.id, 0).await.map(drop),
                false => space.revoke_reads(0).await,
            };
            assert!(outcome.is_err(), "{point}");
            assert_eq!(sim.fault_point(point).injected, 1, "{point}");
        });
        run.expect("the test succeeds");
    }
}

#[test]
fn a_donor_joins_an_open_space_gives_sections_to_it_and_leaves() {
    run(|provider| async move {
        let (a, b) = (donor(&provider, "a", 1).await, donor(&provider, "b", 4).await);
        // What an earlier epoch left there is not adopted late.
        open(&provider, "owner", 1, &["b"]).await.grow().await.expect("room");
        let space = open(&provider, "owner", 2, &["a"]).await;
        let reader = ReadOnlySpace::open(ReadOnlySpaceConfig {
            owner: "owner".to_owned(),
            provider: Arc::clone(&provider) as Arc<dyn rma::Provider>,
            donors: options(&provider, "owner", 1, &["a"]).donors,
            section_bytes: SECTION,
            find_donor: Arc::new({
                let donors = options(&provider, "owner", 1, &["b"]).donors;
                move |address| donors.iter().find(|donor| donor.address == address).cloned()
            }),
        });
        let reader = reader.await.expect("the donor is there");
        let first = space.grow().await.expect("room");
        let [joining] = &options(&provider, "owner", 1, &["b"]).donors[..] else { panic!("one donor") };
        let stranger = Donor { token: Token::new([0; TOKEN_BYTES]), ..joining.clone() };
        assert_eq!(space.add_donor(stranger).await.expect_err("it refuses").kind(), ErrorKind::Rejected);
        assert_eq!(space.donors().len(), 1);

        space.add_donor(joining.clone()).await.expect("it is there");
        assert!(matches!(space.add_donor(joining.clone()).await, Err(Error::Invalid(_))), "it has joined");
        assert_eq!((space.donors().len(), b.usage().sections), (2, 0));
        assert!(space.grow().await.is_err(), "it is not in use yet");
        assert!(space.set_vacated("b", false));
        let second = space.grow().await.expect("room");
        assert_eq!(space.donor_of(second.id), Some("b"));
        let lent = space.grant_read(second.id, 5).await.expect("it is ours");
        reader.enter(&lent).expect("its donor is found");
        rt::sleep(Duration::from_secs(1)).await;
        assert!(reader.read(second.address, 1, BytesMut::new()).await.is_ok());

        let error = space.remove_donor("b").expect_err("it is in use");
        assert!(error.to_string().contains("vacate it first"), "{error}");
        space.set_vacated("b", true);
        assert!(space.remove_donor("b").is_err(), "it has a section");
        space.release(second.id).await.expect("ours");
        space.remove_donor("b").expect("nothing is there");
        rt::sleep(Duration::from_secs(1)).await;
        assert_eq!((space.donors().len(), space.sections()), (1, vec![first]));
        space.add_donor(joining.clone()).await.expect("it may come again");
        assert_eq!(space.donors().len(), 2);
        drop(a);
    });
}

/// The story: the next epoch found the incomplete copy first, and returned the complete section under the same number.
#[test]
fn a_section_whose_owner_died_while_it_was_copied_is_adopted_where_it_was() {
    for is_complete in [false, true] {
        run(move |provider| async move {
            let (_a, _b) = (donor(&provider, "a", 4).await, donor(&provider, "b", 4).await);
            let first = open(&provider, "owner", 1, &["a", "b"]).await;
            let unused = first.grow().await.expect("room");
            first.release(unused.id).await.expect("ours");
            first.set_vacated("b", true);
            let section = first.grow().await.expect("room");
            let head = Bytes::from_static(b"the head");
            first.write(section.address, &[head.clone(), Bytes::from(vec![7; 100])]).await.expect("live");
            first.set_vacated("b", false);
            let migration = first.migrate(section.id, 8).await.expect("there is room");
            while migration.copy_some(SECTION).await.expect("both are there") > 0 {}
            if is_complete {
                migration.complete(head.clone()).await.expect("both are there");
                migration.finish().expect("it is live").erase_head().await.expect("it is there");
            } else {
                // Nobody returns the copy.
                std::mem::forget(migration);
            }
            first.leave();
            drop(first);
            let next = AddressSpace::adopt_headed(options(&provider, "owner", 2, &["b", "a"])).await;
            let next = next.expect("it is newer");
            assert_eq!(next.sections(), [section]);
            assert_eq!(next.donor_of(section.id), Some(if is_complete { "b" } else { "a" }));
            let bytes = next.read(section.address, 108, BytesMut::new()).await.expect("live");
            assert!(bytes.starts_with(&head) && bytes[8..].iter().all(|byte| *byte == 7));
        });
    }
}
