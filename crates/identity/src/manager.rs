//! The organisations of one channel, and the identities of their members.
//!
//! [`MspManager::identify`] is asked several times for each transaction, mostly for the same few holders, and by anybody: an
//! identity comes with a message before its signature is checked. So valid ones are remembered, each organisation's by
//! themselves:
//!
//! 1. By their bytes. A hit costs a hash and a comparison.
//! 2. By their certificate. One certificate has many serialized forms: PEM may break lines anywhere, and what stands before its
//!    block does not count. Another form of a remembered certificate is decoded anew, but no chain is verified.
//! 3. Otherwise the certificate's chain is verified, and the identity is remembered in both ways.
//!
//! Of one certificate its usual form is remembered by its bytes, the one that Fabric's tools write, and one other if that
//! was there when the certificate was first seen.
//!
//! Invariants: what is remembered never changes an answer; only valid identities are remembered, so that nobody without a certificate
//! of the channel can push others out; the members of one organisation push out members of that one alone, and who has one
//! certificate fills two places, whatever forms of it he shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::MspId;
use bytes::Bytes;

use crate::cache::{Cache, ENTRIES_DEFAULT};
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
    organizations: BTreeMap<MspId, Organization>,
}

#[derive(Debug)]
struct Organization {
    msp: Arc<Msp>,
    by_bytes: Cache,
    by_certificate: Cache,
}

impl MspManager {
    /// Takes the organisations. Where two share a name, as an organisation that both orders and endorses does, either
    /// will do: the configuration that names it twice must define it the same.
    pub fn new(msps: impl IntoIterator<Item = Arc<Msp>>) -> MspManager {
        MspManager::with_cache(msps, ENTRIES_DEFAULT)
    }

    /// As [`MspManager::new`], remembering about this many identities, an equal part of them for each organisation.
    pub fn with_cache(msps: impl IntoIterator<Item = Arc<Msp>>, identities: usize) -> MspManager {
        let msps: BTreeMap<MspId, Arc<Msp>> = msps.into_iter().map(|msp| (msp.id().clone(), msp)).collect();
        let each = identities / msps.len().max(1);
        let organization = |msp| Organization { msp, by_bytes: Cache::new(each), by_certificate: Cache::new(each) };
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
    use crate::issue::{Organization as Founded, Terms};
    use crate::principal::Role;

    fn founded(msp: &str, seed: u8) -> Founded {
        Founded::found(msp, &format!("{}.example.com", msp.to_lowercase()), &Terms::seeded([seed; 32]))
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
        let of_b: Vec<_> = (0..8).map(|n| b.issue(Role::Client, &format!("u{n}")).expect("issued")).collect();
        of_b.iter().for_each(|signer| drop(manager.identify(signer.serialized()).expect("a member")));
        let kept = manager.organizations[b.msp_id()].by_bytes.len();
        for n in 0..500 {
            manager.identify(a.issue(Role::Client, &format!("u{n}")).expect("issued").serialized()).expect("a member");
        }
        assert_eq!(manager.organizations[b.msp_id()].by_bytes.len(), kept);
        assert!(manager.remembered() <= 128);
    }

    #[test]
    fn an_unusual_order_of_fields_is_the_same_identity() {
        let a = founded("A", 1);
        let manager = manager(&[&a]);
        let signer = a.issue(Role::Client, "u").expect("issued");
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
