//! Tests of the `shaped` wrapper: it is exactly as slow as configured, and otherwise behaves like the inner provider.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::simulation::{Sim, Simulation};
use base::{Bytes, BytesMut, rt};
use rma::conformance::{self, Fixture, FixtureFeatures};
use rma::shaped::{ShapedProvider, ShapingConfig};
use rma::shm::ShmProvider;
use rma::sim::{SimProvider, WEAKEST};
use rma::{
    Capability, Credential, Endpoint, Error, Host, HostConfig, IncomingEvent, NodeId, Provider, ProviderProfile,
    Rights, Token,
};

const TOKEN: Token = Token::new([7; 32]);
const US: Duration = Duration::from_micros(1);
/// The time that polling tasks takes in a simulation.
const SLACK: Duration = Duration::from_micros(200);

struct Setup {
    provider: Arc<dyn Provider>,
    host: Arc<dyn Host>,
    address: String,
    rounds: usize,
}

impl Setup {
    async fn new(provider: ShapedProvider, address: &str, rounds: usize) -> Setup {
        let tokens = Arc::new(|name: &str| ["owner", "another"].contains(&name).then_some(TOKEN));
        let host = provider.host(address, HostConfig { node: NodeId(9), tokens }).await.expect("the address is free");
        Setup { provider: Arc::new(provider), address: host.address(), host, rounds }
    }

    /// Over the `sim` provider, whose verbs take no time themselves.
    async fn simulated(sim: &Sim, shape: ShapingConfig) -> Setup {
        let inner = SimProvider::new(sim).with_profile(ProviderProfile { synchronous: true, ..WEAKEST });
        Setup::new(ShapedProvider::new(Arc::new(inner), shape), "donor", 50).await
    }

    async fn endpoints(&self) -> (Endpoint, Endpoint, Capability) {
        let region = self.host.register("test", 4 << 20).await.expect("there is memory");
        let capability = self.host.grant(region, Rights::ALL, "owner").expect("the region is there");
        let endpoint = self.connect(&self.credential()).await.expect("the host is there");
        (endpoint, self.host.accept().await.expect("somebody has connected"), capability)
    }
}

#[async_trait]
impl Fixture for Setup {
    fn host(&self) -> Arc<dyn Host> {
        Arc::clone(&self.host)
    }

    fn credential(&self) -> Credential {
        Credential { name: "owner".to_owned(), token: TOKEN }
    }

    fn another_credential(&self) -> Credential {
        Credential { name: "another".to_owned(), token: TOKEN }
    }

    async fn connect(&self, credential: &Credential) -> Result<Endpoint, Error> {
        self.provider.connect(&self.address, credential).await
    }

    fn features(&self) -> FixtureFeatures {
        FixtureFeatures { rounds: self.rounds, patience: Duration::from_secs(20), ..FixtureFeatures::default() }
    }
}

#[test]
fn latencies_overlap_and_links_carry_one_verb_behind_the_other() {
    let run = Simulation::new(1).run(|sim| async move {
        let latency = 1000 * US;
        let shape = ShapingConfig { latency, bytes_per_second: 1_000_000_000 };
        let setup = Setup::simulated(&sim, shape).await;
        let (endpoint, _accepted, capability) = setup.endpoints().await;
        let begun = rt::now();
        endpoint.fetch_add(&capability, 0, 1).await.expect("it is allowed");
        assert!(begun.elapsed() >= latency && begun.elapsed() < latency + SLACK, "{:?}", begun.elapsed());

        let begun = rt::now();
        let posted: Vec<_> = (0..100).map(|_| endpoint.fetch_add(&capability, 0, 1)).collect();
        for add in posted {
            add.await.expect("it is allowed");
        }
        assert!(begun.elapsed() >= latency && begun.elapsed() < latency + 2 * SLACK, "{:?}", begun.elapsed());

        // Four times a mebibyte at a gigabyte a second in one direction; the other direction is free meanwhile.
        let begun = rt::now();
        let content = Bytes::from(vec![1; 1 << 20]);
        let writes: Vec<_> = (0..4).map(|_| endpoint.write(&capability, 0, std::slice::from_ref(&content))).collect();
        let read = endpoint.read(&capability, 0, 1 << 20, BytesMut::new());
        read.await.expect("it is allowed");
        let one = Duration::from_nanos(1 << 20);
        assert!(begun.elapsed() >= one + latency && begun.elapsed() < one + latency + SLACK, "{:?}", begun.elapsed());
        for write in writes {
            write.await.expect("it is allowed");
        }
        let four = 4 * one + latency;
        assert!(begun.elapsed() >= four && begun.elapsed() < four + SLACK, "{:?}", begun.elapsed());

        // The read returns the bytes that were there when it was posted.
        let read = endpoint.read(&capability, 8, 8, BytesMut::new());
        drop(endpoint.write(&capability, 8, &[Bytes::from(vec![2; 8])]));
        assert_eq!(read.await.expect("it is allowed")[..], [1; 8]);
        let Err(pending) = endpoint.fetch_add(&capability, 0, 1).now() else { panic!("it is not there yet") };
        pending.await.expect("it is allowed");
    });
    run.expect("the run succeeds");
}

#[test]
fn messages_are_held_back_for_half_a_latency_each() {
    let run = Simulation::new(1).run(|sim| async move {
        let latency = Duration::from_millis(20);
        let setup = Setup::simulated(&sim, ShapingConfig::from_latency(latency)).await;
        let (endpoint, accepted, _) = setup.endpoints().await;
        let begun = rt::now();
        for _ in 0..100 {
            endpoint.send(&[Bytes::from_static(b"request")]).await.expect("the connection holds");
        }
        for _ in 0..100 {
            let request = accepted.receive().await.expect("the connection holds");
            assert_eq!(request, IncomingEvent::Message(Bytes::from_static(b"request")));
        }
        let half = begun.elapsed();
        assert!(half >= latency / 2 && half < latency, "{half:?}");
        accepted.send(&[Bytes::from_static(b"reply")]).await.expect("the connection holds");
        endpoint.receive().await.expect("the connection holds");
        let whole = begun.elapsed();
        assert!(whole >= latency && whole < latency * 3 / 2, "{whole:?}");
    });
    run.expect("the run succeeds");
}

#[test]
fn a_shaped_simulation_conforms() {
    for seed in 0..2 {
        let run = Simulation::new(seed).run(move |sim| async move {
            let shape = ShapingConfig { latency: 8 * US, bytes_per_second: 3_000_000_000 };
            if seed == 0 {
                conformance::run(&Setup::simulated(&sim, shape).await).await.assert_held();
            } else {
                let provider = ShapedProvider::new(Arc::new(SimProvider::new(&sim)), shape);
                conformance::run(&Setup::new(provider, "donor", 50).await).await.assert_held();
            }
        });
        run.expect("the run succeeds");
    }
}

#[test]
fn shaped_shared_memory_conforms() {
    base::rt::production::run(async {
        let shape = ShapingConfig { latency: 2 * US, bytes_per_second: 3_000_000_000 };
        let provider = ShapedProvider::new(Arc::new(ShmProvider::default()), shape);
        conformance::run(&Setup::new(provider, "local:shaped", 300).await).await.assert_held();
    });
}

#[test]
fn no_verb_is_faster_than_its_shape_on_a_real_clock() {
    base::rt::production::run(async {
        for latency in [2 * US, 300 * US, 5000 * US] {
            let provider = ShapedProvider::new(Arc::new(ShmProvider::default()), ShapingConfig::from_latency(latency));
            let setup = Setup::new(provider, "local:shaped-clock", 1).await;
            let (endpoint, _accepted, capability) = setup.endpoints().await;
            for _ in 0..20 {
                let begun = rt::now();
                let mut read = endpoint.read(&capability, 0, 8, BytesMut::new());
                if latency == 2 * US {
                    // The caller spins.
                    loop {
                        match read.now() {
                            Ok(outcome) => break drop(outcome.expect("it is allowed")),
                            Err(again) => read = again,
                        }
                    }
                } else {
                    read.await.expect("it is allowed");
                }
                assert!(begun.elapsed() >= latency);
            }
        }
    });
}
