//! Decoders of `identity`: certificates, identities, organisations' definitions, policies.

use std::sync::{Arc, LazyLock};

use base::Bytes;
use base::fuzz::{Shape, Target, untrusted, within};
use identity::issue::{Organization, Terms};
use identity::policy::{self, ApplicationPolicy, SignaturePolicy};
use identity::{Certificate, Claim, Msp, MspManager, Policy, Role, Verifier};
use prost::Message;
use proto::common::SignaturePolicyEnvelope;
use proto::msp::{MspConfig, SerializedIdentity};

/// The targets of this module.
pub const TARGETS: &[Target] = &[
    Target { name: "identity-certificate-der", shape: Shape::Der, run: certificate_der, seeds: certificates_der },
    Target { name: "identity-certificate-pem", shape: Shape::Bytes, run: certificate_pem, seeds: certificates_pem },
    Target { name: "identity-serialized", shape: Shape::Protobuf, run: serialized, seeds: serialized_seeds },
    Target { name: "identity-msp", shape: Shape::Protobuf, run: msp, seeds: msp_seeds },
    Target { name: "identity-crl", shape: Shape::Der, run: crl, seeds: crl_seeds },
    Target { name: "identity-policy", shape: Shape::Protobuf, run: policy, seeds: policy_seeds },
    Target { name: "identity-policy-application", shape: Shape::Protobuf, run: application, seeds: application_seeds },
    Target { name: "identity-policy-text", shape: Shape::Bytes, run: policy_text, seeds: policy_texts },
    Target { name: "identity-signature", shape: Shape::Der, run: signature, seeds: signatures },
];

/// How many times their size definitions of organisations and policies may take alone. A protobuf library decodes
/// them, and makes an element of a list of each part: up to 200 bytes where the part has two. An operator gives them to a node in
/// files. From elsewhere they come within a channel's configuration, which is refused before they are decoded where it would take more
/// than four times its size: that is held to in the target `ledger-config`.
const DEFINED_TIMES: usize = 200;

pub(crate) fn organization() -> &'static Organization {
    static FOUNDED: LazyLock<Organization> = LazyLock::new(|| {
        Organization::found("Org1MSP", "org1.example.com", &Terms::seeded([7; 32])).expect("a seeded founding succeeds")
    });
    &FOUNDED
}

fn client() -> identity::Signer {
    organization().issue(Role::Client, "User1").expect("a founded organisation issues")
}

fn pem_of(serialized: &[u8]) -> Bytes {
    SerializedIdentity::decode(serialized).expect("a signer's own identity decodes").id_bytes
}

fn certificates_pem() -> Vec<Vec<u8>> {
    let issued = pem_of(client().serialized()).to_vec();
    vec![organization().authority().certificate_pem().to_vec(), issued]
}

fn certificates_der() -> Vec<Vec<u8>> {
    let tls = organization().issue_tls(Role::Peer, "peer0", &["localhost", "127.0.0.1"]).expect("it issues");
    let pems = certificates_pem().into_iter().chain([tls.certificate_pem.to_vec()]);
    pems.map(|pem| Certificate::from_pem(&pem).expect("an issued certificate is read").der().to_vec()).collect()
}

fn certificate_der(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(certificate) = untrusted(input, || Certificate::from_der(bytes)) else { return };
    assert_eq!(certificate.der()[..], *input, "a certificate has one encoding");
    // What signatures over it say does not matter; that they are looked at without a panic does.
    let _ = Verifier::of_process().verify(&Claim::by_key(certificate.key(), b"message", b"signature"));
}

fn certificate_pem(input: &[u8]) {
    if let Ok(certificate) = untrusted(input, || Certificate::from_pem(input)) {
        let again = Certificate::from_der(certificate.der().clone()).expect("what was read from PEM is DER");
        assert_eq!(again.id(), certificate.id());
    }
}

fn serialized_seeds() -> Vec<Vec<u8>> {
    vec![client().serialized().to_vec()]
}

/// An identity goes through the organisation's whole validation.
fn serialized(input: &[u8]) {
    static MEMBERS: LazyLock<MspManager> =
        LazyLock::new(|| MspManager::new([Arc::new(organization().membership().expect("a founded organisation"))]));
    let bytes = Bytes::copy_from_slice(input);
    let members = &*MEMBERS;
    if let Ok(identity) = untrusted(input, || members.identify(&bytes)) {
        assert_eq!(identity.serialized()[..], *input);
        assert_eq!(identity.msp_id().as_str(), "Org1MSP");
        let decoded = SerializedIdentity::decode(input).expect("it was accepted");
        assert_eq!(decoded.mspid, "Org1MSP");
    }
}

fn msp_seeds() -> Vec<Vec<u8>> {
    let wrap = |definition: proto::msp::FabricMspConfig| {
        MspConfig { config: definition.encode_to_vec().into(), ..MspConfig::default() }.encode_to_vec()
    };
    let mut revoking = organization().definition();
    let victim = Certificate::from_pem(&pem_of(client().serialized())).expect("an issued certificate is read");
    revoking.revocation_list = vec![organization().authority().revoke(&[&victim]).expect("an authority revokes")];
    vec![wrap(organization().definition()), wrap(revoking)]
}

/// A definition alone is one in a folder of the operator's, see [`DEFINED_TIMES`].
fn msp(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    within(DEFINED_TIMES, input.len(), || {
        let Ok(config) = MspConfig::decode(bytes) else { return };
        let _ = Msp::from_msp_config(&config);
    });
}

fn crl_seeds() -> Vec<Vec<u8>> {
    let victims: Vec<Certificate> = certificates_pem()
        .iter()
        .map(|pem| Certificate::from_pem(pem).expect("an issued certificate is read"))
        .collect();
    let all: Vec<&Certificate> = victims.iter().collect();
    let pem = organization().authority().revoke(&all).expect("an authority revokes");
    let der = identity::fuzz::der_of_pem(&pem);
    vec![der, pem.to_vec()]
}

fn crl(input: &[u8]) {
    identity::fuzz::revocation_list(input);
}

fn policy_texts() -> Vec<Vec<u8>> {
    [
        "AND('Org1MSP.peer', 'Org2MSP.member')",
        "OutOf(2, 'A.admin', 'B.client', OR('C.orderer', 'D.member'))",
        "OR('Org1MSP.member')",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

fn wires() -> Vec<SignaturePolicyEnvelope> {
    let texts = policy_texts();
    let parse = |text: &Vec<u8>| policy::parse(std::str::from_utf8(text).expect("text")).expect("a sound policy");
    texts.iter().map(parse).collect()
}

fn policy_text(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(wire) = policy::parse(text) else { return };
    let compiled = SignaturePolicy::compile(&wire).expect("what is parsed compiles");
    let again = policy::parse(&policy::print(&compiled)).expect("what is printed is parsed");
    assert_eq!(again, wire, "a policy means the same when it is printed and read again");
}

fn policy_seeds() -> Vec<Vec<u8>> {
    wires().iter().map(Message::encode_to_vec).collect()
}

/// A policy alone is one in the definition of a contract, which an operator gives, see [`DEFINED_TIMES`].
fn policy(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(compiled) = within(DEFINED_TIMES, input.len(), || SignaturePolicy::decode(&bytes)) else { return };
    let wire = SignaturePolicyEnvelope::decode(input).expect("it was accepted");
    assert_eq!(compiled.principals().len(), wire.identities.len());
    let _ = policy::print(&compiled);
    let policy = Policy::from(compiled);
    assert!(policy.layouts().len() <= policy::LAYOUTS_MAX);
    let _ = policy.evaluate_identities(&[]);
}

fn application_seeds() -> Vec<Vec<u8>> {
    let signature = wires().into_iter().map(|wire| policy::of_signature(wire).encode_to_vec());
    signature.chain([policy::channel_reference("/Channel/Application/Endorsement").encode_to_vec()]).collect()
}

fn application(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let _ = within(DEFINED_TIMES, input.len(), || ApplicationPolicy::decode(&bytes));
}

fn signatures() -> Vec<Vec<u8>> {
    vec![client().sign(b"message").to_vec()]
}

/// A signature is either refused or the one that its holder made, byte for byte: there is no second form of it.
fn signature(input: &[u8]) {
    static KEY: LazyLock<Certificate> =
        LazyLock::new(|| Certificate::from_pem(&pem_of(client().serialized())).expect("an issued certificate is read"));
    let key = KEY.key();
    let claim = Claim::by_key(key, b"message", input);
    let by_library = untrusted(input, || Verifier::Library.verify(&claim));
    assert_eq!(Verifier::Tables.verify(&claim), by_library);
}
