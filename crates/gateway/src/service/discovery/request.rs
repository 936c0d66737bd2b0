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
        let Some(certificate) = caller.certificate() else { return Ok(()) };
        let problem = match (certificate.der().is_some(), certificate.is_named_by(&self.tls_certificate_hash)) {
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

#[cfg(test)]
mod tests {
    use proto::discovery::{AuthInfo, ChaincodeQuery, ConfigQuery, PeerMembershipQuery, Request, SignedRequest};
    use proto::protos::ChaincodeCall;

    use super::*;

    fn read(request: &Request) -> Result<DiscoveryRequest, GrpcStatus> {
        let (payload, signature) = (request.encode_to_vec().into(), Bytes::from_static(b"signature"));
        DiscoveryRequest::read(&SignedRequest { payload, signature }.encode_to_vec().into())
    }

    fn request(queries: usize) -> Request {
        let query = Query { channel: "ch".to_owned(), query: Some(Kind::ConfigQuery(ConfigQuery {})) };
        let client_identity = Bytes::from_static(b"identity");
        let authentication = Some(AuthInfo { client_identity, client_tls_cert_hash: Bytes::from_static(b"hash") });
        Request { authentication, queries: vec![query; queries] }
    }

    #[test]
    fn a_request_is_read_with_its_queries() {
        let found = read(&request(2)).expect("it is sound");
        assert_eq!((&found.identity[..], &found.tls_certificate_hash[..]), (&b"identity"[..], &b"hash"[..]));
        let channels: Vec<&str> = found.queries.iter().map(|query| query.channel.as_str()).collect();
        assert_eq!(channels, ["ch", "ch"]);
        assert!(matches!(found.queries[0].decode(), Ok(Some(Kind::ConfigQuery(_)))));
    }

    #[test]
    fn a_request_without_a_client_or_with_too_many_queries_is_refused() {
        let code = |request: &Request| read(request).expect_err("it is refused").code;
        assert_eq!(code(&Request { authentication: None, ..request(1) }), GrpcCode::Unknown);
        assert_eq!(code(&Request { authentication: Some(AuthInfo::default()), ..request(1) }), GrpcCode::Unknown);
        assert_eq!(code(&request(QUERIES_MAX + 1)), GrpcCode::InvalidArgument);
        let long = Query { channel: "c".repeat(300), ..Query::default() };
        assert_eq!(code(&Request { queries: vec![long], ..request(0) }), GrpcCode::InvalidArgument);
    }

    #[test]
    fn interests_are_bounded_and_name_chaincodes() {
        let named = |name: &str| ChaincodeCall { name: name.to_owned(), ..ChaincodeCall::default() };
        let decode = |kind: Kind| {
            let query = Query { channel: "ch".to_owned(), query: Some(kind) };
            let read = QueryBytes::read(query.encode_to_vec().into()).expect("the channel is sound");
            read.decode().map(drop)
        };
        let of = |calls: Vec<ChaincodeCall>, count: usize| {
            let interest = ChaincodeInterest { chaincodes: calls };
            decode(Kind::CcQuery(ChaincodeQuery { interests: vec![interest; count] }))
        };
        assert_eq!(of(vec![named("basic")], INTERESTS_MAX), Ok(()));
        assert!(of(vec![named("basic")], INTERESTS_MAX + 1).is_err());
        assert!(of(vec![named("basic"); PARTS_MAX + 1], 1).is_err());
        let collections = ChaincodeCall { collection_names: vec!["c".to_owned(); PARTS_MAX + 1], ..named("basic") };
        assert!(of(vec![collections], 1).is_err());
        assert!(of(vec![named("")], 1).is_err() && of(vec![], 1).is_err() && of(vec![], 0).is_err());
        let filter = Some(ChaincodeInterest { chaincodes: vec![named("")] });
        assert!(decode(Kind::PeerQuery(PeerMembershipQuery { filter })).is_err());
        assert_eq!(decode(Kind::PeerQuery(PeerMembershipQuery { filter: None })), Ok(()));
    }
}
