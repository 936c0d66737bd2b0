//! Tests of the `sim` provider: it keeps its guarantees, and it shows its users everything that the guarantees allow.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::simulation::{Sim, Simulation, SimulationReport};
use base::{Bytes, BytesMut, ErrorKind, rt};
use rma::conformance::{self, Fixture, FixtureFeatures};
use rma::sim::{SimProvider, WEAKEST};
use rma::{
    Capability, Credential, Endpoint, Error, Host, HostConfig, IncomingEvent, NodeId, Provider, ProviderProfile,
    RegionId, Rights, Token, VerbOrdering,
};

const MS: Duration = Duration::from_millis(1);
const REGION_BYTES: u64 = 1 << 16;
const TOKEN: Token = Token::new([7; 32]);

fn options() -> HostConfig {
    HostConfig { node: NodeId(9), tokens: Arc::new(|name| ["owner", "another"].contains(&name).then_some(TOKEN)) }
}

fn credential() -> Credential {
    Credential { name: "owner".to_owned(), token: TOKEN }
}

/// A host with one region on the node `donor`.
async fn donor(sim: &Sim, provider: &SimProvider) -> (Arc<dyn Host>, RegionId, Capability) {
    let provider = provider.clone();
    let task = sim.node("donor").spawn(async move {
        let host = provider.host("donor", options()).await.expect("the address is free");
        let region = host.register("test", REGION_BYTES).await.expect("there is memory");
        let capability = host.grant(region, Rights::ALL, "owner").expect("the region is there");
        (host, region, capability)
    });
    task.await.expect("nobody aborts it")
}

async fn connect(sim: &Sim, provider: &SimProvider, node: &str) -> Endpoint {
    let provider = provider.clone();
    let task = sim.node(node).spawn(async move { provider.connect("donor", &credential()).await });
    task.await.expect("nobody aborts it").expect("the donor is up")
}

async fn word(endpoint: &Endpoint, capability: &Capability, offset: u64) -> u64 {
    let bytes = endpoint.read(capability, offset, 8, BytesMut::new()).await.expect("the region is there");
    u64::from_le_bytes(bytes[..].try_into().expect("eight bytes were read"))
}

fn pattern(byte: u8, length: usize) -> Bytes {
    vec![byte; length].into()
}

/// Runs a test with some seeds, twice each.
fn seeds<F, Fut>(seeds: u64, test: F) -> Vec<SimulationReport<Fut::Output>>
where
    F: Fn(Sim) -> Fut,
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    (0..seeds).map(|seed| Simulation::new(seed).check(&test).expect("the run succeeds")).collect()
}

#[test]
fn verbs_and_messages_pass() {
    seeds(10, |sim| async move {
        let provider = SimProvider::new(&sim);
        let (host, _, capability) = donor(&sim, &provider).await;
        let endpoint = connect(&sim, &provider, "owner").await;
        let accepted = host.accept().await.expect("somebody has connected");
        assert_eq!((accepted.name(), endpoint.node()), ("owner", NodeId(9)));
        endpoint.write(&capability, 3, &[pattern(1, 20), pattern(2, 5)]).await.expect("it is allowed");
        let read = endpoint.read(&capability, 0, 30, BytesMut::from(&b"before"[..])).await.expect("it is allowed");
        assert_eq!(read[..6], b"before"[..]);
        assert_eq!(read[6..], [&[0; 3][..], &[1; 20], &[2; 5], &[0; 2]].concat()[..]);
        assert_eq!(endpoint.fetch_add(&capability, 64, 5).await, Ok(0));
        assert_eq!(endpoint.compare_swap(&capability, 64, 5, 6).await, Ok(5));
        assert_eq!(endpoint.compare_swap(&capability, 64, 5, 7).await, Ok(6));
        assert_eq!(word(&endpoint, &capability, 64).await, 6);
        // A message sent after a write with immediate data arrives behind the immediate data.
        drop(endpoint.write_with_immediate(&capability, 128, &[pattern(3, 16)], 77));
        endpoint.send(&[Bytes::from_static(b"a"), Bytes::from_static(b"b")]).await.expect("the connection holds");
        let (immediate, region, offset, length) = (77, capability.region, 128, 16);
        assert_eq!(accepted.receive().await, Ok(IncomingEvent::Immediate { immediate, region, offset, length }));
        assert_eq!(accepted.receive().await, Ok(IncomingEvent::Message(Bytes::from_static(b"ab"))));
        accepted.send(&[Bytes::from_static(b"back")]).await.expect("the connection holds");
        drop(accepted);
        assert_eq!(endpoint.receive().await, Ok(IncomingEvent::Message(Bytes::from_static(b"back"))));
        assert_eq!(endpoint.receive().await, Err(Error::Closed));
        assert_eq!(endpoint.fetch_add(&capability, 64, 5).await, Err(Error::Closed));
        assert_eq!((provider.counts().in_flight, provider.counts().compare_swaps), (0, 2));
        assert_eq!(provider.registered_bytes("donor"), Some(REGION_BYTES));
    });
}

#[test]
fn strangers_and_addresses_without_a_host_are_refused() {
    seeds(5, |sim| async move {
        let provider = SimProvider::new(&sim);
        let error = provider.connect("donor", &credential()).await.expect_err("nobody listens");
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        let (_host, _, _) = donor(&sim, &provider).await;
        let wrong = Credential { name: "owner".to_owned(), token: Token::new([8; 32]) };
        assert!(matches!(provider.connect("donor", &wrong).await, Err(Error::Rejected(_))));
        let wrong = Credential { name: "other".to_owned(), token: TOKEN };
        assert!(matches!(provider.connect("donor", &wrong).await, Err(Error::Rejected(_))));
        assert!(matches!(provider.host("donor", options()).await.map(drop), Err(Error::System { .. })));
    });
}

#[test]
fn transfers_tear_between_words_and_never_within_one() {
    let torn = seeds(20, |sim| async move {
        let provider = SimProvider::new(&sim);
        let (_host, _, capability) = donor(&sim, &provider).await;
        let (writer, reader) = (connect(&sim, &provider, "owner").await, connect(&sim, &provider, "other").await);
        let mut torn = 0;
        for round in 1..=100u8 {
            let write = writer.write(&capability, 0, &[pattern(round, 64)]);
            let read = reader.read(&capability, 0, 64, BytesMut::new()).await.expect("it is allowed");
            write.await.expect("it is allowed");
            let words: BTreeSet<u64> = read
                .chunks(8)
                .map(|word| {
                    assert!(word.iter().all(|byte| *byte == word[0] && (*byte == round || *byte == round - 1)));
                    u64::from(word[0])
                })
                .collect();
            torn += u64::from(words.len() > 1);
        }
        torn
    });
    assert!(torn.iter().map(|report| report.value).sum::<u64>() > 50);
}

#[test]
fn verbs_of_one_endpoint_take_effect_in_the_order_of_posting() {
    seeds(20, |sim| async move {
        let provider = SimProvider::new(&sim);
        let (_host, _, capability) = donor(&sim, &provider).await;
        let (writer, reader) = (connect(&sim, &provider, "owner").await, connect(&sim, &provider, "other").await);
        let mut last = None;
        for number in 1..=200u64 {
            // First the data, then the word that publishes it.
            drop(writer.write(&capability, 4096, &[pattern(number as u8, 256)]));
            last = Some(writer.write(&capability, 0, &[Bytes::copy_from_slice(&number.to_le_bytes())]));
            if number % 20 == 0 {
                let published = word(&reader, &capability, 0).await;
                let data = reader.read(&capability, 4096, 256, BytesMut::new()).await.expect("it is allowed");
                assert!(data.iter().all(|byte| u64::from(*byte) >= published));
            }
        }
        last.expect("there was a write").await.expect("it is allowed");
        assert_eq!(word(&reader, &capability, 0).await, 200);
    });
}

#[test]
fn memory_of_a_paused_host_answers_and_that_of_a_crashed_one_is_gone() {
    seeds(10, |sim| async move {
        let provider = SimProvider::new(&sim);
        let (_host, _, capability) = donor(&sim, &provider).await;
        let endpoint = connect(&sim, &provider, "owner").await;
        sim.node("donor").pause();
        assert_eq!(endpoint.fetch_add(&capability, 0, 5).await, Ok(0));
        sim.node("donor").resume();
        let in_flight = endpoint.fetch_add(&capability, 0, 5);
        sim.node("donor").crash();
        let outcome = in_flight.await.expect_err("the host has crashed");
        assert_eq!(outcome.kind(), ErrorKind::Ambiguous);
        assert_eq!(endpoint.receive().await, Err(Error::Closed));
        assert_eq!(endpoint.fetch_add(&capability, 0, 5).await, Err(Error::Closed));
        // The next incarnation has the address, and none of the memory.
        let (_again, _, fresh) = donor(&sim, &provider).await;
        let endpoint = connect(&sim, &provider, "owner").await;
        assert_eq!(endpoint.fetch_add(&capability, 0, 5).await, Err(Error::Unknown));
        assert_eq!(endpoint.fetch_add(&fresh, 0, 5).await, Ok(0));
        assert_eq!(provider.counts().in_flight, 0);
    });
}

#[test]
fn what_a_crashed_node_had_posted_lands_or_not() {
    let landed = seeds(60, |sim| async move {
        let provider = SimProvider::new(&sim);
        let (_host, _, capability) = donor(&sim, &provider).await;
        let (doomed, observer) = (connect(&sim, &provider, "owner").await, connect(&sim, &provider, "other").await);
        for _ in 0..4 {
            drop(doomed.fetch_add(&capability, 0, 1));
        }
        rt::sleep(Duration::from_micros(rt::random_below(4))).await;
        sim.node("owner").crash();
        let at_once = word(&observer, &capability, 0).await;
        rt::sleep(Duration::from_secs(10)).await;
        let (at_last, stray) = (word(&observer, &capability, 0).await, provider.counts().stray);
        assert!(at_last >= at_once && at_last <= 4);
        (at_last, at_last > at_once, stray)
    });
    let outcomes: BTreeSet<u64> = landed.iter().map(|report| report.value.0).collect();
    assert_eq!(outcomes.len(), 5, "any number of them lands: {outcomes:?}");
    assert!(landed.iter().filter(|report| report.value.1).count() > 5, "some land after the crash");
    assert!(landed.iter().map(|report| report.value.2).sum::<u64>() > 0);
}

#[test]
fn cuts_delay_verbs_and_long_ones_lose_them() {
    seeds(20, |sim| async move {
        let provider = SimProvider::new(&sim);
        let (_host, _, capability) = donor(&sim, &provider).await;
        let endpoint = connect(&sim, &provider, "owner").await;
        let one_way = rt::random_below(2) == 0;
        if one_way {
            sim.mute("donor", "owner");
        } else {
            sim.cut("owner", "donor");
        }
        let posted = endpoint.fetch_add(&capability, 0, 1);
        let waiting = rt::spawn(posted);
        rt::sleep(Duration::from_micros(rt::random_below(200_000))).await;
        if rt::random_below(2) == 0 {
            sim.heal("owner", "donor");
        }
        let outcome = waiting.await.expect("nobody aborts it");
        let lost = match outcome {
            Ok(before) => {
                assert_eq!(before, 0);
                false
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Ambiguous);
                assert_eq!(endpoint.fetch_add(&capability, 0, 1).await, Err(Error::Closed));
                true
            }
        };
        sim.heal_all();
        rt::sleep(Duration::from_secs(10)).await;
        let value = word(&connect(&sim, &provider, "owner").await, &capability, 0).await;
        assert!(value == 1 || (lost && value == 0));
    });
}

#[test]
fn nothing_lands_after_a_revocation_has_returned() {
    let outcomes = seeds(100, |sim| async move {
        let provider = SimProvider::new(&sim);
        let (host, region, _) = donor(&sim, &provider).await;
        let fresh = host.grant(region, Rights::ALL, "owner").expect("the region is there");
        let stale = host.grant(region, Rights::ALL, "owner").expect("the region is there");
        let (writer, observer) = (connect(&sim, &provider, "owner").await, connect(&sim, &provider, "other").await);
        match rt::random_below(3) {
            0 => sim.inject_next("rma.sim.delay_revocation", 1),
            1 => sim.inject("rma.sim.tear", 0.5),
            _ => sim.inject("rma.sim.delay_verb", 0.05),
        }
        let writes: Vec<_> = (0..20).map(|_| writer.write(&stale, 0, &[pattern(1, 4096)])).collect();
        rt::sleep(Duration::from_micros(rt::random_below(60))).await;
        match rt::random_below(3) {
            0 => sim.node("owner").pause(),
            1 => sim.node("owner").crash(),
            _ => {}
        }
        host.revoke(&stale).await.expect("the grant is there");
        observer.write(&fresh, 0, &[pattern(2, 4096)]).await.expect("the other grant holds");
        sim.node("owner").resume();
        let mut kinds = BTreeSet::new();
        for write in writes {
            kinds.insert(match write.await {
                Ok(()) => "done",
                Err(Error::Revoked) => "revoked",
                Err(Error::Ambiguous(_)) => "ambiguous",
                Err(other) => panic!("{other}"),
            });
        }
        rt::sleep(Duration::from_secs(5)).await;
        let bytes = observer.read(&fresh, 0, 4096, BytesMut::new()).await.expect("the other grant holds");
        assert!(bytes.iter().all(|byte| *byte == 2));
        host.revoke(&stale).await.expect("again does no harm");
        kinds
    });
    let seen: BTreeSet<&str> = outcomes.iter().flat_map(|report| report.value.iter().copied()).collect();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["ambiguous", "done", "revoked"]);
}

#[test]
fn messages_wait_for_a_paused_receiver_and_their_sender_for_room() {
    seeds(5, |sim| async move {
        let provider = SimProvider::new(&sim);
        let (host, _, capability) = donor(&sim, &provider).await;
        let endpoint = connect(&sim, &provider, "owner").await;
        let accepted = host.accept().await.expect("somebody has connected");
        let sent: Vec<_> =
            (0..1000u32).map(|number| endpoint.send(&[Bytes::copy_from_slice(&number.to_le_bytes())])).collect();
        // Messages that are not received do not hinder verbs.
        assert_eq!(endpoint.fetch_add(&capability, 0, 1).await, Ok(0));
        rt::sleep(10 * MS).await;
        let mut taken = 0;
        let mut waiting = Vec::new();
        for send in sent {
            match send.now() {
                Ok(outcome) => {
                    outcome.expect("the connection holds");
                    taken += 1;
                }
                Err(send) => waiting.push(send),
            }
        }
        assert!(taken >= 256 && !waiting.is_empty(), "{taken}");
        for number in 0..1000u32 {
            let message = accepted.receive().await.expect("the connection holds");
            assert_eq!(message, IncomingEvent::Message(Bytes::copy_from_slice(&number.to_le_bytes())));
        }
        for send in waiting {
            send.await.expect("the connection holds");
        }
    });
}

#[test]
fn every_fault_point_strikes_and_loses_no_verb_silently() {
    let mut struck = BTreeSet::new();
    let reports = seeds(20, |sim| async move {
        let points = ["lose_verb", "lose_completion", "delay_verb", "tear"];
        for point in points {
            sim.inject(&format!("rma.sim.{point}"), 0.01);
        }
        sim.inject_next("rma.sim.exhausted", 1);
        sim.inject_next("rma.sim.delay_revocation", 1);
        let provider = SimProvider::new(&sim);
        let host = provider.host("first", options()).await.expect("the address is free");
        assert!(matches!(host.register("test", 4096).await, Err(Error::Exhausted(_))));
        let (donor, _, capability) = donor(&sim, &provider).await;
        let (mut done, mut unknown) = (0, 0);
        let mut endpoint = connect(&sim, &provider, "owner").await;
        for _ in 0..300 {
            drop(endpoint.write(&capability, 4096, &[pattern(1, 64)]));
            match endpoint.fetch_add(&capability, 0, 1).await {
                Ok(_) => done += 1,
                Err(error) => {
                    unknown += u64::from(error.kind() == ErrorKind::Ambiguous);
                    endpoint = connect(&sim, &provider, "owner").await;
                }
            }
        }
        rt::sleep(Duration::from_secs(10)).await;
        let total = connect(&sim, &provider, "observer").await.fetch_add(&capability, 0, 0).await;
        host.revoke(&capability).await.expect_err("it is another host's");
        if let Ok(total) = total {
            assert!(total >= done && total <= done + unknown, "{done} to {}: {total}", done + unknown);
        }
        donor.revoke(&capability).await.expect("the grant is there");
    });
    for report in reports {
        struck.extend(report.fault_points.iter().filter(|(_, point)| point.injected > 0).map(|(name, _)| *name));
    }
    assert_eq!(struck.len(), 6, "{struck:?}");
}

#[test]
fn a_run_leaves_no_fabric_behind() {
    let held = Arc::new(());
    let weak = Arc::downgrade(&held);
    Simulation::new(1)
        .run(|sim| async move {
            let provider = SimProvider::new(&sim);
            let options = HostConfig {
                node: NodeId(1),
                tokens: Arc::new(move |_| {
                    let _held = &held;
                    Some(TOKEN)
                }),
            };
            let inner = provider.clone();
            sim.node("donor").start(move || {
                let (provider, options) = (inner.clone(), options.clone());
                async move {
                    let _host = provider.host("donor", options).await.expect("the address is free");
                    std::future::pending::<()>().await;
                }
            });
            rt::sleep(MS).await;
            let endpoint = connect(&sim, &provider, "owner").await;
            drop(endpoint.send(&[Bytes::from_static(b"on its way")]));
        })
        .expect("the run succeeds");
    assert_eq!(weak.strong_count(), 0);
}

/// The provider under the conformance suite: host and clients on nodes of their own.
struct Simulated {
    sim: Sim,
    provider: SimProvider,
    host: Arc<dyn Host>,
    cuts: bool,
}

impl Simulated {
    async fn new(sim: &Sim, provider: SimProvider, cuts: bool) -> Simulated {
        let (host, region, _) = donor(sim, &provider).await;
        host.deregister(region).await.expect("the region is there");
        Simulated { sim: sim.clone(), provider, host, cuts }
    }
}

#[async_trait]
impl Fixture for Simulated {
    fn host(&self) -> Arc<dyn Host> {
        Arc::clone(&self.host)
    }

    fn credential(&self) -> Credential {
        credential()
    }

    fn another_credential(&self) -> Credential {
        Credential { name: "another".to_owned(), token: TOKEN }
    }

    async fn connect(&self, credential: &Credential) -> Result<Endpoint, Error> {
        self.sim.heal_all();
        let (provider, credential) = (self.provider.clone(), credential.clone());
        let task = self.sim.node("owner").spawn(async move { provider.connect("donor", &credential).await });
        task.await.expect("nobody aborts it")
    }

    async fn sever(&self, _connected: &Endpoint, _accepted: &Endpoint) {
        if !self.cuts {
            self.sim.break_links("owner", "donor");
            return;
        }
        // Healed for the next connection.
        self.sim.cut("owner", "donor");
    }

    fn features(&self) -> FixtureFeatures {
        FixtureFeatures { sever: true, rounds: 100, patience: Duration::from_secs(3600), ..FixtureFeatures::default() }
    }
}

/// Runs the suite on one profile.
fn conforms(seed: u64, profile: ProviderProfile) {
    let run = Simulation::new(seed).run(move |sim| async move {
        let provider = SimProvider::new(&sim).with_profile(profile);
        conformance::run(&Simulated::new(&sim, provider, seed.is_multiple_of(2)).await).await.assert_held();
    });
    run.expect("the run succeeds");
}

#[test]
fn the_weakest_profile_conforms() {
    (0..4).for_each(|seed| conforms(seed, WEAKEST));
}

#[test]
fn other_profiles_conform() {
    conforms(10, ProviderProfile { ordering: VerbOrdering::Words, ..WEAKEST });
    conforms(11, ProviderProfile { synchronous: true, ..WEAKEST });
    conforms(12, ProviderProfile { immediate: false, ..WEAKEST });
}
