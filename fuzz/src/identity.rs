//! Decoders of `identity`: certificates, identities, organisations' definitions, policies.

use std::sync::{Arc, LazyLock};

use base::Bytes;
use base::fuzz::{FuzzTarget, InputShape, untrusted, within};
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::policy::{self, ApplicationPolicy, SignaturePolicy};
use identity::{Certificate, MemberRole, Msp, MspManager, Policy, SignatureClaim, SignatureVerifier};
use prost::Message;
use proto::common::SignaturePolicyEnvelope;
use proto::msp::{MspConfig, SerializedIdentity};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget {
        name: "identity-certificate-der",
        shape: InputShape::Der,
        run: certificate_der,
        seeds: certificates_der,
    },
    FuzzTarget {
        name: "identity-certificate-pem",
        shape: InputShape::Bytes,
        run: certificate_pem,
        seeds: certificates_pem,
    },
    FuzzTarget { name: "identity-serialized", shape: InputShape::Protobuf, run: serialized, seeds: serialized_seeds },
    FuzzTarget { name: "identity-msp", shape: InputShape::Protobuf, run: msp, seeds: msp_seeds },
    FuzzTarget { name: "identity-crl", shape: InputShape::Der, run: crl, seeds: crl_seeds },
    FuzzTarget { name: "identity-policy", shape: InputShape::Protobuf, run: policy, seeds: policy_seeds },
    FuzzTarget {
        name: "identity-policy-application",
        shape: InputShape::Protobuf,
        run: application,
        seeds: application_seeds,
    },
    FuzzTarget { name: "identity-policy-text", shape: InputShape::Bytes, run: policy_text, seeds: policy_texts },
    FuzzTarget { name: "identity-signature", shape: InputShape::Der, run: signature, seeds: signatures },
];

/// The memory, in multiples of their size, that definitions of organisations and policies may take. A protobuf library
/// decodes them, and creates a list element for each part: up to 200 bytes for a part of two. Alone, they come from an
/// operator's files. From others they come only within a channel's configuration, which is refused before decoding if it
/// would take more than four times its size; the target `ledger-config` checks that bound.
const DEFINED_TIMES: usize = 200;

pub(crate) fn organization() -> &'static IssuingOrganization {
    static FOUNDED: LazyLock<IssuingOrganization> = LazyLock::new(|| {
        IssuingOrganization::create("Org1MSP", "org1.example.com", &CertificateTerms::seeded([7; 32]))
            .expect("a seeded founding succeeds")
    });
    &FOUNDED
}

fn client() -> identity::Signer {
    organization().issue(MemberRole::Client, "User1").expect("a founded organisation issues")
}

fn pem_of(serialized: &[u8]) -> Bytes {
    SerializedIdentity::decode(serialized).expect("a signer's own identity decodes").id_bytes
}

fn certificates_pem() -> Vec<Vec<u8>> {
    let issued = pem_of(client().serialized()).to_vec();
    vec![organization().authority().certificate_pem().to_vec(), issued]
}

fn certificates_der() -> Vec<Vec<u8>> {
    let tls = organization().issue_tls(MemberRole::Peer, "peer0", &["localhost", "127.0.0.1"]).expect("it issues");
    let pems = certificates_pem().into_iter().chain([tls.certificate_pem.to_vec()]);
    pems.map(|pem| Certificate::from_pem(&pem).expect("an issued certificate is read").der().to_vec()).collect()
}

fn certificate_der(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(certificate) = untrusted(input, || Certificate::from_der(bytes)) else { return };
    assert_eq!(certificate.der()[..], *input, "a certificate has one encoding");
    // Whether signatures over it verify does not matter, only that checking them does not panic.
    let _ =
        SignatureVerifier::of_process().verify(&SignatureClaim::by_key(certificate.key(), b"message", b"signature"));
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

/// Validates an identity as its organisation does.
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

/// A separate definition is one in an operator's folder, see [`DEFINED_TIMES`].
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

/// A separate policy is one in the definition of a contract, which an operator provides, see [`DEFINED_TIMES`].
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

/// A signature is either refused or byte for byte the one that its holder made: it has no second form.
fn signature(input: &[u8]) {
    static KEY: LazyLock<Certificate> =
        LazyLock::new(|| Certificate::from_pem(&pem_of(client().serialized())).expect("an issued certificate is read"));
    let key = KEY.key();
    let claim = SignatureClaim::by_key(key, b"message", input);
    let by_library = untrusted(input, || SignatureVerifier::Library.verify(&claim));
    assert_eq!(SignatureVerifier::Tables.verify(&claim), by_library);
}
