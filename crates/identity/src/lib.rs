//! Identity in a channel, as in Fabric: certificates, organisations, signatures, and policies over them.
//!
//! ```
//! use identity::issue::{CertificateTerms, IssuingOrganization};
//! use identity::policy::{SignaturePolicy, parse};
//! use identity::{Error, MemberRole, MspManager, Policy, SignedData};
//! use std::sync::Arc;
//!
//! // Two organisations, whose keys follow from seeds, and the members of the channel that they form.
//! let org1 = IssuingOrganization::create("Org1MSP", "org1.example.com", &CertificateTerms::seeded([1; 32]))?;
//! let org2 = IssuingOrganization::create("Org2MSP", "org2.example.com", &CertificateTerms::seeded([2; 32]))?;
//! let members = MspManager::new([Arc::new(org1.membership()?), Arc::new(org2.membership()?)]);
//!
//! // A peer of each organisation signs a message.
//! let message = base::Bytes::from_static(b"a read-write set");
//! let peers = [org1.issue(MemberRole::Peer, "peer0")?, org2.issue(MemberRole::Peer, "peer0")?];
//! let signatures = peers.map(|peer| SignedData {
//!     data: message.clone().into(),
//!     identity: peer.serialized().clone(),
//!     signature: peer.sign(&message),
//! });
//!
//! // A policy that asks for both is satisfied by both, and by neither alone.
//! let both = parse("AND('Org1MSP.peer', 'Org2MSP.peer')")?;
//! let both = Policy::from(SignaturePolicy::compile(&both)?);
//! both.evaluate_signed(&signatures, &members)?;
//! assert_eq!(both.evaluate_signed(&signatures[..1], &members), Err(Error::PolicyUnsatisfied));
//! # Ok::<(), Error>(())
//! ```
//!
//! # Guarantees
//!
//! * An [`Identity`] is valid for its organisation by construction.
//! * No verdict depends on a clock, on randomness or on the content of a cache.
//! * Every verdict on a Fabric block is the verdict that Fabric reaches.
//! * Invalid bytes from outside yield an [`Error`] that says what is wrong.
//!
//! # What it needs around it
//!
//! * `proto` provides the wire types, `p256_verify` fast verification of P-256, `base` randomness and the wall clock.
//! * `ledger` builds an [`MspManager`] and a [`PolicyTree`] from a channel's configuration. `ledger`, `chain` and
//!   `gateway` ask them about the signatures in blocks, proposals and requests.
//! * `node` reads and writes directories of certificates through [`issue`], and hands [`Revocations`] and a
//!   [`DenyList`] to its TLS listeners.
//! * The caller decides when expiry matters ([`Identity::check_expiry`]), what a signature must cover, and where
//!   private keys are kept.
//!
//! # What is here
//!
//! * [`signer`]: a signing identity, which is a certificate and its private key; it signs as Fabric's clients and nodes
//!   do.
//! * [`statement`]: what a peer states about itself to other peers and to clients.
//! * [`verifier`]: verification of signatures, one by one and in batches.
//! * [`certificate`], [`key`], [`digest`]: X.509 certificates, public keys, SHA-256.
//! * [`msp`]: an organisation's rules: authorities, revocations, organisational units, administrators.
//! * [`revocation`]: the TLS certificates that an organisation has revoked.
//! * [`deny`]: the certificates that a node's operator rejects.
//! * [`manager`]: the organisations of one channel; turns the bytes that name an identity into a valid [`Identity`].
//! * [`principal`], [`policy`]: the signers that a policy asks for, and whether a set of signatures satisfies a policy.
//! * [`issue`]: authorities and certificates for networks that Heddle itself sets up.
#![deny(missing_docs)]

mod cache;
pub mod certificate;
mod chain;
pub mod deny;
mod der;
pub mod digest;
pub mod error;
pub mod event;
#[doc(hidden)]
pub mod fuzz;
pub mod identity;
pub mod issue;
pub mod key;
pub mod manager;
mod memo;
pub mod msp;
pub mod policy;
pub mod principal;
pub mod revocation;
pub mod signer;
pub mod statement;
mod thread_safety;
pub mod verifier;

pub use certificate::{Certificate, CertificateId};
pub use deny::DenyList;
pub use digest::{Hash, Sha256, equal_in_constant_time, sha256};
pub use error::Error;
pub use event::EVENTS;
pub use hex;
pub use identity::Identity;
pub use key::{KeyKind, PublicKey, SeededKey};
pub use manager::MspManager;
pub use msp::Msp;
pub use policy::{Policy, PolicyTree, SignatureSet, SignedData};
pub use principal::{MemberRole, Principal};
pub use revocation::Revocations;
pub use signer::Signer;
pub use verifier::{SignatureClaim, SignatureVerifier};
