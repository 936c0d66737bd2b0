//! The guarantees that every provider must give, as claims that are tested on it.
//!
//! 1. A [`Fixture`] has a host of the provider under test and connects endpoints to that host. The host's tasks run in this
//!    process.
//! 2. [`run`] checks all [`CLAIMS`], one after the other, and reports the broken ones; a test then calls
//!    [`ConformanceReport::assert_held`]. [`Claim::check`] checks a single claim.
//! 3. Each claim creates its own regions, grants and endpoints and frees them. The last claim closes the host; the fixture
//!    cannot be used afterwards.
//!
//! Invariants:
//! * The verdict on a claim does not depend on timing, except that a claim is broken if it has not ended after
//!   [`FixtureFeatures::patience`], for example because a verb never completes.
//! * No claim panics: a broken claim reports what it observed.
//!
//! Claims run on the ambient runtime, real or simulated. `tests/rma/mutants.rs` runs the suite on deliberately broken
//! providers, to test that the suite finds each defect.

mod atomics;
mod connections;
mod fences;
mod rejections;
mod transfers;

use std::fmt::{self, Display};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{Bytes, BytesMut, rt};

use crate::{Capability, Credential, Endpoint, Error, Host, RegionId, Rights};

/// Bytes of a region that a claim uses, unless it needs more.
const REGION_BYTES: u64 = 1 << 16;

/// Fails a claim unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use ensure;

/// The features of a fixture's provider, and the size of the tests.
#[derive(Clone, Copy, Debug)]
pub struct FixtureFeatures {
    /// [`Fixture::sever`] works.
    pub sever: bool,
    /// A rejected verb leaves the connection usable. Without this, claims take a new connection for each rejection.
    pub refusals_keep_connections: bool,
    /// Bytes of a large transfer and of a large message, at most [`crate::TRANSFER_BYTES_MAX`].
    pub large_bytes: usize,
    /// How often a test is repeated where more repetitions are better: a few hundred.
    pub rounds: usize,
    /// A claim that has not ended by then is broken.
    pub patience: Duration,
}

impl Default for FixtureFeatures {
    /// For a provider that runs at full speed and cannot sever connections.
    fn default() -> FixtureFeatures {
        FixtureFeatures {
            sever: false,
            refusals_keep_connections: true,
            large_bytes: 8 << 20,
            rounds: 300,
            patience: Duration::from_secs(120),
        }
    }
}

/// A provider set up for the suite.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A host without connections and with at least 256 MiB of free memory. Always the same one.
    fn host(&self) -> Arc<dyn Host>;

    /// A credential that the host accepts.
    fn credential(&self) -> Credential;

    /// A credential of another name that the host accepts.
    fn another_credential(&self) -> Credential;

    /// A new connection to the host.
    ///
    /// # Errors
    /// As [`crate::Provider::connect`].
    async fn connect(&self, credential: &Credential) -> Result<Endpoint, Error>;

    /// Loses a connection as a broken cable would: neither end closes it. Both must notice in the end.
    async fn sever(&self, connected: &Endpoint, accepted: &Endpoint) {
        let _ = (connected, accepted);
    }

    /// The features to test.
    fn features(&self) -> FixtureFeatures {
        FixtureFeatures::default()
    }
}

/// The result of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimVerdict {
    /// The claim holds.
    Held,
    /// The claim does not apply to this provider, for this reason.
    Skipped(&'static str),
    /// The claim does not hold, with what was observed.
    Broken(String),
}

type Checked<'a> = Pin<Box<dyn Future<Output = Result<Option<&'static str>, String>> + Send + 'a>>;

/// A guarantee that every provider must give.
#[derive(Clone, Copy)]
pub struct Claim {
    /// The claim in words.
    pub name: &'static str,
    check: for<'a> fn(&'a dyn Fixture) -> Checked<'a>,
}

impl Claim {
    /// Checks the claim.
    pub async fn check(&self, fixture: &dyn Fixture) -> ClaimVerdict {
        let patience = fixture.features().patience;
        match rt::timeout(patience, (self.check)(fixture)).await {
            Ok(Ok(None)) => ClaimVerdict::Held,
            Ok(Ok(Some(reason))) => ClaimVerdict::Skipped(reason),
            Ok(Err(seen)) => ClaimVerdict::Broken(seen),
            Err(_) => ClaimVerdict::Broken(format!("it has not ended within {patience:?}")),
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! claims {
    ($($(#[$doc:meta])* $module:ident::$name:ident),+ $(,)?) => {
        /// All claims, in the order in which [`run`] checks them. The last closes the host.
        pub const CLAIMS: &[Claim] = &[
            $(Claim { name: stringify!($name), check: |fixture| Box::pin($module::$name(fixture)) }),+
        ];
    };
}

claims! {
    transfers::what_was_written_is_read_by_all,
    transfers::regions_begin_as_zeros,
    transfers::owners_reach_their_memory,
    transfers::reads_append_to_what_is_there,
    transfers::parts_are_written_one_behind_the_other,
    transfers::transfers_of_no_bytes_pass,
    transfers::large_transfers_arrive_whole,
    transfers::words_are_never_torn,
    transfers::verbs_of_one_endpoint_take_effect_in_order,
    transfers::data_written_before_a_flag_are_there_with_the_flag,
    transfers::verbs_take_effect_though_nobody_awaits_them,
    transfers::immediate_data_arrive_behind_their_bytes,
    atomics::a_swap_happens_only_where_the_expected_word_stands,
    atomics::additions_wrap_and_give_what_stood_there,
    atomics::swaps_under_contention_lose_nothing,
    atomics::additions_under_contention_lose_nothing,
    atomics::thousands_of_verbs_are_in_flight_in_order,
    atomics::too_many_verbs_are_busy_and_without_effect,
    rejections::ranges_out_of_bounds_are_refused_without_effect,
    rejections::misaligned_atomics_are_refused,
    rejections::wrong_secrets_and_unknown_regions_are_refused,
    rejections::a_capability_of_one_on_the_connection_of_another_is_refused_as_unknown,
    rejections::what_a_capability_lacks_is_forbidden,
    rejections::forged_rights_are_refused,
    rejections::too_much_at_once_is_refused,
    rejections::a_refused_verb_leaves_the_connection_in_use,
    fences::a_revoked_capability_is_refused_for_every_verb,
    fences::nothing_lands_after_a_revocation,
    fences::a_capability_that_was_revoked_is_refused_on_a_later_connection,
    fences::one_grant_survives_the_revocation_of_another,
    fences::a_deregistered_region_is_gone,
    connections::strangers_are_refused,
    connections::names_and_numbers_are_those_of_the_other_side,
    connections::messages_arrive_in_order_in_both_directions,
    connections::messages_of_no_bytes_and_of_many_arrive,
    connections::a_message_arrives_behind_what_was_written_before_it,
    connections::giving_up_a_receive_loses_nothing,
    connections::closing_ends_both_sides_and_delivers_what_was_sent,
    connections::dropping_the_last_clone_closes,
    connections::verbs_in_flight_on_a_closed_endpoint_are_ambiguous,
    connections::a_lost_connection_leaves_verbs_ambiguous_and_closes,
    connections::a_closed_host_ends_its_connections,
}

/// The results of all claims.
#[derive(Clone, Debug, Default)]
pub struct ConformanceReport {
    /// In the order of checking.
    pub verdicts: Vec<(&'static str, ClaimVerdict)>,
}

impl ConformanceReport {
    /// The claims that are broken.
    pub fn broken(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.verdicts.iter().filter_map(|(name, verdict)| match verdict {
            ClaimVerdict::Broken(seen) => Some((*name, seen.as_str())),
            _ => None,
        })
    }

    /// Panics with the report when a claim is broken.
    pub fn assert_held(&self) {
        assert!(self.broken().next().is_none(), "the provider does not conform:\n{self}");
    }
}

impl Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, verdict) in &self.verdicts {
            match verdict {
                ClaimVerdict::Held => writeln!(f, "ok       {name}")?,
                ClaimVerdict::Skipped(reason) => writeln!(f, "skipped  {name}: {reason}")?,
                ClaimVerdict::Broken(seen) => writeln!(f, "BROKEN   {name}: {seen}")?,
            }
        }
        Ok(())
    }
}

/// Checks all claims on a provider. Afterwards its host is closed.
pub async fn run(fixture: &dyn Fixture) -> ConformanceReport {
    let mut report = ConformanceReport::default();
    for claim in CLAIMS {
        report.verdicts.push((claim.name, claim.check(fixture).await));
    }
    report
}

/// Adds the operation to the error of a failed one.
fn while_doing<E: Display>(doing: &str) -> impl FnOnce(E) -> String + '_ {
    move |error| format!("{doing}: {error}")
}

/// A connection's two ends.
struct EndpointPair {
    connected: Endpoint,
    accepted: Endpoint,
}

impl EndpointPair {
    async fn new(fixture: &dyn Fixture) -> Result<EndpointPair, String> {
        EndpointPair::of(fixture, &fixture.credential()).await
    }

    async fn of(fixture: &dyn Fixture, credential: &Credential) -> Result<EndpointPair, String> {
        let host = fixture.host();
        let accepted = rt::spawn(async move { host.accept().await }).abort_on_drop();
        let connected = fixture.connect(credential).await.map_err(while_doing("connecting"))?;
        let accepted = accepted.await.map_err(while_doing("accepting"))?.map_err(while_doing("accepting"))?;
        Ok(EndpointPair { connected, accepted })
    }

    async fn several(fixture: &dyn Fixture, count: usize) -> Result<Vec<EndpointPair>, String> {
        let mut pairs = Vec::new();
        for _ in 0..count {
            pairs.push(EndpointPair::new(fixture).await?);
        }
        Ok(pairs)
    }
}

/// A region of the host under test, and a capability for all of it.
struct TestRegion {
    host: Arc<dyn Host>,
    id: RegionId,
    bytes: u64,
    /// The holder of its capabilities: the name of the fixture's credential.
    holder: String,
    all: Capability,
}

impl TestRegion {
    async fn new(fixture: &dyn Fixture, bytes: u64) -> Result<TestRegion, String> {
        let host = fixture.host();
        let id = host.register("conformance", bytes).await.map_err(while_doing("registering a region"))?;
        let holder = fixture.credential().name;
        let all = host.grant(id, Rights::ALL, &holder).map_err(while_doing("granting"))?;
        Ok(TestRegion { host, id, bytes, holder, all })
    }

    fn grant(&self, rights: Rights) -> Result<Capability, String> {
        self.host.grant(self.id, rights, &self.holder).map_err(while_doing("granting"))
    }

    async fn contents(&self, endpoint: &Endpoint) -> Result<BytesMut, String> {
        let length = self.bytes as usize;
        endpoint.read(&self.all, 0, length, BytesMut::new()).await.map_err(while_doing("reading the region"))
    }

    async fn end(self) -> Result<Option<&'static str>, String> {
        self.host.deregister(self.id).await.map_err(while_doing("deregistering"))?;
        Ok(None)
    }
}

fn word(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

fn number(bytes: &[u8]) -> Result<u64, String> {
    let word = bytes.try_into().map_err(|_| format!("{} bytes were read where 8 were asked for", bytes.len()))?;
    Ok(u64::from_le_bytes(word))
}

async fn read_word(endpoint: &Endpoint, capability: &Capability, offset: u64) -> Result<u64, String> {
    let read = endpoint.read(capability, offset, 8, BytesMut::new()).await;
    number(&read.map_err(while_doing("reading a word"))?)
}

/// Bytes that differ from offset to offset and from seed to seed.
fn pattern(seed: u64, length: usize) -> Bytes {
    let mut bytes = BytesMut::with_capacity(length + 8);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes.freeze()
}

/// The offset at which two byte strings first differ; `None` when they are the same.
fn difference(seen: &[u8], expected: &[u8]) -> Option<String> {
    if seen.len() != expected.len() {
        return Some(format!("{} bytes instead of {}", seen.len(), expected.len()));
    }
    let at = seen.iter().zip(expected).position(|(seen, expected)| seen != expected)?;
    Some(format!("byte {at} is {:#04x} instead of {:#04x}", seen[at], expected[at]))
}
