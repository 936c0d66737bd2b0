//! Authorities and certificates for networks that Heddle itself sets up.
//!
//! An [`IssuingOrganization`] has one authority for identities and one for TLS, as `cryptogen` makes them. It issues
//! TLS certificates for hosts, and identities whose organisational unit (NodeOUs) marks them as peer, orderer, admin or
//! client. Its definition goes into a channel's configuration. [`directory`] writes all of this to the files that
//! Fabric's tools expect, and reads them back.
//!
//! In production, keys come from the operating system's randomness. In simulation they are derived from a seed and the
//! holder's name: Ed25519 keys, or P-256 keys that the simulation makes. Seeded certificates have a fixed period of
//! validity. So the same names give the same bytes in every run, in whatever order they are issued.
//!
//! Left to others: in which directory a network is, and which nodes it has.

mod authority;
pub mod directory;
mod organization;

pub use authority::{CertificateAuthority, CertificatePurpose, CertificateTerms, SeededKeys};
pub use directory::MspDirectory;
pub(crate) use organization::crypto_config;
pub use organization::{IssuingOrganization, TlsIdentity};
