//! Who may act in a channel, and how they prove it.
//!
//! * [`signer`]: one's own certificate and key; signs as Fabric's clients and nodes do.
//! * [`verifier`]: how signatures are verified, alone and together.
//! * [`certificate`], [`key`], [`digest`]: X.509 certificates, public keys, SHA-256.
//! * [`msp`]: an organisation's rules: authorities, revocations, organisational units, administrators.
//! * [`revocation`]: which certificates of TLS an organisation took back.
//! * [`deny`]: which certificates a node's operator turns away.
//! * [`manager`]: the organisations of one channel; turns the bytes that name an identity into a valid [`Identity`].
//! * [`principal`], [`policy`]: whom a policy asks for, and whether a set of signatures satisfies it.
//! * [`issue`]: authorities and certificates for networks that Heddle itself sets up.
//!
//! Invariants: an [`Identity`] is valid for its organisation by construction; no verdict depends on a clock, on chance
//! or on what a cache remembers; every verdict on a Fabric block is Fabric's.

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
pub use principal::{Principal, Role};
pub use revocation::Revocations;
pub use signer::Signer;
pub use verifier::{Claim, Verifier};

// What is shared between tasks may be shared, and a set of signatures may move to another task between evaluations.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    const fn is_sent<T: Send>() {}
    is_shared::<Signer>();
    is_shared::<MspManager>();
    is_shared::<Identity>();
    is_shared::<PolicyTree>();
    is_sent::<SignatureSet<'static>>();
};
