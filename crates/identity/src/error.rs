//! The errors of identities, signatures and policies.

use base::{ErrorKind, MspId};

/// Any failure of this crate. [`Error::kind`] says what the caller is to do about it.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Known answers of P-256 were not found again.
    #[error(
        "this build or this machine does not compute P-256 as it should ({0}): set [crypto] verify = \"library\", and report the processor"
    )]
    WrongAnswers(String),
    /// The bytes are not a `SerializedIdentity`, or are larger than any we accept.
    #[error("malformed identity: {0}")]
    MalformedIdentity(&'static str),
    /// No organisation of this channel has that name.
    #[error("MSP {0} is unknown")]
    UnknownMsp(MspId),
    /// The bytes are not an X.509 certificate of a kind we accept.
    #[error("malformed certificate: {0}")]
    MalformedCertificate(String),
    /// The key's algorithm is none of P-256, P-384 and Ed25519.
    #[error("unsupported key or signature algorithm {0}")]
    UnsupportedAlgorithm(String),
    /// The certificate does not chain to a root of its organisation.
    #[error("certificate is not of MSP {msp}: {reason}")]
    ForeignChain {
        /// The organisation that the identity claims.
        msp: MspId,
        /// Which rule of the chain failed.
        reason: &'static str,
    },
    /// A certificate authority's certificate stands where an identity's is expected.
    #[error("a certificate authority cannot act as an identity")]
    AuthorityAsIdentity,
    /// The issuer's revocation list names the certificate.
    #[error("certificate is revoked")]
    Revoked,
    /// This node's operator turns the certificate away.
    #[error("certificate is denied by this node's operator")]
    Denied,
    /// The certificate is past its end of validity.
    #[error("certificate expired {seconds} s ago")]
    Expired {
        /// Seconds since the end of validity.
        seconds: u64,
    },
    /// The organisational units in the certificate are not those that its MSP asks for.
    #[error("organisational units of the certificate are not acceptable to MSP {msp}: {reason}")]
    WrongOrganizationalUnit {
        /// The organisation that the identity claims.
        msp: MspId,
        /// Which rule failed.
        reason: &'static str,
    },
    /// The signature is not the strict encoding of a signature.
    #[error("malformed signature")]
    MalformedSignature,
    /// The signature is the non-canonical one of its pair.
    #[error("signature is not canonical: its S is above half the group order")]
    HighS,
    /// The signature does not verify.
    #[error("signature does not verify")]
    WrongSignature,
    /// The private key cannot be used, or is not the certificate's.
    #[error("unusable private key: {0}")]
    PrivateKey(&'static str),
    /// The MSP's definition contradicts itself or is incomplete.
    #[error("definition of MSP {msp} is invalid: {reason}")]
    MspDefinition {
        /// The organisation being defined.
        msp: MspId,
        /// What is wrong.
        reason: String,
    },
    /// The policy's definition is malformed, or larger than any we accept.
    #[error("malformed policy: {0}")]
    MalformedPolicy(String),
    /// No policy has that path.
    #[error("policy {0} is unknown")]
    UnknownPolicy(String),
    /// The signers do not satisfy the policy.
    #[error("signature set does not satisfy the policy")]
    PolicyUnsatisfied,
    /// More signatures than any policy evaluation takes.
    #[error("signature set has {0} signatures, more than the {max} allowed", max = crate::policy::SIGNATURES_MAX)]
    TooManySignatures(usize),
    /// A certificate could not be made.
    #[error("cannot issue a certificate: {0}")]
    Issue(String),
    /// A file of an MSP directory could not be read or written.
    #[error("{path}: {reason}")]
    File {
        /// The file or directory.
        path: String,
        /// What the operating system said.
        reason: String,
        /// What the caller is to do.
        kind: ErrorKind,
    },
}

impl Error {
    /// What the caller is to do. All failures but those of files are [`ErrorKind::Rejected`]: the same bytes fail again.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::File { kind, .. } => *kind,
            _ => ErrorKind::Rejected,
        }
    }

    pub(crate) fn file(path: &std::path::Path, error: &std::io::Error) -> Error {
        Error::File { path: path.display().to_string(), reason: error.to_string(), kind: ErrorKind::of_io(error) }
    }
}
