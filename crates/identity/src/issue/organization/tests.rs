#![allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::issue::directory::MspDirectory;
use crate::key::KeyKind;
use crate::manager::MspManager;

fn all_terms() -> [CertificateTerms; 4] {
    [
        CertificateTerms::starting_now(KeyKind::P256),
        CertificateTerms::starting_now(KeyKind::P384),
        CertificateTerms::starting_now(KeyKind::Ed25519),
        CertificateTerms::seeded([9; 32]),
    ]
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("exists").permissions().mode() & 0o777
}

#[test]
fn what_is_issued_and_written_reads_back_and_identifies() {
    for terms in all_terms() {
        let temporary = tempfile::tempdir().expect("a directory");
        let root = temporary.path().join("org1");
        let organization = IssuingOrganization::create("Org1MSP", "org1.example.com", &terms).expect("founded");
        organization.write(&root).expect("written");
        let peer = root.join("peers/peer0.org1.example.com");
        let issued = organization.issue(MemberRole::Peer, "peer0").expect("issued");
        organization.write_identity(&peer, &issued).expect("written");

        let directory = MspDirectory::read(&peer.join("msp")).expect("read");
        assert_eq!(directory.definition("Org1MSP"), organization.definition());
        let signer = directory.signer("Org1MSP").expect("read");
        assert_eq!(signer.serialized(), issued.serialized());
        assert_eq!(signer.certificate().common_name(), "peer0.org1.example.com");

        let msp = Msp::from_fabric(&directory.definition("Org1MSP")).expect("valid");
        let members = MspManager::new([Arc::new(msp)]);
        let identity = members.identify(signer.serialized()).expect("a member");
        assert!(identity.has_role(MemberRole::Peer));
        assert!(!identity.expired_at(base::rt::wall_now()));
        let signature = signer.sign(b"message");
        assert_eq!(identity.verify(b"message", &signature), Ok(()));
        assert!(identity.verify(b"massage", &signature).is_err());

        // The organisation that is read back issues members of the same organisation.
        let again = IssuingOrganization::read("Org1MSP", "org1.example.com", &root, &terms).expect("read");
        let user = again.issue(MemberRole::Client, "User1").expect("issued");
        assert_eq!(user.certificate().common_name(), "User1@org1.example.com");
        assert!(members.identify(user.serialized()).expect("a member").has_role(MemberRole::Client));
        assert_eq!(again.definition(), organization.definition());
    }
}

#[test]
fn keys_and_directories_are_their_owners_alone() {
    let temporary = tempfile::tempdir().expect("a directory");
    let root = temporary.path().join("org");
    let organization =
        IssuingOrganization::create("AMSP", "a.example.com", &CertificateTerms::seeded([1; 32])).expect("founded");
    organization.write(&root).expect("written");
    let signer = organization.issue(MemberRole::Admin, "Admin").expect("issued");
    let user = root.join("users/Admin@a.example.com");
    // Written twice: a second run replaces files without loosening them.
    for _ in 0..2 {
        organization.write_identity(&user, &signer).expect("written");
        let tls = organization.issue_tls(MemberRole::Admin, "Admin", &[]).expect("issued");
        tls.write(&user, MemberRole::Admin).expect("written");
    }
    for secret in ["ca/priv_sk", "tlsca/priv_sk"] {
        assert_eq!(mode(&root.join(secret)), 0o600, "{secret}");
    }
    for secret in ["msp/keystore/priv_sk", "tls/client.key"] {
        assert_eq!(mode(&user.join(secret)), 0o600, "{secret}");
    }
    for directory in [&root, &root.join("ca"), &user, &user.join("msp"), &user.join("msp/keystore"), &user.join("tls")]
    {
        assert_eq!(mode(directory), 0o700, "{}", directory.display());
    }
    let names: Vec<_> = std::fs::read_dir(user.join("msp/signcerts")).expect("read").collect();
    assert_eq!(names.len(), 1, "no temporary file is left behind");
}

#[test]
fn tls_certificates_name_their_hosts_and_chain_to_the_tls_authority() {
    let temporary = tempfile::tempdir().expect("a directory");
    for terms in all_terms() {
        let organization = IssuingOrganization::create("AMSP", "a.example.com", &terms).expect("founded");
        let hosts = ["localhost", "127.0.0.1", "::1", "localhost"];
        let tls = organization.issue_tls(MemberRole::Peer, "peer0", &hosts).expect("issued");
        let certificate = crate::Certificate::from_pem(&tls.certificate_pem).expect("a certificate");
        assert_eq!(certificate.names(), ["peer0.a.example.com", "peer0", "localhost", "127.0.0.1", "::1"]);
        assert!(certificate.is_signed_by(organization.tls_authority().certificate()));
        assert!(!certificate.is_signed_by(organization.authority().certificate()));
        assert_eq!(&tls.authority_pem, organization.tls_authority().certificate_pem());
        tls.write(temporary.path(), MemberRole::Peer).expect("written");
        let again = TlsIdentity::read(temporary.path(), MemberRole::Peer).expect("read");
        assert_eq!((again.certificate_pem, again.key_pem), (tls.certificate_pem, tls.key_pem));
    }
}

#[test]
fn a_seed_gives_the_same_network_on_every_run_and_in_any_order() {
    let found = |seed| {
        IssuingOrganization::create("AMSP", "a.example.com", &CertificateTerms::seeded([seed; 32])).expect("founded")
    };
    let issue = |organization: &IssuingOrganization, name| organization.issue(MemberRole::Peer, name).expect("issued");
    let (first, second) = (found(1), found(1));
    assert_eq!(first.definition(), second.definition());
    let (a, b) = (issue(&first, "peer0"), issue(&first, "peer1"));
    let (d, c) = (issue(&second, "peer1"), issue(&second, "peer0"));
    assert_eq!(a.serialized(), c.serialized());
    assert_eq!(b.serialized(), d.serialized());
    assert_ne!(a.serialized(), b.serialized());
    assert_eq!(a.sign(b"message"), c.sign(b"message"));
    assert_ne!(found(2).definition(), first.definition());
    // Pinned, so that a new release of a library does not change recorded simulations unnoticed.
    let digest = hex::encode(crate::digest::sha256([&a.serialized()[..]]));
    assert_eq!(digest, "f272fcb1453b54b183bd22daa8ae166e05d3ba81c84087dbbf645ad302b686bb");
}

#[test]
fn a_key_that_is_not_the_certificates_is_refused() {
    let organization =
        IssuingOrganization::create("AMSP", "a.example.com", &CertificateTerms::seeded([1; 32])).expect("founded");
    let [a, b] = ["a", "b"].map(|name| organization.issue(MemberRole::Peer, name).expect("issued"));
    let key = b.key_pem().expect("exported");
    let error = Signer::from_pem("AMSP", a.certificate_pem(), key.as_bytes()).expect_err("refused");
    assert!(matches!(error, Error::PrivateKey(_)));
    assert!(Signer::from_pem("AMSP", b.certificate_pem(), key.as_bytes()).is_ok());
    assert!(Signer::from_pem("AMSP", b.certificate_pem(), b"nonsense").is_err());
}

#[test]
fn a_certificate_file_with_remarks_around_it_names_the_same_identity() {
    let organization =
        IssuingOrganization::create("AMSP", "a.example.com", &CertificateTerms::seeded([1; 32])).expect("founded");
    let signer = organization.issue(MemberRole::Peer, "a").expect("issued");
    let file = [b"subject: a\r\n", &signer.certificate_pem()[..], b"\n\n"].concat();
    let again = Signer::from_pem("AMSP", &file, signer.key_pem().expect("exported").as_bytes()).expect("read");
    assert_eq!(again.serialized(), signer.serialized());
}

#[test]
fn unknown_configuration_is_refused_not_ignored() {
    let temporary = tempfile::tempdir().expect("a directory");
    let organization =
        IssuingOrganization::create("AMSP", "a.example.com", &CertificateTerms::seeded([1; 32])).expect("founded");
    organization.write(temporary.path()).expect("written");
    let msp = temporary.path().join("msp");
    assert!(MspDirectory::read(&msp).is_ok());
    let config = msp.join("config.yaml");
    for text in ["OrganizationalUnitIdentifiers:\n  - Certificate: x\n", "NodeOUs:\n  Surprise: 1\n", "Other: 1\n"] {
        std::fs::write(&config, text).expect("written");
        assert!(MspDirectory::read(&msp).is_err(), "{text}");
    }
    std::fs::remove_file(&config).expect("removed");
    let directory = MspDirectory::read(&msp).expect("read");
    assert_eq!(directory.definition("AMSP").fabric_node_ous, None);
    assert!(matches!(directory.signer("AMSP"), Err(Error::File { .. })));
}

proptest! {
    #[test]
    fn keys_of_random_bytes_are_refused(key in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(crate::key::PrivateKey::from_der(&key).is_err());
        let organization = IssuingOrganization::create("AMSP", "a.example.com", &CertificateTerms::seeded([1; 32])).expect("founded");
        let pem = crate::certificate::to_pem("PRIVATE KEY", &key);
        let certificate = organization.issue(MemberRole::Peer, "a").expect("issued").certificate_pem().clone();
        prop_assert!(Signer::from_pem("AMSP", &certificate, pem.as_bytes()).is_err());
        prop_assert!(Signer::from_pem("AMSP", &certificate, &key).is_err());
    }

    #[test]
    fn configuration_files_of_random_text_do_not_panic(text in ".{0,200}") {
        let temporary = tempfile::tempdir().expect("a directory");
        std::fs::write(temporary.path().join("config.yaml"), text).expect("written");
        let _ = MspDirectory::read(temporary.path());
    }
}
