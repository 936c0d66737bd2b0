//! Sending one certificate in many forms evicts no other identity and costs no further verification of its chain. The
//! test has a process to itself, because it counts the chains that are verified.

use std::sync::Arc;

use bytes::Bytes;
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{MemberRole, MspManager, event};
use prost::Message as _;
use proto::msp::SerializedIdentity;

/// PEM has as many forms of one certificate as anybody likes. Each was a new identity to the cache: one member pushed all
/// others out of it, and made every call cost the verification of a chain.
#[test]
fn forms_of_one_certificate_neither_push_others_out_nor_cost_a_chain() {
    let organizations = [("A", 1), ("B", 2)].map(|(msp, seed)| {
        IssuingOrganization::create(
            msp,
            &format!("{}.example.com", msp.to_lowercase()),
            &CertificateTerms::seeded([seed; 32]),
        )
        .expect("founded")
    });
    let [a, b] = &organizations;
    let members = MspManager::new(organizations.iter().map(|one| Arc::new(one.membership().expect("valid"))));
    let mut regulars: Vec<_> =
        (0..100).map(|n| a.issue(MemberRole::Client, &format!("u{n}")).expect("issued")).collect();
    regulars.push(b.issue(MemberRole::Peer, "peer0").expect("issued"));
    for signer in &regulars {
        members.identify(signer.serialized()).expect("a member");
    }
    let remembered = members.remembered();
    let churning = a.issue(MemberRole::Client, "churn").expect("issued");
    let usual = SerializedIdentity::decode(churning.serialized().clone()).expect("well formed");
    let before = event::IdentityValidated.value();
    for number in 0..10_000 {
        let id_bytes = [format!("note {number}\n").as_bytes(), &usual.id_bytes].concat().into();
        let form = Bytes::from(SerializedIdentity { id_bytes, ..usual.clone() }.encode_to_vec());
        let identity = members.identify(&form).expect("the same holder");
        assert_eq!(identity.certificate_id(), churning.certificate().id());
        assert_eq!(*identity.serialized(), form, "the bytes are those that were asked for");
    }
    members.identify(churning.serialized()).expect("the usual form");
    assert_eq!(event::IdentityValidated.value() - before, 1, "one chain for all forms");
    assert_eq!(members.remembered(), remembered + 2, "the first form, and the usual one");
    for signer in &regulars {
        members.identify(signer.serialized()).expect("a member");
    }
    assert_eq!(event::IdentityValidated.value() - before, 1, "everybody else is remembered still");
}
