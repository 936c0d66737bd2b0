//! `discovery.Discovery`: clients ask for a channel's peers, orderers, organisations and endorsers.
//!
//! 1. [`request`] reads a signed request: the client's identity, the hash of its TLS certificate, and queries.
//! 2. [`answer`] checks for each query that the client may ask it, and answers. A query that fails has an error as its
//!    result, and the others are answered all the same.
//! 3. [`config`] answers from the channel's configuration.
//! 4. [`directory`] asks each peer what it states about itself, and keeps the answers for a moment.
//! 5. [`endorsers`] joins policies and peers into layouts: sets of peers whose endorsements satisfy the policies.
//!
//! Bounds: the number of queries of a request and of chaincodes and collections in them, the search for layouts, the time
//! that a peer has to describe itself, and how often it is asked. A stranger's request costs one verification for each query at most.
//!
//! A request cannot be replayed over TLS: it names the certificate of which its sender has the key
//! ([`PresentedCertificate`](crate::grpc::PresentedCertificate)).

mod answer;
mod config;
mod directory;
mod endorsers;
mod request;

pub(super) use answer::discover;
pub(super) use directory::PeerDirectory;
pub(super) use request::DiscoveryRequest;
