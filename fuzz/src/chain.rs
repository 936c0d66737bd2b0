//! Decoders of `chain`: proposals, read-write sets, blocks and requests over links, offloaded work items.

use base::fuzz::{FuzzTarget, InputShape, authenticated, untrusted};
use base::{Bytes, Version};
use block_transport::protocol;
use chain::commit::recent_writes::{RecentWrites, RowKey, WrittenRows};
use chain::remote::PROTOCOL_VERSIONS;
use chain::remote::messages::{
    self, Ask, BlockAt, BlockResponse, BroadcastEnvelope, CommitNotification, CommittedTx, Hello, PeerRequest,
    RemoteFailure, ResultResponse, StatusRequest, StatusResponse, TransactionStatus, Welcome,
};
use chain::remote::private_messages::PrivatePullResponse;
use ledger::proposal::Proposal;
use ledger::rwset::{ReadWriteSet, VisitedWrite, visit_writes};
use ledger::transaction::Transaction;
use ledger::wire::Span;
use prost::Message;
use proto::protos;
use state::UpdateBatch;
use validation::offload::{SignatureVerdicts, VerificationPart};
use validation::verify::SignatureVerdict;

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "chain-proposal", shape: InputShape::Protobuf, run: proposal, seeds: proposals },
    FuzzTarget { name: "chain-rwset", shape: InputShape::Protobuf, run: rwset, seeds: rwsets },
    FuzzTarget { name: "chain-order-links", shape: InputShape::Bytes, run: order_links, seeds: order_link_seeds },
    FuzzTarget { name: "chain-peer-links", shape: InputShape::Protobuf, run: peer_links, seeds: peer_link_seeds },
    FuzzTarget { name: "chain-written-rows", shape: InputShape::Bytes, run: written_rows, seeds: written_row_seeds },
    FuzzTarget { name: "chain-borrowed-work", shape: InputShape::Bytes, run: offloaded, seeds: offloaded_seeds },
];

/// Signed proposals rebuilt from the transactions in Fabric's blocks: their signatures are those of the transactions, which
/// parsers do not check.
pub(crate) fn proposals() -> Vec<Vec<u8>> {
    let of = |envelope: Vec<u8>| {
        let transaction = Transaction::decode(&envelope.into()).ok()?;
        let action = transaction.action().ok()?;
        let header = transaction.header();
        let header = proto::common::Header {
            channel_header: Bytes::copy_from_slice(header.channel_header()),
            signature_header: Bytes::copy_from_slice(header.signature_header()),
        };
        let proposal = protos::Proposal {
            header: header.encode_to_vec().into(),
            payload: action.proposal_payload(),
            extension: Bytes::new(),
        };
        let signature = Bytes::copy_from_slice(transaction.signature());
        Some(protos::SignedProposal { proposal_bytes: proposal.encode_to_vec().into(), signature }.encode_to_vec())
    };
    crate::ledger::envelopes().into_iter().filter_map(of).collect()
}

/// If an endorser accepts a proposal, a protobuf library reads the same fields.
fn proposal(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(parsed) = untrusted(input, || Proposal::parse(&bytes)) else { return };
    let signed = protos::SignedProposal::decode(bytes).expect("accepted by us");
    assert_eq!((&parsed.bytes, &parsed.signature), (&signed.proposal_bytes, &signed.signature));
    let proposal = protos::Proposal::decode(signed.proposal_bytes).expect("accepted by us");
    let _ = (parsed.check_form(), parsed.header.timestamp());
    // The payload is read only after the signature was checked.
    let Ok(invocation) = authenticated(input, || parsed.invocation()) else { return };
    let payload = protos::ChaincodeProposalPayload::decode(proposal.payload).expect("accepted by us");
    assert_eq!(*invocation.transient, payload.transient_map);
    // The library also checks fields that the endorser ignores: for example, that a name is text.
    let Ok(spec) = protos::ChaincodeInvocationSpec::decode(payload.input) else { return };
    let input = spec.chaincode_spec.and_then(|spec| spec.input).expect("accepted by us");
    assert_eq!(invocation.args, input.args);
}

fn rwsets() -> Vec<Vec<u8>> {
    let of = |envelope: Vec<u8>| {
        let transaction = Transaction::decode(&envelope.into()).ok()?;
        let outcome = transaction.action().ok()?.outcome(transaction.header()).ok()?;
        Some(outcome.results().to_vec())
    };
    crate::ledger::envelopes().into_iter().filter_map(of).collect()
}

/// If the in-place reader accepts a set, a protobuf library reads the same content; and the shortcut to the writes finds
/// the same writes.
fn rwset(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(set) = untrusted(input, || ReadWriteSet::decode(bytes.clone())) else { return };
    let _ = set.has_valid_keys();
    let mut visited = Vec::new();
    let visit = |write: VisitedWrite<'_>| {
        let value = write.value.map(|span| span.of(&bytes).to_vec());
        visited.push((write.namespace.to_owned(), write.collection.to_owned(), write.key.to_vec(), value));
    };
    let span = Span::whole(&bytes).expect("inputs are short");
    visit_writes(&bytes, span, visit).expect("a decoded set is walked");
    let mut written = Vec::new();
    for namespace in &set.namespaces {
        for write in set.writes(namespace) {
            let value = set.write_value(&write).map(|value| value.to_vec());
            let key = set.write_key(&write).as_bytes().to_vec();
            written.push((set.name(namespace).to_owned(), String::new(), key, value));
        }
        for collection in set.collections(namespace) {
            let name = set.collection_name(&collection);
            for write in set.hashed_writes(&collection) {
                let value = set.write_value(&write).map(|value| value.to_vec());
                let key = set.write_hash(&write).to_vec();
                written.push((set.name(namespace).to_owned(), name.to_owned(), key, value));
            }
        }
    }
    assert_eq!(visited, written);
    let message = proto::rwset::TxReadWriteSet::decode(bytes).expect("accepted by us");
    assert_eq!(message.ns_rwset.len(), set.namespaces.len());
    for (theirs, ours) in message.ns_rwset.iter().zip(&set.namespaces) {
        assert_eq!(theirs.namespace, set.name(ours));
        let inner = proto::kvrwset::KvrwSet::decode(theirs.rwset.clone()).expect("accepted by us");
        let keys: Vec<&str> = inner.reads.iter().map(|read| &*read.key).collect();
        assert_eq!(set.reads(ours).map(|read| set.read_key(&read)).collect::<Vec<_>>(), keys);
        assert_eq!(ours.reads as usize, keys.len());
        assert_eq!(
            (set.ranges(ours).count(), ours.ranges as usize),
            (inner.range_queries_info.len(), set.ranges(ours).count())
        );
        let keys: Vec<&str> = inner.writes.iter().map(|write| &*write.key).collect();
        assert_eq!(set.writes(ours).map(|write| set.write_key(&write)).collect::<Vec<_>>(), keys);
        assert_eq!(ours.writes as usize, keys.len());
        let keys: Vec<&str> = inner.metadata_writes.iter().map(|write| &*write.key).collect();
        assert_eq!(set.metadata_writes(ours).map(|write| set.metadata_key(&write)).collect::<Vec<_>>(), keys);
        assert_eq!(set.collections(ours).count(), theirs.collection_hashed_rwset.len());
        for (theirs, ours) in theirs.collection_hashed_rwset.iter().zip(set.collections(ours)) {
            assert_eq!(theirs.collection_name, set.collection_name(&ours));
            let inner = proto::kvrwset::HashedRwSet::decode(theirs.hashed_rwset.clone()).expect("accepted by us");
            let hashes: Vec<&[u8]> = inner.hashed_reads.iter().map(|read| &read.key_hash[..]).collect();
            assert_eq!(set.hashed_reads(&ours).map(|read| set.read_hash(&read).to_vec()).collect::<Vec<_>>(), hashes);
            let metadata: Vec<&[u8]> = inner.metadata_writes.iter().map(|write| &write.key_hash[..]).collect();
            let read: Vec<Vec<u8>> =
                set.hashed_metadata_writes(&ours).map(|write| set.metadata_hash(&write).to_vec()).collect();
            assert_eq!(read, metadata);
        }
    }
}

fn order_link_seeds() -> Vec<Vec<u8>> {
    let request = protocol::DeliverRequest { channel: "mychannel".to_owned(), from: 7 }.encode();
    let replies = [
        protocol::DeliverResponse::Keepalive,
        protocol::DeliverResponse::Rejection("no".to_owned()),
        protocol::DeliverResponse::Block(Bytes::from_static(&[10, 0])),
    ];
    [request].into_iter().chain(replies.map(protocol::DeliverResponse::encode)).map(|bytes| bytes.to_vec()).collect()
}

fn order_links(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(request) = authenticated(input, || protocol::DeliverRequest::decode(&bytes)) {
        assert_eq!(request.encode(), bytes);
    }
    if let Ok(reply) = authenticated(input, || protocol::DeliverResponse::decode(bytes)) {
        // A refusal is for people: bytes that are not text are replaced in it, and it may be truncated again.
        let shown = matches!(reply, protocol::DeliverResponse::Rejection(_));
        assert!(shown || protocol::DeliverResponse::decode(reply.clone().encode()) == Ok(reply));
    }
}

fn peer_link_seeds() -> Vec<Vec<u8>> {
    let at = || BlockAt { channel: "ch".to_owned(), number: 7 };
    let proposal = Bytes::from(proposals().swap_remove(0));
    let asks = [
        Ask::Hello(Hello::new(PROTOCOL_VERSIONS)),
        Ask::Process(proposal.clone()),
        Ask::Block(at()),
        Ask::Status(StatusRequest { channel: "ch".to_owned(), tx_id: "ab".to_owned() }),
        Ask::Follow(at()),
        Ask::Config("ch".to_owned()),
        Ask::Broadcast(BroadcastEnvelope { channel: "ch".to_owned(), envelope: Bytes::from_static(b"envelope") }),
    ];
    let failure = RemoteFailure { error: 5, texts: vec!["a".to_owned(), "b".to_owned()], number: 3 };
    let notice = CommitNotification {
        channel: "ch".to_owned(),
        number: 7,
        transactions: vec![CommittedTx { tx_id: "ab".to_owned(), code: 11 }],
        failure: None,
        changes_policies: true,
        written_rows: Bytes::from(written_row_seeds().swap_remove(1)),
    };
    let others = [
        Hello::new(PROTOCOL_VERSIONS).answer(|| vec![at()]).expect("it is a hello").encode_to_vec(),
        ResultResponse { result: Bytes::from_static(b"result"), failure: Some(failure) }.encode_to_vec(),
        BlockResponse { block: Some(Bytes::from_static(b"block")) }.encode_to_vec(),
        StatusResponse { status: Some(TransactionStatus { code: 1, block: 2 }) }.encode_to_vec(),
        notice.encode_to_vec(),
    ];
    asks.into_iter().map(|ask| PeerRequest { ask: Some(ask) }.encode_to_vec()).chain(others).collect()
}

fn peer_links(input: &[u8]) {
    fn again<M: Message + Default + PartialEq + std::fmt::Debug>(
        input: &[u8],
        read: fn(Bytes) -> Result<M, messages::Malformed>,
    ) -> Option<M> {
        let bytes = Bytes::copy_from_slice(input);
        let message = authenticated(input, || read(bytes)).ok()?;
        assert_eq!(M::decode(&message.encode_to_vec()[..]).as_ref(), Ok(&message));
        Some(message)
    }
    again::<PeerRequest>(input, PeerRequest::read);
    again::<Welcome>(input, messages::decode);
    again::<BlockResponse>(input, messages::decode);
    again::<StatusResponse>(input, messages::decode);
    again::<CommitNotification>(input, messages::decode);
    again::<PrivatePullResponse>(input, messages::decode);
    if let Some(failure) = again(input, ResultResponse::read).and_then(|answer| answer.failure) {
        let _ = failure.clone().into_broadcast().to_string();
        let error = failure.into_endorse();
        let come_back = RemoteFailure::of_endorse(&error).into_endorse();
        assert_eq!((come_back.kind(), come_back.to_string()), (error.kind(), error.to_string()));
    }
}

fn written_row_seeds() -> Vec<Vec<u8>> {
    let key = RowKey::random();
    let seed = |rows: u32| {
        let mut batch = UpdateBatch::default();
        for row in 0..rows {
            batch.put(&"ns".into(), row.to_string().into(), None, Version::new(7, row));
        }
        WrittenRows::of(&key, &batch).bytes().to_vec()
    };
    [0, 1, 20].map(seed).into()
}

fn written_rows(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(rows) = authenticated(input, || WrittenRows::decode(bytes.clone())) else { return };
    assert_eq!(*rows.bytes(), bytes);
    RecentWrites::default().note(u64::MAX, &rows);
}

fn offloaded_seeds() -> Vec<Vec<u8>> {
    let envelopes = ["one", "", "three"].map(|text| Bytes::from_static(text.as_bytes())).to_vec();
    let chunk = VerificationPart { policies_digest: [7; 32], block: 5, first: 16, envelopes };
    let words = SignatureVerdicts {
        rules: [7; 32],
        block: 5,
        first: 16,
        verdicts: vec![SignatureVerdict::Valid, SignatureVerdict::Unsigned, SignatureVerdict::Unendorsed],
    };
    vec![chunk.encode().to_vec(), words.encode().to_vec()]
}

fn offloaded(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(chunk) = authenticated(input, || VerificationPart::decode(bytes.clone())) {
        assert_eq!(chunk.encode(), bytes);
    }
    if let Ok(words) = authenticated(input, || SignatureVerdicts::decode(bytes.clone())) {
        assert_eq!(words.encode(), bytes);
    }
}
