//! Principals: the signers that a policy asks for.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::MspId;
use bytes::Bytes;
use prost::Message as _;
use proto::common::msp_identity_anonymity::MspIdentityAnonymityType;
use proto::common::msp_principal::Classification;
use proto::common::msp_role::MspRoleType;
use proto::common::{CombinedPrincipal, MspIdentityAnonymity, MspPrincipal, MspRole, OrganizationUnit};
use proto::msp::SerializedIdentity;

use crate::certificate::{Certificate, CertificateId};

/// How deep combined principals may nest.
const COMBINED_DEPTH_MAX: usize = 8;
/// How many principals a combined one may hold, nested ones included.
const COMBINED_PRINCIPALS_MAX: usize = 256;

/// What an identity may be in its organisation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MemberRole {
    /// Any valid identity.
    Member,
    /// An administrator, by organisational unit or by list.
    Admin,
    /// A client, by organisational unit.
    Client,
    /// A peer, by organisational unit.
    Peer,
    /// An orderer, by organisational unit.
    Orderer,
}

impl MemberRole {
    /// All roles.
    pub const ALL: [MemberRole; 5] =
        [MemberRole::Member, MemberRole::Admin, MemberRole::Client, MemberRole::Peer, MemberRole::Orderer];

    /// The role's name in policies and organisational units.
    pub const fn as_str(self) -> &'static str {
        match self {
            MemberRole::Member => "member",
            MemberRole::Admin => "admin",
            MemberRole::Client => "client",
            MemberRole::Peer => "peer",
            MemberRole::Orderer => "orderer",
        }
    }

    const fn to_wire(self) -> MspRoleType {
        match self {
            MemberRole::Member => MspRoleType::Member,
            MemberRole::Admin => MspRoleType::Admin,
            MemberRole::Client => MspRoleType::Client,
            MemberRole::Peer => MspRoleType::Peer,
            MemberRole::Orderer => MspRoleType::Orderer,
        }
    }

    fn from_wire(role: i32) -> Option<MemberRole> {
        let role = MspRoleType::try_from(role).ok()?;
        MemberRole::ALL.into_iter().find(|candidate| candidate.to_wire() == role)
    }
}

/// A set of roles.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct MemberRoles(u8);

impl MemberRoles {
    pub(crate) fn insert(&mut self, role: MemberRole) {
        self.0 |= 1 << role as u8;
    }

    pub(crate) fn contains(self, role: MemberRole) -> bool {
        self.0 & (1 << role as u8) != 0
    }
}

/// Whom a policy asks for, decoded from the wire once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Principal {
    /// A role in an organisation.
    Role(MspId, MemberRole),
    /// A holder of an organisational unit whose chain has this identifier.
    OrganizationalUnit {
        /// The organisation.
        msp: MspId,
        /// The unit as certificates name it.
        unit: String,
        /// The digest of the authorities that vouch for it.
        certifiers: Bytes,
    },
    /// The holder of one certificate.
    Identity(MspId, CertificateId),
    /// All of these at once.
    Combined(Vec<Principal>),
    /// Anybody with a certificate, which is every identity here.
    Nominal,
    /// Nobody: the definition is malformed, or asks for an anonymity that certificates do not give. As in Fabric, such a
    /// principal spoils no policy in which others suffice.
    Nobody,
}

impl Principal {
    /// Decodes a principal. What cannot be decoded is [`Principal::Nobody`].
    pub fn from_wire(wire: &MspPrincipal) -> Principal {
        let mut budget = COMBINED_PRINCIPALS_MAX;
        decode(wire, COMBINED_DEPTH_MAX, &mut budget).unwrap_or(Principal::Nobody)
    }

    /// A role in an organisation.
    pub fn role(msp: impl Into<MspId>, role: MemberRole) -> Principal {
        Principal::Role(msp.into(), role)
    }

    /// The role principal as it goes onto the wire.
    pub fn role_to_wire(msp: &str, role: MemberRole) -> MspPrincipal {
        let role = MspRole { msp_identifier: msp.to_owned(), role: role.to_wire() as i32 };
        MspPrincipal { principal_classification: Classification::Role as i32, principal: role.encode_to_vec().into() }
    }

    /// The organisation of every identity that satisfies this principal, when it is one organisation.
    pub fn msp(&self) -> Option<&MspId> {
        match self {
            Principal::Role(msp, _) | Principal::OrganizationalUnit { msp, .. } | Principal::Identity(msp, _) => {
                Some(msp)
            }
            Principal::Combined(all) => {
                let mut msps = all.iter().filter_map(Principal::msp);
                let first = msps.next()?;
                msps.all(|msp| msp == first).then_some(first)
            }
            Principal::Nominal | Principal::Nobody => None,
        }
    }
}

fn decode(wire: &MspPrincipal, depth: usize, budget: &mut usize) -> Option<Principal> {
    *budget = budget.checked_sub(1)?;
    match Classification::try_from(wire.principal_classification).ok()? {
        Classification::Role => {
            let role = MspRole::decode(wire.principal.clone()).ok()?;
            Some(Principal::Role(role.msp_identifier.into(), MemberRole::from_wire(role.role)?))
        }
        Classification::OrganizationUnit => {
            let unit = OrganizationUnit::decode(wire.principal.clone()).ok()?;
            Some(Principal::OrganizationalUnit {
                msp: unit.msp_identifier.into(),
                unit: unit.organizational_unit_identifier,
                certifiers: unit.certifiers_identifier,
            })
        }
        Classification::Identity => {
            let identity = SerializedIdentity::decode(wire.principal.clone()).ok()?;
            let certificate = Certificate::from_pem(&identity.id_bytes).ok()?;
            Some(Principal::Identity(identity.mspid.into(), certificate.id()))
        }
        Classification::Anonymity => {
            let anonymity = MspIdentityAnonymity::decode(wire.principal.clone()).ok()?;
            match MspIdentityAnonymityType::try_from(anonymity.anonymity_type).ok()? {
                MspIdentityAnonymityType::Nominal => Some(Principal::Nominal),
                MspIdentityAnonymityType::Anonymous => None,
            }
        }
        Classification::Combined => {
            let combined = CombinedPrincipal::decode(wire.principal.clone()).ok()?;
            let depth = depth.checked_sub(1)?;
            let all: Option<Vec<_>> = combined.principals.iter().map(|part| decode(part, depth, budget)).collect();
            all.filter(|all| !all.is_empty()).map(Principal::Combined)
        }
    }
}
