//! Fuzz harnesses of the decoders of the services' requests; see [`base::fuzz`].

use base::fuzz::{FuzzTarget, InputShape, untrusted};
use base::rt::WallTime;
use bytes::Bytes;
use prost::Message;
use proto::gateway;

use super::proposal::ProposalRequest;
use super::seek::SeekRequest;
use super::{OrdererMethod, PeerMethod};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "gateway-proposals", shape: InputShape::Protobuf, run: proposals, seeds: no_seeds },
    FuzzTarget { name: "gateway-seeks", shape: InputShape::Protobuf, run: seeks, seeds: no_seeds },
    FuzzTarget { name: "gateway-requests", shape: InputShape::Protobuf, run: requests, seeds: no_seeds },
];

/// Useful seeds come from a whole network's envelopes, which `heddle-fuzz` has.
fn no_seeds() -> Vec<Vec<u8>> {
    vec![Vec::new()]
}

fn proposals(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(request) = untrusted(input, || ProposalRequest::read(&bytes)) else { return };
    let decoded = gateway::EndorseRequest::decode(bytes);
    // If a protobuf library accepts the request, it reads the same values; the walk accepts more requests, since it checks
    // less.
    if let Ok(decoded) = decoded {
        assert_eq!(decoded.endorsing_organizations, request.organizations);
        let signed = decoded.proposed_transaction.map(|signed| signed.proposal_bytes);
        assert!(signed.is_some_and(|bytes| !bytes.is_empty()));
    }
    assert!(!request.contract.is_empty());
}

/// The time of the requests among the seeds.
pub const NOW_SECONDS: u64 = 1_700_000_000;

fn seeks(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let now = WallTime::from_parts(NOW_SECONDS, 0);
    let Ok(seek) = untrusted(input, || SeekRequest::parse(bytes, now)) else { return };
    for height in [0, 1, u64::MAX] {
        if let Ok(range) = untrusted(input, || seek.range(height)) {
            assert!(range.next <= range.last && range.next <= height);
        }
    }
}

/// Every method reads its request within twice its size. A request that a protobuf library decodes for a method can be
/// encoded and decoded again to the same value.
fn requests(input: &[u8]) {
    fn again<M: Message + Default + PartialEq + std::fmt::Debug>(input: &[u8]) {
        let bytes = Bytes::copy_from_slice(input);
        if let Ok(message) = untrusted(input, || M::decode(bytes)) {
            assert_eq!(M::decode(&message.encode_to_vec()[..]).as_ref(), Ok(&message));
        }
    }
    again::<gateway::SignedCommitStatusRequest>(input);
    again::<gateway::CommitStatusRequest>(input);
    again::<gateway::SignedChaincodeEventsRequest>(input);
    again::<gateway::ChaincodeEventsRequest>(input);
    again::<proto::orderer::SeekInfo>(input);
    let bytes = Bytes::copy_from_slice(input);
    for method in [
        PeerMethod::Evaluate,
        PeerMethod::Submit,
        PeerMethod::CommitStatus,
        PeerMethod::ChaincodeEvents,
        PeerMethod::Deliver,
        PeerMethod::Discover,
        PeerMethod::HealthCheck,
    ] {
        let _ = untrusted(input, || method.read(bytes.clone()));
    }
    let _ = untrusted(input, || OrdererMethod::Broadcast.read(bytes));
}
