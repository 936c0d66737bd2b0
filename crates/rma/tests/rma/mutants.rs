//! Deliberately broken providers: the conformance suite must find each of them, in the claims named here.
//!
//! Each broken provider wraps the `sim` provider and changes its calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::simulation::{Sim, Simulation};
use base::{Bytes, BytesMut, rt};
use rma::conformance::{self, ConformanceReport, Fixture, FixtureFeatures};
use rma::sim::SimProvider;
use rma::{
    Capability, Completion, Connection, Credential, Endpoint, Error, Host, HostConfig, IncomingEvent, NodeId, Provider,
    ProviderProfile, RegionId, Rights, Token,
};

const TOKEN: Token = Token::new([7; 32]);
/// The names that may connect.
const NAMES: [&str; 2] = ["owner", "another"];

/// The mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutant {
    /// Nothing: the wrapper itself conforms.
    None,
    /// A revocation only rejects verbs posted later, and does not wait for those in flight.
    RevocationDoesNotFence,
    /// Immediate data do not wait for the bytes.
    ImmediateBeforeBytes,
    /// The offset of immediate data is wrong.
    ImmediateOffsetLost,
    /// A compare-and-swap is a read and a write.
    SwapInTwoSteps,
    /// A fetch-and-add is a read and a write.
    AdditionInTwoSteps,
    /// Writes and reads do not wait for one another.
    Unordered,
    /// A part beyond the first is left out.
    FirstPartOnly,
    /// A read replaces what was in the buffer.
    ReadReplaces,
    /// A misaligned word is rounded down.
    MisalignedIsRounded,
    /// An offset and a length whose sum exceeds 64 bits wrap.
    OffsetWraps,
    /// Rights are not checked.
    RightsIgnored,
    /// A capability is valid on every connection.
    HolderIgnored,
    /// A message of no bytes is not sent.
    EmptyMessageLost,
    /// Two messages change places.
    MessagesSwapped,
    /// A stale capability is reported as unknown.
    RevokedIsUnknown,
    /// Any token is accepted.
    TokenIgnored,
    /// Closing is local and not reported to the other end.
    CloseIsNotTold,
    /// A verb in flight on a closed endpoint is reported as failed.
    AmbiguousIsClosed,
}

const MUTANTS: [(Mutant, &str); 18] = [
    (Mutant::RevocationDoesNotFence, "nothing_lands_after_a_revocation"),
    (Mutant::ImmediateBeforeBytes, "immediate_data_arrive_behind_their_bytes"),
    (Mutant::ImmediateOffsetLost, "immediate_data_arrive_behind_their_bytes"),
    (Mutant::SwapInTwoSteps, "swaps_under_contention_lose_nothing"),
    (Mutant::AdditionInTwoSteps, "additions_under_contention_lose_nothing"),
    (Mutant::Unordered, "verbs_of_one_endpoint_take_effect_in_order"),
    (Mutant::FirstPartOnly, "parts_are_written_one_behind_the_other"),
    (Mutant::ReadReplaces, "reads_append_to_what_is_there"),
    (Mutant::MisalignedIsRounded, "misaligned_atomics_are_refused"),
    (Mutant::OffsetWraps, "ranges_out_of_bounds_are_refused_without_effect"),
    (Mutant::RightsIgnored, "what_a_capability_lacks_is_forbidden"),
    (Mutant::HolderIgnored, "a_capability_of_one_on_the_connection_of_another_is_refused_as_unknown"),
    (Mutant::EmptyMessageLost, "messages_of_no_bytes_and_of_many_arrive"),
    (Mutant::MessagesSwapped, "messages_arrive_in_order_in_both_directions"),
    (Mutant::RevokedIsUnknown, "a_revoked_capability_is_refused_for_every_verb"),
    (Mutant::TokenIgnored, "strangers_are_refused"),
    (Mutant::CloseIsNotTold, "closing_ends_both_sides_and_delivers_what_was_sent"),
    (Mutant::AmbiguousIsClosed, "verbs_in_flight_on_a_closed_endpoint_are_ambiguous"),
];

/// The capabilities that holders have, and those that the host underneath knows.
#[derive(Default)]
struct MutantCore {
    /// For each grant of a region, one per name that has all rights and is never revoked.
    open: BTreeMap<(RegionId, &'static str), Capability>,
    /// All granted capabilities.
    granted: Vec<Capability>,
    /// Grants that are revoked.
    revoked: Vec<Capability>,
}

struct BrokenHost {
    inner: Arc<dyn Host>,
    mutant: Mutant,
    shared: Arc<Mutex<MutantCore>>,
}

struct BrokenConnection {
    inner: Endpoint,
    second: Option<Endpoint>,
    /// The name of the client.
    name: &'static str,
    mutant: Mutant,
    shared: Arc<Mutex<MutantCore>>,
    held_back: Mutex<Option<Bytes>>,
    early: Mutex<Vec<IncomingEvent>>,
}

impl MutantCore {
    fn is_revoked(&self, capability: &Capability) -> bool {
        self.revoked.iter().any(|revoked| revoked.encode() == capability.encode())
    }
}

#[async_trait]
impl Host for BrokenHost {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    async fn register(&self, name: &str, bytes: u64) -> Result<RegionId, Error> {
        let region = self.inner.register(name, bytes).await?;
        // One name suffices, except in the test about names.
        let names = if self.mutant == Mutant::HolderIgnored { &NAMES[..] } else { &NAMES[..1] };
        for name in names {
            let open = self.inner.grant(region, Rights::ALL, name)?;
            self.shared.lock().expect("one thread").open.insert((region, *name), open);
        }
        Ok(region)
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, Error> {
        let granted = self.inner.grant(region, rights, holder)?;
        self.shared.lock().expect("one thread").granted.push(granted);
        Ok(granted)
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), Error> {
        if matches!(self.mutant, Mutant::RevocationDoesNotFence | Mutant::HolderIgnored) {
            self.shared.lock().expect("one thread").revoked.push(*capability);
            return Ok(());
        }
        self.inner.revoke(capability).await
    }

    async fn deregister(&self, region: RegionId) -> Result<(), Error> {
        self.inner.deregister(region).await
    }

    async fn accept(&self) -> Result<Endpoint, Error> {
        let inner = self.inner.accept().await?;
        // The second connection of each pair is accepted too.
        if self.mutant == Mutant::Unordered {
            std::mem::forget(self.inner.accept().await?);
        }
        Ok(broken(inner, None, NAMES[0], self.mutant, &self.shared))
    }

    fn address(&self) -> String {
        self.inner.address()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

fn broken(
    inner: Endpoint,
    second: Option<Endpoint>,
    name: &'static str,
    mutant: Mutant,
    shared: &Arc<Mutex<MutantCore>>,
) -> Endpoint {
    let (held_back, early) = (Mutex::default(), Mutex::default());
    let shared = Arc::clone(shared);
    Endpoint::new(Arc::new(BrokenConnection { inner, second, name, mutant, shared, held_back, early }))
}

impl BrokenConnection {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }

    /// The capability that replaces this one.
    fn taken_for(&self, capability: &Capability) -> Result<Capability, Error> {
        let shared = self.shared.lock().expect("one thread");
        if self.is(Mutant::RightsIgnored)
            && let Some(open) = shared.open.get(&(capability.region, self.name))
        {
            return Ok(*open);
        }
        if shared.is_revoked(capability) {
            return Err(Error::Revoked);
        }
        if self.is(Mutant::HolderIgnored)
            && shared.granted.iter().any(|granted| granted.encode() == capability.encode())
            && let Some(open) = shared.open.get(&(capability.region, self.name))
        {
            return Ok(*open);
        }
        Ok(*capability)
    }

    fn told<T: Send + 'static + Unpin>(&self, completion: Completion<T>) -> Completion<T> {
        let mutant = self.mutant;
        if !matches!(mutant, Mutant::RevokedIsUnknown | Mutant::AmbiguousIsClosed) {
            return completion;
        }
        changed(async move {
            completion.await.map_err(|error| match (mutant, error) {
                (Mutant::RevokedIsUnknown, Error::Revoked) => Error::Unknown,
                (Mutant::AmbiguousIsClosed, Error::Ambiguous(_)) => Error::Closed,
                (_, error) => error,
            })
        })
    }
}

/// The completion of an operation in several steps.
fn changed<T: Send + 'static>(steps: impl Future<Output = Result<T, Error>> + Send + 'static) -> Completion<T> {
    let (completer, completion) = Completion::pending();
    rt::spawn(async move { completer.complete(steps.await) });
    completion
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("a word was read"))
}

impl Connection for BrokenConnection {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn profile(&self) -> ProviderProfile {
        self.inner.profile()
    }

    fn read(&self, capability: &Capability, offset: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        let capability = match self.taken_for(capability) {
            Ok(capability) => capability,
            Err(error) => return Completion::ready(Err(error)),
        };
        let offset = if self.is(Mutant::OffsetWraps) && offset > u64::MAX - 16 { 0 } else { offset };
        let into = if self.is(Mutant::ReadReplaces) { BytesMut::new() } else { into };
        let endpoint = self.second.as_ref().unwrap_or(&self.inner);
        self.told(endpoint.read(&capability, offset, length, into))
    }

    fn write(&self, capability: &Capability, offset: u64, parts: &[Bytes], immediate: Option<u32>) -> Completion<()> {
        let capability = match self.taken_for(capability) {
            Ok(capability) => capability,
            Err(error) => return Completion::ready(Err(error)),
        };
        let offset = if self.is(Mutant::OffsetWraps) && offset > u64::MAX - 16 { 0 } else { offset };
        let parts = if self.is(Mutant::FirstPartOnly) { &parts[..parts.len().min(1)] } else { parts };
        match immediate {
            None => self.told(self.inner.write(&capability, offset, parts)),
            Some(immediate) if self.is(Mutant::ImmediateBeforeBytes) => {
                drop(self.inner.write_with_immediate(&capability, offset, &[], immediate));
                let length: usize = parts.iter().map(Bytes::len).sum();
                drop(self.inner.send(&[Bytes::copy_from_slice(&(length as u64).to_le_bytes())]));
                self.inner.write(&capability, offset, parts)
            }
            Some(immediate) => self.told(self.inner.write_with_immediate(&capability, offset, parts, immediate)),
        }
    }

    fn compare_swap(&self, capability: &Capability, offset: u64, expected: u64, new: u64) -> Completion<u64> {
        let capability = match self.taken_for(capability) {
            Ok(capability) => capability,
            Err(error) => return Completion::ready(Err(error)),
        };
        let offset = if self.is(Mutant::MisalignedIsRounded) { offset / 8 * 8 } else { offset };
        if self.is(Mutant::SwapInTwoSteps) {
            let endpoint = self.inner.clone();
            return changed(async move {
                let before = number(&endpoint.read(&capability, offset, 8, BytesMut::new()).await?);
                if before == expected {
                    let word = Bytes::copy_from_slice(&new.to_le_bytes());
                    endpoint.write(&capability, offset, &[word]).await?;
                }
                Ok(before)
            });
        }
        self.told(self.inner.compare_swap(&capability, offset, expected, new))
    }

    fn fetch_add(&self, capability: &Capability, offset: u64, add: u64) -> Completion<u64> {
        let capability = match self.taken_for(capability) {
            Ok(capability) => capability,
            Err(error) => return Completion::ready(Err(error)),
        };
        let offset = if self.is(Mutant::MisalignedIsRounded) { offset / 8 * 8 } else { offset };
        if self.is(Mutant::AdditionInTwoSteps) {
            let endpoint = self.inner.clone();
            return changed(async move {
                let before = number(&endpoint.read(&capability, offset, 8, BytesMut::new()).await?);
                let word = Bytes::copy_from_slice(&before.wrapping_add(add).to_le_bytes());
                endpoint.write(&capability, offset, &[word]).await?;
                Ok(before)
            });
        }
        self.told(self.inner.fetch_add(&capability, offset, add))
    }

    fn send(&self, parts: &[Bytes]) -> Completion<()> {
        let bytes: Bytes = parts.concat().into();
        if self.is(Mutant::EmptyMessageLost) && bytes.is_empty() {
            return Completion::ready(Ok(()));
        }
        if self.is(Mutant::MessagesSwapped) {
            let mut held_back = self.held_back.lock().expect("one thread");
            // The hundredth message waits for the one behind it.
            if held_back.is_none() && bytes.starts_with(&100u64.to_le_bytes()) {
                *held_back = Some(bytes);
                return Completion::ready(Ok(()));
            }
            let sent = self.inner.send(parts);
            if let Some(held_back) = held_back.take() {
                drop(self.inner.send(&[held_back]));
            }
            return sent;
        }
        self.inner.send(parts)
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Result<IncomingEvent, Error>> {
        loop {
            let incoming = {
                let mut receiving = std::pin::pin!(self.inner.receive());
                std::task::ready!(receiving.as_mut().poll(cx))
            };
            let mut early = self.early.lock().expect("one thread");
            return Poll::Ready(Ok(match incoming? {
                // Holds the notice of bytes that have not arrived.
                held @ IncomingEvent::Immediate { .. } if self.is(Mutant::ImmediateBeforeBytes) => {
                    early.push(held);
                    continue;
                }
                IncomingEvent::Message(bytes) if !early.is_empty() => match early.remove(0) {
                    IncomingEvent::Immediate { immediate, region, offset, .. } => {
                        IncomingEvent::Immediate { immediate, region, offset, length: number(&bytes) }
                    }
                    other => other,
                },
                IncomingEvent::Immediate { immediate, region, length, .. } if self.is(Mutant::ImmediateOffsetLost) => {
                    IncomingEvent::Immediate { immediate, region, offset: 0, length }
                }
                incoming => incoming,
            }));
        }
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn close(&self) {
        if self.is(Mutant::CloseIsNotTold) {
            return;
        }
        self.inner.close();
        self.second.iter().for_each(Endpoint::close);
    }
}

struct Broken {
    sim: Sim,
    provider: SimProvider,
    host: Arc<BrokenHost>,
    mutant: Mutant,
}

impl Broken {
    async fn new(sim: &Sim, mutant: Mutant) -> Broken {
        let (provider, shared) = (SimProvider::new(sim), Arc::default());
        let hosting = provider.clone();
        let any = mutant == Mutant::TokenIgnored;
        let task = sim.node("donor").spawn(async move {
            let tokens = Arc::new(move |name: &str| (any || NAMES.contains(&name)).then_some(TOKEN));
            hosting.host("donor", HostConfig { node: NodeId(9), tokens }).await.expect("the address is free")
        });
        let host = Arc::new(BrokenHost { inner: task.await.expect("nobody aborts it"), mutant, shared });
        Broken { sim: sim.clone(), provider, host, mutant }
    }
}

#[async_trait]
impl Fixture for Broken {
    fn host(&self) -> Arc<dyn Host> {
        Arc::clone(&self.host) as Arc<dyn Host>
    }

    fn credential(&self) -> Credential {
        Credential { name: "owner".to_owned(), token: TOKEN }
    }

    fn another_credential(&self) -> Credential {
        Credential { name: "another".to_owned(), token: TOKEN }
    }

    async fn connect(&self, credential: &Credential) -> Result<Endpoint, Error> {
        let (provider, mut credential, mutant) = (self.provider.clone(), credential.clone(), self.mutant);
        let name_asked = credential.name.clone();
        if mutant == Mutant::TokenIgnored {
            credential.token = TOKEN;
        }
        let task = self.sim.node("owner").spawn(async move {
            let inner = provider.connect("donor", &credential).await?;
            let second = match mutant {
                Mutant::Unordered => Some(provider.connect("donor", &credential).await?),
                _ => None,
            };
            Ok::<_, Error>((inner, second))
        });
        let (inner, second) = task.await.expect("nobody aborts it")?;
        let name = NAMES.into_iter().find(|name| *name == name_asked).unwrap_or(NAMES[0]);
        Ok(broken(inner, second, name, mutant, &self.host.shared))
    }

    fn features(&self) -> FixtureFeatures {
        // A broken provider may never complete a claim.
        FixtureFeatures {
            rounds: 120,
            large_bytes: 1 << 20,
            patience: Duration::from_secs(2),
            ..FixtureFeatures::default()
        }
    }
}

fn report(mutant: Mutant) -> ConformanceReport {
    let run = Simulation::new(7).steps_max(100_000_000).trace_lines_max(0).run(move |sim| async move {
        let fixture = Broken::new(&sim, mutant).await;
        conformance::run(&fixture).await
    });
    run.expect("the run succeeds").value
}

#[test]
fn what_passes_everything_through_unchanged_conforms() {
    report(Mutant::None).assert_held();
}

#[test]
fn the_suite_finds_every_mutant_out() {
    for (mutant, claim) in MUTANTS {
        let report = report(mutant);
        let broken: Vec<&str> = report.broken().map(|(name, _)| name).collect();
        assert!(broken.contains(&claim), "{mutant:?} breaks {broken:?} and not {claim}:\n{report}");
    }
}
