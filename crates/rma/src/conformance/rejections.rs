//! Rejections: a rejected verb has no effect.

use base::{Bytes, BytesMut};

use super::{EndpointPair, Fixture, REGION_BYTES, TestRegion, difference, ensure, pattern, while_doing, word};
use crate::{
    Capability, Credential, Endpoint, Error, GrantId, MESSAGE_BYTES_MAX, NodeId, PARTS_MAX, RegionId, Rights,
    TRANSFER_BYTES_MAX,
};

type Checked = Result<Option<&'static str>, String>;

/// Posts verbs that must be rejected, each on a usable connection.
pub(super) struct RejectionCheck<'a> {
    fixture: &'a dyn Fixture,
    credential: Credential,
    pair: EndpointPair,
}

/// The verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum VerbKind {
    Read(usize),
    Write(usize),
    CompareSwap,
    FetchAdd,
}

/// One verb of each kind.
pub(super) const VERBS: [VerbKind; 4] =
    [VerbKind::Read(16), VerbKind::Write(16), VerbKind::CompareSwap, VerbKind::FetchAdd];

/// The byte that a write or an atomic verb leaves if it is not rejected.
const MARK: u8 = 0xee;

impl VerbKind {
    pub(super) fn needs(self) -> Rights {
        match self {
            VerbKind::Read(_) => Rights::READ,
            VerbKind::Write(_) => Rights::WRITE,
            VerbKind::CompareSwap | VerbKind::FetchAdd => Rights::ATOMIC,
        }
    }

    pub(super) async fn post(self, endpoint: &Endpoint, capability: &Capability, offset: u64) -> Result<(), Error> {
        let mark = u64::from_le_bytes([MARK; 8]);
        match self {
            VerbKind::Read(length) => endpoint.read(capability, offset, length, BytesMut::new()).await.map(drop),
            VerbKind::Write(length) => endpoint.write(capability, offset, &[vec![MARK; length].into()]).await,
            VerbKind::CompareSwap => endpoint.compare_swap(capability, offset, 0, mark).await.map(drop),
            VerbKind::FetchAdd => endpoint.fetch_add(capability, offset, mark).await.map(drop),
        }
    }
}

impl<'a> RejectionCheck<'a> {
    pub(super) async fn new(fixture: &'a dyn Fixture) -> Result<RejectionCheck<'a>, String> {
        RejectionCheck::of(fixture, &fixture.credential()).await
    }

    async fn of(fixture: &'a dyn Fixture, credential: &Credential) -> Result<RejectionCheck<'a>, String> {
        Ok(RejectionCheck {
            fixture,
            credential: credential.clone(),
            pair: EndpointPair::of(fixture, credential).await?,
        })
    }

    /// Posts a verb whose error must match `expected`.
    pub(super) async fn verb(
        &mut self,
        verb: VerbKind,
        capability: &Capability,
        offset: u64,
        expected: impl Fn(&Error) -> bool,
    ) -> Result<(), String> {
        let outcome = verb.post(&self.pair.connected, capability, offset).await;
        if !self.fixture.features().refusals_keep_connections {
            self.pair = EndpointPair::of(self.fixture, &self.credential).await?;
        }
        match outcome {
            Err(error) if expected(&error) => Ok(()),
            Err(error) => Err(format!("{verb:?} at {offset} failed, but with {error:?}")),
            Ok(()) => Err(format!("{verb:?} at {offset} was not refused")),
        }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.pair.connected
    }

    /// Checks that a region has only zeros.
    async fn nothing_landed(&self, region: &TestRegion) -> Result<(), String> {
        let contents = region.contents(self.endpoint()).await?;
        let different = difference(&contents, &vec![0; contents.len()]);
        ensure!(different.is_none(), "a verb that was refused took effect: {different:?}");
        Ok(())
    }
}

pub(super) async fn ranges_out_of_bounds_are_refused_without_effect(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let mut refused = RejectionCheck::new(fixture).await?;
    let end = region.bytes;
    let out_of_bounds = |error: &Error| matches!(error, Error::OutOfBounds { .. });
    for verb in VERBS {
        // Beyond the end, far beyond it, and where offset and length together exceed 64 bits.
        for offset in [end, end + 4096, 1 << 40, u64::MAX - 7, u64::MAX - 15] {
            let offset = offset / 8 * 8;
            refused.verb(verb, &region.all, offset, out_of_bounds).await?;
        }
    }
    for (length, offset) in [(16, end - 8), (16, end - 1), (1, end), (4096, end - 4095), (0, end + 1), (8, u64::MAX)] {
        refused.verb(VerbKind::Read(length), &region.all, offset, out_of_bounds).await?;
        refused.verb(VerbKind::Write(length), &region.all, offset, out_of_bounds).await?;
    }
    refused.nothing_landed(&region).await?;
    region.end().await
}

pub(super) async fn misaligned_atomics_are_refused(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let mut refused = RejectionCheck::new(fixture).await?;
    for offset in [1, 4, 7, 9, 4092] {
        for verb in [VerbKind::CompareSwap, VerbKind::FetchAdd] {
            refused.verb(verb, &region.all, offset, |error| *error == Error::Misaligned(offset)).await?;
        }
    }
    refused.nothing_landed(&region).await?;
    region.end().await
}

/// A capability with one bit of its secret changed.
fn with_wrong_secret(capability: &Capability, bit: usize) -> Result<Capability, String> {
    let mut bytes = capability.encode();
    bytes[24 + bit / 8] ^= 1 << (bit % 8);
    Capability::decode(&bytes).map_err(while_doing("decoding a capability"))
}

pub(super) async fn wrong_secrets_and_unknown_regions_are_refused(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let mut refused = RejectionCheck::new(fixture).await?;
    let good = region.all;
    let unknown = |error: &Error| *error == Error::Unknown;
    for verb in VERBS {
        // Before the right secret was used on this connection, and after.
        for bit in [0, 77, 127] {
            refused.verb(verb, &with_wrong_secret(&good, bit)?, 0, unknown).await?;
        }
        refused.endpoint().read(&good, 0, 8, BytesMut::new()).await.map_err(while_doing("reading"))?;
        refused.verb(verb, &with_wrong_secret(&good, 1)?, 0, unknown).await?;
        let wrong = [
            Capability { region: RegionId(good.region.0 + 1000), ..good },
            Capability { region: RegionId(u32::MAX), ..good },
            Capability { grant: GrantId(good.grant.0 + 1000), ..good },
            Capability { node: NodeId(good.node.0 ^ 1), ..good },
        ];
        for capability in wrong {
            refused.verb(verb, &capability, 0, unknown).await?;
        }
        let from_the_future = Capability { generation: good.generation + 1, ..good };
        let refusal = |error: &Error| matches!(error, Error::Unknown | Error::Revoked);
        refused.verb(verb, &from_the_future, 0, refusal).await?;
    }
    refused.nothing_landed(&region).await?;
    // Another region's secret is as useless here as any other.
    let other = TestRegion::new(fixture, REGION_BYTES).await?;
    let crossed = Capability { secret: other.all.secret, ..good };
    refused.verb(VerbKind::Read(8), &crossed, 0, unknown).await?;
    other.end().await?;
    region.end().await
}

/// Regression: two organisations had memory at one host. One used the other's capability, eavesdropped on the network, on its
/// own connection, and could read and overwrite that memory.
pub(super) async fn a_capability_of_one_on_the_connection_of_another_is_refused_as_unknown(
    fixture: &dyn Fixture,
) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let unknown = |error: &Error| *error == Error::Unknown;
    let another = fixture.another_credential();
    let secret = pattern(7, 64);
    let owner = EndpointPair::new(fixture).await?;
    for used_by_its_holder in [false, true] {
        if used_by_its_holder {
            let written = owner.connected.write(&region.all, 0, std::slice::from_ref(&secret)).await;
            written.map_err(while_doing("writing as the holder"))?;
        }
        let mut refused = RejectionCheck::of(fixture, &another).await?;
        for verb in VERBS.into_iter().chain([VerbKind::Read(0), VerbKind::Write(0), VerbKind::Write(60_000)]) {
            refused.verb(verb, &region.all, 0, unknown).await?;
        }
        // The other name's own capability for the same region gives the access it states, and none to the first holder's
        // capability.
        let own = region.host.grant(region.id, Rights::READ, &another.name).map_err(while_doing("granting"))?;
        for verb in [VerbKind::Read(16), VerbKind::Read(0)] {
            verb.post(refused.endpoint(), &own, 0).await.map_err(while_doing("reading as another"))?;
            refused.verb(verb, &region.all, 0, unknown).await?;
        }
        let mixed = Capability { secret: region.all.secret, ..own };
        refused.verb(VerbKind::Read(16), &mixed, 0, unknown).await?;
        if used_by_its_holder {
            let read = VerbKind::Read(16).post(&owner.connected, &own, 0).await;
            ensure!(read == Err(Error::Unknown), "the first read with the other's capability: {read:?}");
        }
        region.host.revoke(&own).await.map_err(while_doing("revoking"))?;
    }
    let reader = EndpointPair::new(fixture).await?;
    let contents = region.contents(&reader.connected).await?;
    let different = difference(&contents[..64], &secret);
    ensure!(different.is_none(), "a verb of another took effect: {different:?}");
    ensure!(contents[64..].iter().all(|byte| *byte == 0), "a verb of another took effect");
    region.end().await
}

pub(super) async fn what_a_capability_lacks_is_forbidden(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let mut refused = RejectionCheck::new(fixture).await?;
    let rights = [Rights::NONE, Rights::READ, Rights::WRITE, Rights::ATOMIC, Rights::READ.and(Rights::ATOMIC)];
    for rights in rights {
        let granted = region.grant(rights)?;
        for capability in [granted, region.all.narrowed(rights)] {
            for verb in VERBS {
                if rights.include(verb.needs()) {
                    let allowed = verb.post(refused.endpoint(), &capability, 4096).await;
                    allowed.map_err(|error| format!("{verb:?} with {rights:?} failed: {error}"))?;
                } else {
                    refused.verb(verb, &capability, 0, |error| *error == Error::Forbidden).await?;
                }
            }
        }
    }
    let contents = region.contents(refused.endpoint()).await?;
    ensure!(contents[..4096].iter().all(|byte| *byte == 0), "a verb that was forbidden took effect");
    region.end().await
}

pub(super) async fn forged_rights_are_refused(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let mut refused = RejectionCheck::new(fixture).await?;
    for rights in [Rights::NONE, Rights::READ, Rights::WRITE, Rights::ATOMIC] {
        // The secret is right, but the rights exceed the granted ones.
        let forged = Capability { rights: Rights::ALL, ..region.grant(rights)? };
        for verb in VERBS.into_iter().filter(|verb| !rights.include(verb.needs())) {
            refused.verb(verb, &forged, 0, |error| matches!(error, Error::Forbidden | Error::Unknown)).await?;
        }
    }
    refused.nothing_landed(&region).await?;
    region.end().await
}

pub(super) async fn too_much_at_once_is_refused(fixture: &dyn Fixture) -> Checked {
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let mut refused = RejectionCheck::new(fixture).await?;
    let too_large = |error: &Error| matches!(error, Error::TooLarge(_));
    refused.verb(VerbKind::Read(TRANSFER_BYTES_MAX + 1), &region.all, 0, too_large).await?;
    refused.verb(VerbKind::Read(usize::MAX), &region.all, 0, too_large).await?;
    // Within the limit, but not within the region.
    refused
        .verb(VerbKind::Read(TRANSFER_BYTES_MAX), &region.all, 0, |error| matches!(error, Error::OutOfBounds { .. }))
        .await?;
    let endpoint = refused.endpoint();
    let part = |bytes_max: usize| Bytes::from(vec![1; bytes_max / PARTS_MAX + 1]);
    let outcome = endpoint.write(&region.all, 0, &vec![part(TRANSFER_BYTES_MAX); PARTS_MAX]).await;
    ensure!(matches!(outcome, Err(Error::TooLarge(_))), "a write of too many bytes came to {outcome:?}");
    let outcome = endpoint.write(&region.all, 0, &vec![word(1); PARTS_MAX + 1]).await;
    ensure!(matches!(outcome, Err(Error::TooLarge(_))), "a write of too many parts came to {outcome:?}");
    let outcome = endpoint.send(&vec![part(MESSAGE_BYTES_MAX); PARTS_MAX]).await;
    ensure!(matches!(outcome, Err(Error::TooLarge(_))), "a message of too many bytes came to {outcome:?}");
    let outcome = endpoint.send(&vec![word(1); PARTS_MAX + 1]).await;
    ensure!(matches!(outcome, Err(Error::TooLarge(_))), "a message of too many parts came to {outcome:?}");
    refused.nothing_landed(&region).await?;
    let bytes = region.host.register("conformance", 4097).await;
    ensure!(bytes.is_err(), "a region of 4097 bytes was registered");
    region.end().await
}

pub(super) async fn a_refused_verb_leaves_the_connection_in_use(fixture: &dyn Fixture) -> Checked {
    if !fixture.features().refusals_keep_connections {
        return Ok(Some("a refusal ends the connection"));
    }
    let region = TestRegion::new(fixture, REGION_BYTES).await?;
    let pair = EndpointPair::new(fixture).await?;
    let endpoint = &pair.connected;
    // Among other verbs, which take effect.
    let before = endpoint.write(&region.all, 0, &[pattern(1, 64)]);
    let refused = endpoint.write(&region.all, region.bytes, &[pattern(2, 64)]);
    let after = endpoint.write(&region.all, 64, &[pattern(3, 64)]);
    before.await.map_err(while_doing("writing before"))?;
    ensure!(matches!(refused.await, Err(Error::OutOfBounds { .. })), "a write out of bounds was not refused");
    after.await.map_err(while_doing("writing behind a refused write"))?;
    let contents = region.contents(endpoint).await?;
    let different = difference(&contents[..128], &[pattern(1, 64), pattern(3, 64)].concat());
    ensure!(different.is_none(), "around a refused write the others gave {different:?}");
    endpoint.send(&[word(1)]).await.map_err(while_doing("sending"))?;
    pair.accepted.receive().await.map_err(while_doing("receiving"))?;
    region.end().await
}
