//! Reads a signed request, as far as it is needed to check the signature.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use bytes::Bytes;
use prost::Message as _;
use proto::discovery::Query;
use proto::discovery::query::Query as Kind;
use proto::protos::ChaincodeInterest;

use crate::grpc::{Caller, GrpcCode, GrpcStatus};
use crate::service::proposal::{field, malformed, name, walk};

/// Queries of one request.
const QUERIES_MAX: usize = 16;
/// Interests of one query.
const INTERESTS_MAX: usize = 16;
/// Chaincodes of one interest; collections and key policies of one of them.
const PARTS_MAX: usize = 64;

/// A request before its signature is checked.
#[derive(Debug)]
pub(in crate::service) struct DiscoveryRequest {
    /// The bytes that were signed.
    pub payload: Bytes,
    pub signature: Bytes,
    /// The encoded `SerializedIdentity` of the client.
    pub identity: Bytes,
    tls_certificate_hash: Bytes,
    pub(super) queries: Vec<QueryBytes>,
}

/// A query that is not decoded yet.
#[derive(Debug)]
pub(super) struct QueryBytes {
    /// Empty for a query about the peer.
    pub channel: String,
    encoded: Bytes,
}

impl DiscoveryRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`; `UNKNOWN` as Fabric, if the request does not say who asks.
    pub(in crate::service) fn read(message: &Bytes) -> Result<DiscoveryRequest, GrpcStatus> {
        let wrong = |error| malformed("request", error);
        let payload = field(message, 1).map_err(wrong)?;
        let signature = field(message, 2).map_err(wrong)?;
        let (mut authentication, mut queries, mut count) = (None, Vec::new(), 0usize);
        walk(&payload, |number, span| {
            match number {
                1 => authentication = Some(span.slice(&payload)),
                2 => {
                    count = count.saturating_add(1);
                    if count <= QUERIES_MAX {
                        queries.push(span.slice(&payload));
                    }
                }
                _ => {}
            }
            Ok(())
        })
        .map_err(wrong)?;
        if count > QUERIES_MAX {
            return Err(GrpcStatus::invalid_argument(format!(
                "the request has {count} queries; at most {QUERIES_MAX} are taken"
            )));
        }
        let missing = |what: &str| GrpcStatus::new(GrpcCode::Unknown, format!("access denied, {what}"));
        let authentication = authentication.ok_or_else(|| missing("no authentication info in request"))?;
        let identity = field(&authentication, 1).map_err(wrong)?;
        if identity.is_empty() {
            return Err(missing("client identity wasn't supplied"));
        }
        let tls_certificate_hash = field(&authentication, 2).map_err(wrong)?;
        let queries = queries.into_iter().map(QueryBytes::read).collect::<Result<_, _>>()?;
        Ok(DiscoveryRequest { payload, signature, identity, tls_certificate_hash, queries })
    }

    /// Checks that the client of the connection is the one that has made the request. Without TLS nothing can tell.
    ///
    /// # Errors
    /// `UNKNOWN`, as in Fabric.
    pub(super) fn check_tls(&self, caller: &Caller) -> Result<(), GrpcStatus> {
        let Some(tls) = caller.tls() else { return Ok(()) };
        let problem = match (tls.has_certificate(), tls.is_named_by(&self.tls_certificate_hash)) {
            (_, true) => return Ok(()),
            (false, false) => "client didn't send a TLS certificate",
            (true, false) => "client claimed TLS hash doesn't match computed TLS hash from gRPC stream",
        };
        Err(GrpcStatus::new(GrpcCode::Unknown, problem))
    }
}

impl QueryBytes {
    fn read(encoded: Bytes) -> Result<QueryBytes, GrpcStatus> {
        let channel = field(&encoded, 1).map_err(|error| malformed("query", error))?;
        let channel = std::str::from_utf8(&channel);
        let channel = channel.map_err(|_| GrpcStatus::invalid_argument("the name of a channel is not text"))?;
        Ok(QueryBytes { channel: name("channel", channel)?.to_owned(), encoded: encoded.clone() })
    }

    /// What is asked, once the client may ask.
    ///
    /// # Errors
    /// For the result of this query.
    pub(super) fn decode(&self) -> Result<Option<Kind>, String> {
        let query = Query::decode(self.encoded.clone()).map_err(|error| format!("failed parsing query: {error}"))?;
        match &query.query {
            Some(Kind::CcQuery(query)) => {
                if query.interests.len() > INTERESTS_MAX {
                    return Err(format!("a chaincode query may have at most {INTERESTS_MAX} interests"));
                }
                if query.interests.is_empty() {
                    return Err("chaincode query must have at least one chaincode interest".to_owned());
                }
                for interest in &query.interests {
                    if interest.chaincodes.is_empty() {
                        return Err("chaincode interest must contain at least one chaincode".to_owned());
                    }
                    check_interest(interest)?;
                }
            }
            Some(Kind::PeerQuery(query)) => query.filter.iter().try_for_each(check_interest)?,
            _ => {}
        }
        Ok(query.query)
    }
}

fn check_interest(interest: &ChaincodeInterest) -> Result<(), String> {
    let is_within = |count: usize| count <= PARTS_MAX;
    let calls = &interest.chaincodes;
    let each = calls.iter().all(|call| is_within(call.collection_names.len()) && is_within(call.key_policies.len()));
    if !is_within(calls.len()) || !each {
        return Err(format!(
            "an interest may have at most {PARTS_MAX} chaincodes, and each as many collections and key policies"
        ));
    }
    match calls.iter().any(|call| call.name.is_empty()) {
        true => Err("chaincode name in interest cannot be empty".to_owned()),
        false => Ok(()),
    }
}
