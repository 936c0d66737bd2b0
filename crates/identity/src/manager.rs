//! The organisations of one channel, and the identities of their members.
//!
//! [`MspManager::identify`] turns the bytes that name an identity into an [`Identity`]. Validation calls it several
//! times for each transaction, mostly for the same few certificates, so valid identities are cached. Anyone can cause a
//! call, since a message's signature can be checked only once its identity is known. Therefore each organisation has
//! its own cache, and only its members can evict entries from it. A look-up has three steps:
//!
//! 1. By the bytes of the identity. A hit costs a hash and a comparison.
//! 2. By the certificate. One certificate has many serialized forms: PEM may break lines anywhere, and text before the
//!    PEM block is ignored. Another form of a cached certificate is decoded, but no chain is verified.
//! 3. Otherwise the certificate's chain is verified, and the identity is cached under both keys.
//!
//! While a certificate is cached, at most two of its forms are cached by their bytes: the usual form, which Fabric's
//! tools write, and the form in which the certificate was first seen.
//!
//! Invariants: the cache never changes an answer. Only valid identities are cached, so nobody without a certificate of
//! the channel can evict entries. Members of an organisation evict only entries of that organisation. The holder of one
//! certificate fills at most two entries by bytes and one by certificate, whatever forms the holder sends.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::MspId;
use bytes::Bytes;

use crate::cache::{ENTRIES_DEFAULT, IdentityCache};
use crate::certificate::{self, Certificate};
use crate::digest::sha256;
use crate::error::Error;
use crate::event;
use crate::identity::Identity;
use crate::msp::{Msp, decode_serialized, encode_serialized};

/// The organisations of one channel. Immutable: a new configuration makes a new manager, with an empty cache, because
/// it may have revoked what the old one remembered.
#[derive(Debug)]
pub struct MspManager {
    organizations: BTreeMap<MspId, MemberOrganization>,
}

#[derive(Debug)]
struct MemberOrganization {
    msp: Arc<Msp>,
    by_bytes: IdentityCache,
    by_certificate: IdentityCache,
}

impl MspManager {
    /// Takes the organisations. If two share a name (an organisation that both orders and endorses), one of them is kept:
    /// a configuration that names an organisation twice must define it equally.
    pub fn new(msps: impl IntoIterator<Item = Arc<Msp>>) -> MspManager {
        MspManager::with_cache(msps, ENTRIES_DEFAULT)
    }

    /// As [`MspManager::new`], remembering about this many identities, an equal part of them for each organisation.
    pub fn with_cache(msps: impl IntoIterator<Item = Arc<Msp>>, identities: usize) -> MspManager {
        let msps: BTreeMap<MspId, Arc<Msp>> = msps.into_iter().map(|msp| (msp.id().clone(), msp)).collect();
        let each = identities / msps.len().max(1);
        let organization = |msp| MemberOrganization {
            msp,
            by_bytes: IdentityCache::new(each),
            by_certificate: IdentityCache::new(each),
        };
        MspManager { organizations: msps.into_iter().map(|(id, msp)| (id, organization(msp))).collect() }
    }

    /// An organisation by name.
    pub fn msp(&self, id: &str) -> Option<&Arc<Msp>> {
        self.organizations.get(id).map(|organization| &organization.msp)
    }

    /// All organisations, by name.
    pub fn msps(&self) -> impl Iterator<Item = &Arc<Msp>> {
        self.organizations.values().map(|organization| &organization.msp)
    }

    /// The valid identity that these bytes, a `SerializedIdentity`, name. Expiry is not looked at.
    ///
    /// Failures are not remembered.
    ///
    /// # Errors
    /// Every kind of failure that identities have, except [`Error::Expired`].
    pub fn identify(&self, serialized: &Bytes) -> Result<Arc<Identity>, Error> {
        let claimed = msp_name(serialized).and_then(|name| self.organizations.get(name));
        if let Some(identity) = claimed.and_then(|organization| organization.by_bytes.get(serialized)) {
            return Ok(identity);
        }
        let decoded = decode_serialized(serialized)?;
        let organization = self.organizations.get(decoded.mspid.as_str());
        let organization = organization.ok_or_else(|| Error::UnknownMsp(decoded.mspid.as_str().into()))?;
        let certificate = Certificate::from_pem(&decoded.id_bytes)?;
        let serialized = Bytes::copy_from_slice(serialized);
        let digest = sha256([&certificate.der()[..]]);
        let usual = certificate::to_pem("CERTIFICATE", certificate.der());
        let is_usual = serialized == encode_serialized(&decoded.mspid, usual.as_bytes());
        let known = organization.by_certificate.get(&digest);
        let identity = match &known {
            Some(known) => Arc::new(known.serialized_as(serialized.clone())),
            None => {
                event::IdentityValidated.add(1);
                let identity = Arc::new(organization.msp.validate(certificate, serialized.clone())?);
                organization.by_certificate.insert(Bytes::copy_from_slice(&digest), &identity);
                identity
            }
        };
        if is_usual || known.is_none() {
            organization.by_bytes.insert(serialized, &identity);
        }
        Ok(identity)
    }

    /// How many identities are remembered by their bytes.
    pub fn remembered(&self) -> usize {
        self.organizations.values().map(|organization| organization.by_bytes.len()).sum()
    }
}

/// The organisation that a `SerializedIdentity` begins with, as every one does that a protobuf library has written.
fn msp_name(serialized: &[u8]) -> Option<&str> {
    let [0x0a, length @ 0..0x80, rest @ ..] = serialized else { return None };
    std::str::from_utf8(rest.get(..usize::from(*length))?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issue::{CertificateTerms, IssuingOrganization as Founded};
    use crate::principal::MemberRole;

    fn founded(msp: &str, seed: u8) -> Founded {
        Founded::create(msp, &format!("{}.example.com", msp.to_lowercase()), &CertificateTerms::seeded([seed; 32]))
            .expect("founded")
    }

    fn manager(organizations: &[&Founded]) -> MspManager {
        MspManager::new(organizations.iter().map(|one| Arc::new(one.membership().expect("valid"))))
    }

    #[test]
    fn members_of_one_organisation_push_out_none_of_another() {
        let (a, b) = (founded("A", 1), founded("B", 2));
        let msps = [&a, &b].map(|one| Arc::new(one.membership().expect("valid")));
        let manager = MspManager::with_cache(msps, 128);
        let of_b: Vec<_> = (0..8).map(|n| b.issue(MemberRole::Client, &format!("u{n}")).expect("issued")).collect();
        of_b.iter().for_each(|signer| drop(manager.identify(signer.serialized()).expect("a member")));
        let kept = manager.organizations[b.msp_id()].by_bytes.len();
        for n in 0..500 {
            manager
                .identify(a.issue(MemberRole::Client, &format!("u{n}")).expect("issued").serialized())
                .expect("a member");
        }
        assert_eq!(manager.organizations[b.msp_id()].by_bytes.len(), kept);
        assert!(manager.remembered() <= 128);
    }

    #[test]
    fn an_unusual_order_of_fields_is_the_same_identity() {
        let a = founded("A", 1);
        let manager = manager(&[&a]);
        let signer = a.issue(MemberRole::Client, "u").expect("issued");
        let decoded = decode_serialized(signer.serialized()).expect("well formed");
        let head = signer.serialized().len() - decoded.id_bytes.len() - 3;
        let turned = Bytes::from([&signer.serialized()[head..], &signer.serialized()[..head]].concat());
        for serialized in [&turned, signer.serialized(), &turned] {
            let identity = manager.identify(serialized).expect("a member");
            assert_eq!(identity.serialized(), serialized);
            assert_eq!(identity.certificate_id(), signer.certificate().id());
        }
    }
}
