//! Certificates that an operator can have rejected immediately, without changing the channel's configuration.
//!
//! A revocation list is part of a channel's configuration, so all peers apply it alike. A [`DenyList`] belongs to one
//! node and says whom this node refuses to serve. The node checks its list when a client or another node connects,
//! proposes, submits an envelope or asks for blocks, and **never during validation**: nodes with different lists reach
//! the same verdict on a block.
//!
//! 1. [`DenyList`] is a handle; [`DenyList::of_process`] is the handle that all servers in a process share.
//!    [`DenyList::replace`] replaces the entries: later checks see the new entries, and waiting callers
//!    ([`DenyList::changes`]) are notified.
//! 2. [`DenyList::check`] refuses an identity by organisation and serial number, or by fingerprint.
//!    [`DenyList::check_chain`] refuses a chain of TLS certificates by fingerprint only: a serial number says nothing
//!    without the issuer that gave it.
//!
//! The fingerprint of a certificate covers the issuer's signature. From an ECDSA signature anybody can compute a
//! second valid one, and so give the same certificate another fingerprint. Therefore an entry denies its certificate
//! under both fingerprints.
//!
//! Invariant: a check against an empty list returns at once.

use std::fmt;
use std::sync::{Arc, LazyLock};

use base::MspId;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::{self, WallTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::certificate::{CERTIFICATE_BYTES_MAX, magnitude};
use crate::der::{Curve, EcdsaSignature, push_element};
use crate::digest::{Hash, sha256};
use crate::error::Error;
use crate::event::IdentityDenied;
use crate::identity::Identity;

/// Entries of one list.
pub const DENIALS_MAX: usize = 4096;
/// The tag, length and count of unused bits before a signature of less than 127 bytes.
const BIT_STRING_HEAD_BYTES: usize = 3;

/// One entry of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denial {
    /// The certificate.
    pub holder: DeniedCertificate,
    /// The reason, for people.
    pub reason: String,
    /// The end of the denial, in seconds since the Unix epoch; `None` for ever.
    pub until: Option<i64>,
}

/// The name of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeniedCertificate {
    /// An identity's certificate, by its organisation and the serial number that the organisation gave it, big-endian.
    Serial(MspId, Vec<u8>),
    /// Any certificate, by the SHA-256 of its DER, as `openssl x509 -fingerprint -sha256` prints it.
    Fingerprint(Hash),
}

/// A list, shared by all clones.
#[derive(Clone)]
pub struct DenyList(Arc<WatchSender<Arc<[Denial]>>>);

impl Default for DenyList {
    fn default() -> DenyList {
        DenyList::new(Vec::new())
    }
}

impl fmt::Debug for DenyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DenyList").field(&self.entries()).finish()
    }
}

impl DenyList {
    /// A list with these entries.
    pub fn new(denials: Vec<Denial>) -> DenyList {
        let (list, _) = watch(denials.into());
        DenyList(Arc::new(list))
    }

    /// The list of this process, empty until the operator's entries are set. All servers in the process use it.
    pub fn of_process() -> DenyList {
        static LIST: LazyLock<DenyList> = LazyLock::new(DenyList::default);
        LIST.clone()
    }

    /// Replaces all entries by these.
    pub fn replace(&self, denials: Vec<Denial>) {
        self.0.send(denials.into());
    }

    /// Its entries.
    pub fn entries(&self) -> Arc<[Denial]> {
        self.0.borrow().clone()
    }

    /// Reports every change from now on, for a caller that keeps serving a member.
    pub fn changes(&self) -> WatchReceiver<Arc<[Denial]>> {
        self.0.subscribe()
    }

    /// Completes when the list names one of a chain of certificates in DER, at once if it does already. It ends
    /// connections that are open.
    pub async fn denies_chain(self, chain: Arc<[Vec<u8>]>) {
        // Subscribed before the check, so that a change between the two is not missed.
        let mut changes = self.changes();
        while self.check_chain(chain.iter().map(Vec::as_slice), rt::wall_now()).is_ok() {
            if changes.changed().await.is_err() {
                // The list cannot change any more.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Refuses an identity that the list names.
    ///
    /// # Errors
    /// [`Error::Denied`].
    pub fn check(&self, identity: &Identity, now: WallTime) -> Result<(), Error> {
        let entries = self.entries();
        if entries.is_empty() {
            return Ok(());
        }
        let certificate = identity.certificate();
        let by_serial =
            |msp: &MspId, serial: &[u8]| msp == identity.msp_id() && magnitude(serial) == certificate.serial();
        check(&entries, now, certificate.der(), by_serial)
    }

    /// Refuses a chain of certificates in DER of which the list names one.
    ///
    /// # Errors
    /// [`Error::Denied`].
    pub fn check_chain<'a>(&self, chain: impl IntoIterator<Item = &'a [u8]>, now: WallTime) -> Result<(), Error> {
        let entries = self.entries();
        if entries.is_empty() {
            return Ok(());
        }
        chain.into_iter().try_for_each(|der| check(&entries, now, der, |_, _| false))
    }
}

fn check(
    entries: &[Denial],
    now: WallTime,
    der: &[u8],
    by_serial: impl Fn(&MspId, &[u8]) -> bool,
) -> Result<(), Error> {
    let mut known: Option<Vec<Hash>> = None;
    let names = |holder: &DeniedCertificate| match holder {
        DeniedCertificate::Serial(msp, serial) => by_serial(msp, serial),
        DeniedCertificate::Fingerprint(hash) => known.get_or_insert_with(|| fingerprints(der)).contains(hash),
    };
    let seconds = i64::try_from(now.seconds()).unwrap_or(i64::MAX);
    let holds = |denial: &&Denial| denial.until.is_none_or(|until| seconds <= until);
    if entries.iter().filter(holds).map(|denial| &denial.holder).any(names) {
        IdentityDenied.add(1);
        return Err(Error::Denied);
    }
    Ok(())
}

/// The fingerprints of a certificate: as it is, and with the other form of an ECDSA signature.
fn fingerprints(der: &[u8]) -> Vec<Hash> {
    let mut all = vec![sha256([der])];
    all.extend([Curve::P256, Curve::P384].into_iter().filter_map(|curve| Some(sha256([&flipped(der, curve)?[..]]))));
    all
}

/// The same certificate with the other of the two signatures that its issuer's made.
fn flipped(der: &[u8], curve: Curve) -> Option<Vec<u8>> {
    if der.len() > CERTIFICATE_BYTES_MAX {
        return None;
    }
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    let signed_part: &[u8] = parsed.tbs_certificate.as_ref();
    let signature: &[u8] = &parsed.signature_value.data;
    let other = EcdsaSignature::parse(signature)?.flipped(curve)?;
    let place = |part: &[u8]| (part.as_ptr() as usize).checked_sub(der.as_ptr() as usize);
    let algorithm =
        place(signed_part)?.checked_add(signed_part.len())?..place(signature)?.checked_sub(BIT_STRING_HEAD_BYTES)?;
    let (mut bits, mut whole) = (Vec::new(), Vec::with_capacity(der.len() + 8));
    push_element(&mut bits, 0x03, &[&[0], &other]);
    push_element(&mut whole, 0x30, &[signed_part, der.get(algorithm)?, &bits]);
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::Certificate;
    use crate::issue::{CertificateTerms, IssuingOrganization};
    use crate::key::KeyKind;
    use crate::principal::MemberRole;

    fn at(seconds: u64) -> WallTime {
        WallTime::from_parts(seconds, 0)
    }

    fn denial(holder: DeniedCertificate, until: Option<i64>) -> Denial {
        Denial { holder, reason: "lost".to_owned(), until }
    }

    /// An organisation whose authority signs with ECDSA, and two of its members.
    fn members() -> (IssuingOrganization, Identity, Identity) {
        let terms = CertificateTerms::valid(KeyKind::P256, 1_000_000_000, 4_000_000_000);
        let organization = IssuingOrganization::create("A", "a.example.com", &terms).expect("founded");
        let msp = organization.membership().expect("valid");
        let member = |name: &str| {
            let signer = organization.issue(MemberRole::Client, name).expect("issued");
            msp.identify(signer.serialized()).expect("a member")
        };
        let (one, other) = (member("one"), member("other"));
        (organization, one, other)
    }

    #[test]
    fn an_entry_denies_its_certificate_by_serial_or_fingerprint_until_it_ends() {
        let (_, one, other) = members();
        let now = at(1_500_000_000);
        let list = DenyList::default();
        assert_eq!(list.check(&one, now), Ok(()));
        let serial = [&[0][..], one.certificate().serial()].concat();
        let fingerprint = sha256([&one.certificate().der()[..]]);
        for holder in
            [DeniedCertificate::Serial("A".into(), serial.clone()), DeniedCertificate::Fingerprint(fingerprint)]
        {
            list.replace(vec![denial(holder.clone(), None)]);
            assert_eq!(list.clone().check(&one, now), Err(Error::Denied), "{holder:?}");
            assert_eq!(list.check(&other, now), Ok(()));
            list.replace(vec![denial(holder.clone(), Some(1_500_000_000))]);
            assert_eq!(list.check(&one, now), Err(Error::Denied), "in its last second");
            assert_eq!(list.check(&one, at(1_500_000_001)), Ok(()), "and no longer");
        }
        list.replace(vec![denial(DeniedCertificate::Serial("B".into(), serial), None)]);
        assert_eq!(list.check(&one, now), Ok(()), "another organisation's serial number");
    }

    /// A fingerprint covers the issuer's signature, and of an ECDSA signature anybody can make a second one that
    /// verifies too: a denied holder came back with the same certificate under another fingerprint.
    #[test]
    fn the_other_form_of_the_issuers_signature_is_denied_too() {
        let (organization, one, _) = members();
        let now = at(1_500_000_000);
        let turned = one.certificate().with_flipped_signature(Curve::P256);
        assert_ne!(turned.der(), one.certificate().der());
        let fingerprint = sha256([&one.certificate().der()[..]]);
        let list = DenyList::new(vec![denial(DeniedCertificate::Fingerprint(fingerprint), None)]);
        assert_eq!(list.check_chain([&turned.der()[..]], now), Err(Error::Denied));
        let tls = organization.issue_tls(MemberRole::Peer, "peer0", &[]).expect("issued");
        let tls = Certificate::from_pem(&tls.certificate_pem).expect("a certificate");
        assert_eq!(list.check_chain([&tls.der()[..], one.certificate().der()], now), Err(Error::Denied), "in a chain");
        assert_eq!(list.check_chain([&tls.der()[..]], now), Ok(()));
        assert_eq!(list.check_chain([&b"no certificate"[..]], now), Ok(()), "that is for others to refuse");
    }
}
