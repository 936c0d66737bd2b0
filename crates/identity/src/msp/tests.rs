use base::rt::WallTime;
use bytes::Bytes;
use proptest::prelude::*;
use proto::msp::{FabricMspConfig, FabricNodeOUs, FabricOuIdentifier};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose,
};

use super::*;
use crate::issue::{CertificateAuthority, CertificateTerms, IssuingOrganization};
use crate::key::KeyKind;
use crate::principal::Principal;

const MSP: &str = "AMSP";

fn terms() -> CertificateTerms {
    CertificateTerms::seeded([1; 32])
}

fn organization() -> IssuingOrganization {
    IssuingOrganization::create(MSP, "a.example.com", &terms()).expect("founded")
}

fn serialized(pem: &Bytes) -> Bytes {
    encode_serialized(MSP, pem)
}

fn with_unit(unit: &'static str) -> impl FnOnce(&mut CertificateParams) {
    move |params| params.distinguished_name.push(DnType::OrganizationalUnitName, unit)
}

/// Validates what the organisation's authority issues after a test's change.
fn validate(edit: impl FnOnce(&mut CertificateParams)) -> Result<Identity, Error> {
    let organization = organization();
    let (pem, _) = organization.authority().issue_with("x", edit);
    organization.membership().expect("valid").identify(&serialized(&pem))
}

fn reason(result: Result<Identity, Error>) -> String {
    match result.expect_err("refused") {
        Error::ForeignChain { reason, .. } | Error::WrongOrganizationalUnit { reason, .. } => reason.to_owned(),
        other => other.to_string(),
    }
}

#[test]
fn units_give_roles_and_each_identity_has_one() {
    let organization = organization();
    let msp = organization.membership().expect("valid");
    for role in [MemberRole::Client, MemberRole::Peer, MemberRole::Admin, MemberRole::Orderer] {
        let signer = organization.issue(role, "x").expect("issued");
        let identity = msp.identify(signer.serialized()).expect("valid");
        for other in MemberRole::ALL {
            assert_eq!(identity.has_role(other), other == role || other == MemberRole::Member, "{role:?} as {other:?}");
            let principal = Principal::from_wire(&Principal::role_to_wire(MSP, other));
            assert_eq!(identity.satisfies(&principal), other == role || other == MemberRole::Member);
            assert!(!identity.satisfies(&Principal::role("BMSP", other)));
        }
    }
}

#[test]
fn identities_without_exactly_one_unit_are_refused() {
    assert!(validate(with_unit("client")).is_ok());
    assert!(reason(validate(|_| {})).contains("not marked"));
    assert!(reason(validate(with_unit("intruder"))).contains("not marked"));
    let twice = validate(|params| {
        // The certificate writer holds one attribute of a type; the number of the type is another type to it.
        params.distinguished_name.push(DnType::OrganizationalUnitName, "client");
        params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 11]), "admin");
    });
    assert!(reason(twice).contains("more than one"));
}

#[test]
fn chains_that_fabric_would_refuse_are_refused() {
    let server_only = |params: &mut CertificateParams| {
        with_unit("client")(params);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    };
    assert!(reason(validate(server_only)).contains("extended key usage"));
    let critical = |params: &mut CertificateParams| {
        with_unit("client")(params);
        let mut extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
        extension.set_criticality(true);
        params.custom_extensions.push(extension);
    };
    assert!(reason(validate(critical)).contains("critical"));
    let before_its_authority = |params: &mut CertificateParams| {
        with_unit("client")(params);
        params.not_before -= time::Duration::days(1);
    };
    assert!(reason(validate(before_its_authority)).contains("no chain"));
    let authority = |params: &mut CertificateParams| {
        with_unit("client")(params);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    };
    assert_eq!(validate(authority).expect_err("refused"), Error::AuthorityAsIdentity);
}

#[test]
fn certificates_of_a_namesake_authority_are_foreign() {
    // Same names, other keys.
    let impostor =
        IssuingOrganization::create(MSP, "a.example.com", &CertificateTerms::seeded([2; 32])).expect("founded");
    let signer = impostor.issue(MemberRole::Admin, "x").expect("issued");
    let msp = organization().membership().expect("valid");
    assert!(reason(msp.identify(signer.serialized())).contains("none of the organisation's authorities"));
}

#[test]
fn an_identity_cannot_issue_identities() {
    let organization = organization();
    let (pem, key) = organization.authority().issue_with("x", with_unit("client"));
    // The writer does not care whether the issuer is an authority; we do.
    let rogue = CertificateAuthority::new_for_tests(terms(), pem, key);
    let (pem, _) = rogue.issue_with("y", with_unit("admin"));
    let msp = organization.membership().expect("valid");
    assert!(reason(msp.identify(&serialized(&pem))).contains("none of the organisation's authorities"));
}

#[test]
fn revoked_certificates_are_refused_once_the_list_is_defined() {
    let organization = organization();
    let taken_back = organization.issue(MemberRole::Peer, "bad").expect("issued");
    let kept = organization.issue(MemberRole::Peer, "good").expect("issued");
    let mut definition = organization.definition();
    let list = organization.authority().revoke(&[taken_back.certificate()]).expect("a list");
    definition.revocation_list = vec![list];
    let msp = Msp::from_fabric(&definition).expect("valid");
    assert_eq!(msp.identify(taken_back.serialized()).expect_err("refused"), Error::Revoked);
    assert!(msp.identify(kept.serialized()).is_ok());
    // A list whose signature is not the authority's revokes nothing, whatever authority it names.
    let mut forged = crate::certificate::pem_contents(&definition.revocation_list[0], "X509 CRL", 4096).expect("PEM");
    *forged.last_mut().expect("not empty") ^= 1;
    definition.revocation_list = vec![forged.into()];
    let msp = Msp::from_fabric(&definition).expect("valid");
    assert!(msp.identify(taken_back.serialized()).is_ok());
    // Nor does a list of another authority.
    let impostor =
        IssuingOrganization::create(MSP, "a.example.com", &CertificateTerms::seeded([2; 32])).expect("founded");
    definition.revocation_list = vec![impostor.authority().revoke(&[taken_back.certificate()]).expect("a list")];
    let msp = Msp::from_fabric(&definition).expect("valid");
    assert!(msp.identify(taken_back.serialized()).is_ok());
}

#[test]
fn expiry_is_a_separate_question() {
    let organization = organization();
    let msp = organization.membership().expect("valid");
    let (pem, _) = organization.authority().issue_with("x", |params| {
        with_unit("client")(params);
        params.not_after = params.not_before + time::Duration::seconds(100);
    });
    let identity = msp.identify(&serialized(&pem)).expect("valid although long expired");
    let end = u64::try_from(identity.not_after()).expect("after 1970");
    assert!(!identity.expired_at(WallTime::from_parts(end, 0)));
    assert!(identity.expired_at(WallTime::from_parts(end, 1)));
    assert_eq!(identity.check_expiry(WallTime::from_parts(end + 7, 0)), Err(Error::Expired { seconds: 7 }));
}

#[test]
fn intermediate_authorities_issue_and_then_their_parents_do_not() {
    let organization = organization();
    let root = organization.authority();
    let middle = root.intermediate("middle", "a.example.com").expect("made");
    let mut definition = organization.definition();
    definition.fabric_node_ous = None;
    let admin = middle.issue_with("admin", |_| {}).0;
    definition.admins = vec![admin.clone()];
    definition.intermediate_certs = vec![middle.certificate_pem().clone()];
    let msp = Msp::from_fabric(&definition).expect("valid");
    let admin = msp.identify(&serialized(&admin)).expect("valid");
    assert!(admin.has_role(MemberRole::Admin) && !admin.has_role(MemberRole::Client));
    let (pem, _) = root.issue_with("x", |_| {});
    assert!(reason(msp.identify(&serialized(&pem))).contains("issues authorities only"));
    // Without the intermediate the admin has no chain at all.
    definition.intermediate_certs.clear();
    assert!(matches!(Msp::from_fabric(&definition), Err(Error::MspDefinition { .. })));
}

#[test]
fn path_lengths_and_key_usages_of_authorities_bind() {
    let organization = organization();
    let root = organization.authority();
    let short = root.intermediate_with("short", |params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)));
    let deep = short.intermediate("deep", "a.example.com").expect("made");
    let define = |intermediates: &[&CertificateAuthority]| FabricMspConfig {
        intermediate_certs: intermediates.iter().map(|a| a.certificate_pem().clone()).collect(),
        ..organization.definition()
    };
    assert!(Msp::from_fabric(&define(&[&short])).is_ok());
    // The intermediate itself may still exist; what it issues may not.
    let msp = Msp::from_fabric(&define(&[&short, &deep])).expect("valid");
    let (pem, _) = deep.issue_with("x", with_unit("client"));
    assert!(reason(msp.identify(&serialized(&pem))).contains("no chain"));

    let mute = root.intermediate_with("mute", |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]);
    let msp = Msp::from_fabric(&define(&[&mute])).expect("valid");
    let (pem, _) = mute.issue_with("x", with_unit("client"));
    assert!(reason(msp.identify(&serialized(&pem))).contains("no chain"));
}

#[test]
fn pinned_units_count_from_their_authority_only() {
    let organization = organization();
    let root = organization.authority();
    let [first, second] = ["first", "second"].map(|name| root.intermediate(name, "a.example.com").expect("made"));
    let unit = |name: &str, authority: Option<&CertificateAuthority>| {
        Some(FabricOuIdentifier {
            certificate: authority.map(|a| a.certificate_pem().clone()).unwrap_or_default(),
            organizational_unit_identifier: name.to_owned(),
        })
    };
    let definition = FabricMspConfig {
        intermediate_certs: [&first, &second].map(|a| a.certificate_pem().clone()).to_vec(),
        fabric_node_ous: Some(FabricNodeOUs {
            enable: true,
            peer_ou_identifier: unit("peer", Some(&first)),
            admin_ou_identifier: unit("boss", None),
            ..FabricNodeOUs::default()
        }),
        ..organization.definition()
    };
    let msp = Msp::from_fabric(&definition).expect("valid");
    let identify = |authority: &CertificateAuthority, unit| {
        msp.identify(&serialized(&authority.issue_with("x", with_unit(unit)).0))
    };
    assert!(identify(&first, "peer").expect("valid").has_role(MemberRole::Peer));
    assert!(reason(identify(&second, "peer")).contains("another authority"));
    assert!(identify(&second, "boss").expect("valid").has_role(MemberRole::Admin));
    assert!(reason(identify(&first, "client")).contains("not marked"));

    // An organisational unit as a principal asks for unit and chain.
    let identity = identify(&first, "peer").expect("valid");
    let principal =
        |certifiers: Bytes| Principal::OrganizationalUnit { msp: MSP.into(), unit: "peer".to_owned(), certifiers };
    let chain = crate::digest::sha256([&first.certificate().der()[..], root.certificate().der()]);
    assert!(identity.satisfies(&principal(Bytes::copy_from_slice(&chain))));
    assert!(!identity.satisfies(&principal(Bytes::from_static(&[0; 32]))));
}

#[test]
fn required_units_bind_where_nodes_are_not_marked() {
    let organization = organization();
    let definition = FabricMspConfig {
        fabric_node_ous: None,
        admins: vec![organization.authority().issue_with("admin", with_unit("sales")).0],
        organizational_unit_identifiers: vec![FabricOuIdentifier {
            certificate: organization.authority().certificate_pem().clone(),
            organizational_unit_identifier: "sales".to_owned(),
        }],
        ..organization.definition()
    };
    let msp = Msp::from_fabric(&definition).expect("valid");
    let identify = |unit| msp.identify(&serialized(&organization.authority().issue_with("x", with_unit(unit)).0));
    assert!(identify("sales").expect("valid").has_role(MemberRole::Member));
    assert!(reason(identify("peer")).contains("required units"));
}

/// Spoils a good definition.
type Spoil<'a> = Box<dyn Fn(&mut FabricMspConfig) + 'a>;

#[test]
fn definitions_that_contradict_themselves_are_refused() {
    let organization = organization();
    let good = organization.definition();
    let (leaf, _) = organization.authority().issue_with("x", with_unit("peer"));
    let cases: Vec<(&str, Spoil<'_>)> = vec![
        ("no name", Box::new(|d| d.name.clear())),
        ("no root", Box::new(|d| d.root_certs.clear())),
        ("leaf as root", Box::new(|d| d.root_certs = vec![leaf.clone()])),
        ("root is not PEM", Box::new(|d| d.root_certs = vec![Bytes::from_static(b"nonsense")])),
        ("nobody administers", Box::new(|d| d.fabric_node_ous = None)),
        ("administrator is a peer", Box::new(|d| d.admins = vec![leaf.clone()])),
        (
            "foreign intermediate",
            Box::new(|d| {
                let other = IssuingOrganization::create("B", "b.example.com", &CertificateTerms::seeded([2; 32]))
                    .expect("founded");
                let foreign = other.authority().intermediate("m", "b.example.com").expect("made");
                d.intermediate_certs = vec![foreign.certificate_pem().clone()];
            }),
        ),
        ("SHA3", Box::new(|d| d.crypto_config.get_or_insert_default().signature_hash_family = "SHA3".to_owned())),
        ("revocation list is nonsense", Box::new(|d| d.revocation_list = vec![Bytes::from_static(b"nonsense")])),
        (
            "unit of a stranger",
            Box::new(|d| {
                let unit =
                    FabricOuIdentifier { certificate: leaf.clone(), organizational_unit_identifier: "u".to_owned() };
                d.organizational_unit_identifiers = vec![unit];
            }),
        ),
    ];
    assert!(Msp::from_fabric(&good).is_ok());
    for (name, spoil) in cases {
        let mut bad = good.clone();
        spoil(&mut bad);
        assert!(Msp::from_fabric(&bad).is_err(), "{name}");
    }
}

#[test]
fn a_root_with_a_high_s_signature_names_the_same_chain_as_fabric_does() {
    // An authority outside our control may sign its own certificate either way. Fabric lowers S before it hashes.
    let terms = CertificateTerms::starting_now(KeyKind::P256);
    let organization = IssuingOrganization::create(MSP, "a.example.com", &terms).expect("founded");
    let low = organization.authority().certificate();
    let high = low.with_flipped_signature(crate::der::Curve::P256);
    assert_ne!(low.der(), high.der());
    assert_eq!(high.id(), low.id());
    assert!(high.is_signed_by(low));
    assert_eq!(high.canonical_der(low.key()), low.der());
    assert_eq!(low.canonical_der(low.key()), low.der());
}

fn arbitrary_definition() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..400)
}

proptest! {
    #[test]
    fn decoders_survive_random_bytes(bytes in arbitrary_definition()) {
        let bytes = Bytes::from(bytes);
        let _ = Msp::from_config(&bytes);
        let _ = decode_serialized(&bytes);
        let _ = Certificate::from_der(bytes.clone());
        let _ = Certificate::from_pem(&bytes);
        let _ = RevocationList::parse(&bytes);
    }

    // The parser of certificates takes any class of tag around the signed part: 0xf0 for 0x30 once went through, so that one
    // certificate had several encodings.
    #[test]
    fn damaged_certificates_are_refused(position in any::<prop::sample::Index>(), mask in 1u8.., cut in any::<prop::sample::Index>()) {
        let organization = organization();
        let signer = organization.issue(MemberRole::Peer, "x").expect("issued");
        let msp = organization.membership().expect("valid");
        let mut der = signer.certificate().der().to_vec();
        let at = position.index(der.len());
        der[at] ^= mask;
        // Whatever a flipped byte does, the certificate is not accepted as this holder's any more.
        let pem = crate::certificate::to_pem("CERTIFICATE", &der);
        prop_assert!(msp.identify(&serialized(&pem.into())).is_err());
        der.truncate(cut.index(der.len()));
        prop_assert!(Certificate::from_der(der.into()).is_err());
    }
}

#[test]
fn no_single_byte_of_a_certificate_can_be_changed() {
    let organization = organization();
    let signer = organization.issue(MemberRole::Peer, "x").expect("issued");
    let msp = organization.membership().expect("valid");
    let der = signer.certificate().der();
    for position in 0..der.len() {
        for mask in [1, 0x20, 0x40, 0x80, 0xc0, 0xff] {
            let mut bad = der.to_vec();
            bad[position] ^= mask;
            let pem = crate::certificate::to_pem("CERTIFICATE", &bad);
            assert!(msp.identify(&serialized(&pem.into())).is_err(), "byte {position} with {mask:#x}");
        }
    }
}
