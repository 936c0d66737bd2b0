//! A process that accepted an invalid signature ends itself. The test runs such a process as its child.

use std::process::Command;

use base::rt;
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::verifier::RECHECKED_ONE_IN;
use identity::{KeyKind, MemberRole, SignatureClaim, SignatureVerifier};

const CHILD: &str = "HEDDLE_TEST_OF_A_WRONG_VERDICT";

#[test]
fn a_process_that_took_a_wrong_signature_ends_and_says_with_what() {
    if std::env::var_os(CHILD).is_some() {
        take_wrong_signatures();
        return;
    }
    let program = std::env::current_exe().expect("this program has a path");
    let test = "a_process_that_took_a_wrong_signature_ends_and_says_with_what";
    let run = Command::new(program).args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(70), "{said}");
    for part in ["verify = \"library\"", "key 04", "digest ", "signature 30", "path "] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// Two in a row are never chosen further apart than twice the usual distance.
fn take_wrong_signatures() {
    let organization = IssuingOrganization::create("A", "example.com", &CertificateTerms::starting_now(KeyKind::P256))
        .expect("founded");
    let signer = organization.issue(MemberRole::Peer, "peer0").expect("issued");
    let identity = organization.membership().expect("valid").identify(signer.serialized()).expect("a member");
    let signature = signer.sign(b"message");
    for _ in 0..=2 * RECHECKED_ONE_IN {
        rt::inject_fault("identity.verifier.mutant.accepts");
        let taken = SignatureVerifier::Tables.verify(&SignatureClaim::new(&identity, b"another", &signature));
        assert_eq!(taken, Ok(()), "what is not chosen is taken");
    }
}
