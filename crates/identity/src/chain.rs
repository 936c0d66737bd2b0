//! Finds the chain of authorities from a certificate up to a root authority of its organisation, and checks it.
//!
//! Fabric inherits the rules of Go's X.509 verifier. Heddle follows the same rules, so that it reaches Fabric's verdict
//! on the same block:
//! 1. Every certificate of the chain is valid one second after the **leaf's** start of validity. No clock is read, so
//!    the verdict on a block never changes. Expiry is a separate check ([`crate::Identity::check_expiry`]).
//! 2. The subject of an issuer equals the issuer field of the issued certificate, byte for byte, and the issuer's key
//!    made the signature of the issued certificate.
//! 3. An issuer is an authority by its basic constraints. Its key usage (when present) lets it sign certificates, and
//!    its path length (when present) allows the number of authorities below it.
//! 4. An extended key usage (when present) allows server authentication.
//! 5. Exactly one chain exists. With two chains it would be unclear which authority vouches for the certificate.
//!
//! The signatures among the authorities are verified once, when the organisation is defined. A chain therefore costs
//! one verification, of the leaf's signature.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use bytes::Bytes;

use crate::certificate::Certificate;

/// How many certificates a chain may have, leaf and root included.
pub(crate) const CHAIN_LENGTH_MAX: usize = 8;
/// How many authorities an organisation may define.
pub(crate) const AUTHORITIES_MAX: usize = 256;

/// One authority and those that signed it.
#[derive(Debug)]
struct AuthorityNode {
    certificate: Certificate,
    is_root: bool,
    /// Positions of the authorities that signed this one, itself excluded.
    issuers: Vec<usize>,
}

/// An organisation's roots and intermediate authorities.
#[derive(Debug)]
pub(crate) struct Authorities {
    nodes: Vec<AuthorityNode>,
}

/// Positions of a leaf's authorities, its issuer first and the root last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CertificateChain(Vec<usize>);

impl CertificateChain {
    /// Position of the authority that issued the leaf, unless the leaf is itself a root.
    pub(crate) fn issuer(&self) -> Option<usize> {
        self.0.first().copied()
    }

    /// Positions of all its authorities.
    pub(crate) fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// The chain of what `issuer` issues, when this is the chain of `issuer`.
    pub(crate) fn below(&self, issuer: usize) -> CertificateChain {
        CertificateChain(std::iter::once(issuer).chain(self.positions()).collect())
    }
}

impl Authorities {
    /// Takes the authorities, each once, and finds out who signed whom.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) fn new(roots: Vec<Certificate>, intermediates: Vec<Certificate>) -> Authorities {
        let mut nodes: Vec<AuthorityNode> = Vec::with_capacity(roots.len() + intermediates.len());
        let all =
            roots.into_iter().map(|root| (root, true)).chain(intermediates.into_iter().map(|other| (other, false)));
        for (certificate, is_root) in all {
            if !nodes.iter().any(|node| node.is_root == is_root && node.certificate.id() == certificate.id()) {
                nodes.push(AuthorityNode { certificate, is_root, issuers: Vec::new() });
            }
        }
        assert!(nodes.len() <= AUTHORITIES_MAX, "the caller bounds the number of authorities");
        for position in 0..nodes.len() {
            nodes[position].issuers = issuers_among(&nodes, &nodes[position].certificate);
        }
        Authorities { nodes }
    }

    pub(crate) fn certificate(&self, position: usize) -> &Certificate {
        &self.nodes[position].certificate
    }

    /// All authorities with their positions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Certificate)> {
        self.nodes.iter().map(|node| &node.certificate).enumerate()
    }

    /// The position of this very certificate, roots first.
    pub(crate) fn position(&self, certificate: &Certificate) -> Option<usize> {
        self.nodes.iter().position(|node| node.certificate.id() == certificate.id())
    }

    /// The one chain of a certificate.
    ///
    /// # Errors
    /// Which rule failed, in words.
    pub(crate) fn chain(&self, leaf: &Certificate) -> Result<CertificateChain, &'static str> {
        if !leaf.usable_for_servers() {
            return Err("its extended key usage does not allow server authentication");
        }
        let at = leaf.not_before().saturating_add(1);
        if !leaf.is_valid_at(at) {
            return Err("its validity is shorter than a second");
        }
        let itself = self.position(leaf);
        if itself.is_some_and(|position| self.nodes[position].is_root) {
            return Ok(CertificateChain(Vec::new()));
        }
        let issuers = match itself {
            Some(position) => self.nodes[position].issuers.clone(),
            None => issuers_among(&self.nodes, leaf),
        };
        if issuers.is_empty() {
            return Err("none of the organisation's authorities signed it");
        }
        let mut search = ChainSearch { nodes: &self.nodes, at, path: Vec::new(), found: Vec::new() };
        search.climb(&issuers);
        match search.found.len() {
            0 => Err("no chain from it to a root is valid"),
            1 => Ok(CertificateChain(search.found.swap_remove(0))),
            _ => Err("it has more than one chain"),
        }
    }

    /// The certificates of a chain in DER with canonical signatures, issuer first: what names the chain.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) fn canonical(&self, chain: &CertificateChain) -> Vec<Bytes> {
        let positions = &chain.0;
        positions.iter().enumerate().map(|(i, position)| self.canonical_der(*position, positions.get(i + 1))).collect()
    }

    fn canonical_der(&self, position: usize, issuer: Option<&usize>) -> Bytes {
        let certificate = self.certificate(position);
        match issuer {
            Some(issuer) => certificate.canonical_der(self.certificate(*issuer).key()),
            None if certificate.is_self_issued() => certificate.canonical_der(certificate.key()),
            None => certificate.der().clone(),
        }
    }
}

/// Positions of the authorities that signed this certificate, whether or not they were entitled to at any time.
fn issuers_among(nodes: &[AuthorityNode], certificate: &Certificate) -> Vec<usize> {
    let signed = |node: &AuthorityNode| {
        node.certificate.id() != certificate.id()
            && certificate.names_as_issuer(&node.certificate)
            && certificate.is_signed_by(&node.certificate)
    };
    (0..nodes.len()).filter(|position| signed(&nodes[*position])).collect()
}

/// A depth-first walk towards the roots that stops at the second chain, since two are as bad as ten.
struct ChainSearch<'a> {
    nodes: &'a [AuthorityNode],
    at: i64,
    path: Vec<usize>,
    found: Vec<Vec<usize>>,
}

impl ChainSearch<'_> {
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn climb(&mut self, issuers: &[usize]) {
        for &position in issuers {
            let node = &self.nodes[position];
            if self.found.len() >= 2 || self.path.len() + 2 > CHAIN_LENGTH_MAX || !self.may_issue(node) {
                continue;
            }
            self.path.push(position);
            match node.is_root {
                true => self.found.push(self.path.clone()),
                false => self.climb(&node.issuers),
            }
            self.path.pop();
        }
    }

    fn may_issue(&self, node: &AuthorityNode) -> bool {
        let certificate = &node.certificate;
        let already_in_path = || self.path.iter().any(|below| self.nodes[*below].certificate.id() == certificate.id());
        let path_allows = |limit: Option<u32>| limit.is_none_or(|limit| self.path.len() as u64 <= u64::from(limit));
        certificate.is_valid_at(self.at)
            && certificate.may_sign_certificates()
            && certificate.usable_for_servers()
            && certificate.authority().is_some_and(|authority| path_allows(authority.path_length))
            && !already_in_path()
    }
}
