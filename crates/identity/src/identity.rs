//! [`Identity`]: a member of a channel, whose certificate its organisation has validated.

use base::MspId;
use base::rt::WallTime;
use bytes::Bytes;

use crate::certificate::{Certificate, CertificateId};
use crate::error::Error;
use crate::key::KeyKind;
use crate::principal::{MemberRole, MemberRoles, Principal};
use crate::verifier::{SignatureClaim, SignatureVerifier};

/// A holder of a certificate that chains to its organisation and that the organisation has not taken back.
///
/// Only [`crate::MspManager`] and [`crate::Msp`] make identities, and only of valid ones; an identity stays what it is
/// when it expires, because a block must validate the same for ever ([`Identity::check_expiry`] is separate).
#[derive(Debug)]
pub struct Identity {
    msp: MspId,
    serialized: Bytes,
    certificate: Certificate,
    roles: MemberRoles,
    /// The digest of the chain's authorities: what certifies the organisational units.
    certifiers: Bytes,
}

impl Identity {
    pub(crate) fn new(
        msp: MspId,
        serialized: Bytes,
        certificate: Certificate,
        roles: MemberRoles,
        certifiers: Bytes,
    ) -> Self {
        Identity { msp, serialized, certificate, roles, certifiers }
    }

    /// The same holder, by other bytes that name the same certificate.
    pub(crate) fn serialized_as(&self, serialized: Bytes) -> Identity {
        let Identity { msp, serialized: _, certificate, roles, certifiers } = self;
        let (certificate, certifiers) = (certificate.clone(), certifiers.clone());
        Identity { msp: msp.clone(), serialized, certificate, roles: *roles, certifiers }
    }

    /// The organisation.
    pub fn msp_id(&self) -> &MspId {
        &self.msp
    }

    /// The `SerializedIdentity` it was read from, byte for byte.
    pub fn serialized(&self) -> &Bytes {
        &self.serialized
    }

    /// The certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// What names the holder. Two serialized identities with differing bytes can be the same holder: compare these.
    pub fn certificate_id(&self) -> CertificateId {
        self.certificate.id()
    }

    /// The kind of key it signs with.
    pub fn key_kind(&self) -> KeyKind {
        self.certificate.key().kind()
    }

    /// Checks the holder's signature over a message.
    ///
    /// # Errors
    /// [`Error::MalformedSignature`], [`Error::HighS`] or [`Error::WrongSignature`].
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), Error> {
        SignatureVerifier::of_process().verify(&SignatureClaim::new(self, message, signature))
    }

    /// End of validity, in seconds since the Unix epoch.
    pub fn not_after(&self) -> i64 {
        self.certificate.not_after()
    }

    /// Whether the certificate is past its end of validity.
    pub fn expired_at(&self, now: WallTime) -> bool {
        self.check_expiry(now).is_err()
    }

    /// Refuses an identity whose certificate is past its end of validity.
    ///
    /// # Errors
    /// [`Error::Expired`].
    pub fn check_expiry(&self, now: WallTime) -> Result<(), Error> {
        let late = i128::from(now.nanos()) - i128::from(self.not_after()) * 1_000_000_000;
        match u64::try_from(late) {
            Ok(0) | Err(_) => Ok(()),
            Ok(nanos) => Err(Error::Expired { seconds: nanos / 1_000_000_000 }),
        }
    }

    /// Whether it has this role in its organisation.
    pub fn has_role(&self, role: MemberRole) -> bool {
        self.roles.contains(role)
    }

    /// Whether a policy that asks for `principal` may count this identity.
    pub fn satisfies(&self, principal: &Principal) -> bool {
        match principal {
            Principal::Role(msp, role) => self.roles.contains(*role) && *msp == self.msp,
            Principal::OrganizationalUnit { msp, unit, certifiers } => {
                *msp == self.msp && *certifiers == self.certifiers && self.certificate.units().contains(unit)
            }
            Principal::Identity(msp, certificate) => *certificate == self.certificate.id() && *msp == self.msp,
            Principal::Combined(all) => all.iter().all(|principal| self.satisfies(principal)),
            Principal::Nominal => true,
            Principal::Nobody => false,
        }
    }

    /// Whether both are the same holder of the same organisation.
    pub fn is_same_holder(&self, other: &Identity) -> bool {
        self.certificate.id() == other.certificate.id() && self.msp == other.msp
    }
}
