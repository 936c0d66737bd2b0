//! Harnesses of requests, as the services read them; see [`base::fuzz`].

use base::fuzz::{Shape, Target, untrusted, within};
use base::rt::WallTime;
use bytes::Bytes;
use prost::Message;
use proto::gateway;

use super::proposal::ProposalRequest;
use super::seek::Seek;

/// The targets of this module.
pub const TARGETS: &[Target] = &[
    Target { name: "gateway-proposals", shape: Shape::Protobuf, run: proposals, seeds: no_seeds },
    Target { name: "gateway-seeks", shape: Shape::Protobuf, run: seeks, seeds: no_seeds },
    Target { name: "gateway-requests", shape: Shape::Protobuf, run: requests, seeds: no_seeds },
];

/// What fits is made of a whole network's envelopes, which `heddle-fuzz` has.
fn no_seeds() -> Vec<Vec<u8>> {
    vec![Vec::new()]
}

/// The organisations that a request names have no bound of their own: 2 bytes of a name of none take 24 in memory, and three
/// times that while their list grows. With a bound this becomes 2.
const PROPOSAL_TIMES: usize = 40;

fn proposals(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(request) = within(PROPOSAL_TIMES, input.len(), || ProposalRequest::read(&bytes)) else { return };
    let decoded = gateway::EndorseRequest::decode(bytes);
    // A protobuf library that accepts the request reads the same in it; the walk accepts more, since it looks at less.
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
    let Ok(seek) = untrusted(input, || Seek::parse(bytes, now)) else { return };
    for height in [0, 1, u64::MAX] {
        if let Ok(range) = untrusted(input, || seek.range(height)) {
            assert!(range.next <= range.last && range.next <= height);
        }
    }
}

/// Messages that a protobuf library reads: what decodes, encodes to what decodes to the same.
fn requests(input: &[u8]) {
    fn again<M: Message + Default + PartialEq + std::fmt::Debug>(input: &[u8]) {
        let bytes = Bytes::copy_from_slice(input);
        if let Ok(message) = M::decode(bytes) {
            assert_eq!(M::decode(&message.encode_to_vec()[..]).as_ref(), Ok(&message));
        }
    }
    again::<gateway::SubmitRequest>(input);
    again::<gateway::SignedCommitStatusRequest>(input);
    again::<gateway::CommitStatusRequest>(input);
    again::<gateway::SignedChaincodeEventsRequest>(input);
    again::<gateway::ChaincodeEventsRequest>(input);
    again::<gateway::EvaluateRequest>(input);
    again::<proto::orderer::SeekInfo>(input);
}
