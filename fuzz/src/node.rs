//! Decoders of `node` (link frames, configuration files, requests to a process) and of `gateway`, with seeds from a
//! network.

use base::fuzz::{FuzzTarget, InputShape, untrusted, within};
use base::{Bytes, BytesMut};
use link_transport::frames::{self, DecodedFrame};
use node::config::HeddleConfig;
use node::control;
use node::process::ProcessRole;
use node::process::file::NodeFile;
use prost::Message;
use proto::{common, gateway, orderer, protos};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "node-link-frames", shape: InputShape::Bytes, run: link_frames, seeds: link_frame_seeds },
    FuzzTarget { name: "node-config", shape: InputShape::Bytes, run: config, seeds: configs },
    FuzzTarget { name: "node-file", shape: InputShape::Bytes, run: file, seeds: files },
    FuzzTarget { name: "node-control", shape: InputShape::Bytes, run: requests, seeds: request_seeds },
];

fn link_frame_seeds() -> Vec<Vec<u8>> {
    vec![b"\x05\0\0\0\0\0\0\0hello\x00\0\0\0\x01\0\0\0".to_vec(), b"\x02\0\0\0\0\0\0\0ab".to_vec()]
}

/// However the bytes arrive, the frames are the same, and apart from the first step the reader never reserves more than has
/// arrived.
fn link_frames(input: &[u8]) {
    let Some((step, input)) = input.split_first() else { return };
    let all = |step: usize| {
        let (mut buffer, mut given, mut found) = (BytesMut::new(), 0, Vec::new());
        loop {
            match frames::decode(&mut buffer) {
                Ok(DecodedFrame::Incomplete(room)) => {
                    assert!(room <= given.max(1 << 20), "{room} bytes of room after {given}");
                    if given == input.len() {
                        return (found, true);
                    }
                    let end = (given + step).min(input.len());
                    buffer.extend_from_slice(&input[given..end]);
                    given = end;
                }
                Ok(frame) => found.push(frame),
                Err(_) => return (found, false),
            }
        }
    };
    assert_eq!(all(usize::from(*step).max(1)), all(input.len().max(1)));
}

fn configs() -> Vec<Vec<u8>> {
    vec![HeddleConfig::default().to_text().into_bytes()]
}

fn config(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(config) = HeddleConfig::parse(text, "heddle.toml") else { return };
    assert_eq!(HeddleConfig::parse(&config.to_text(), "its own text").expect("what is written is read"), config);
}

const ROLES: [ProcessRole; 5] =
    [ProcessRole::Memory, ProcessRole::Storage, ProcessRole::Orderer, ProcessRole::Compute, ProcessRole::Gateway];

fn files() -> Vec<Vec<u8>> {
    ["role = \"memory\"\nname = \"m1\"\n[memory]\naddress = \"127.0.0.1:1\"\n", "role = \"gateway\"\n[gateway]\n"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec()
}

fn file(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    for role in ROLES {
        if let Ok(file) = NodeFile::parse(role, text, "node.toml") {
            let again = NodeFile::parse(role, &file.to_text(), "its own text").expect("what is written is read");
            assert_eq!(again.to_text(), file.to_text());
        }
    }
}

fn request_seeds() -> Vec<Vec<u8>> {
    let requests = [
        control::ControlRequest::Memory {},
        control::ControlRequest::SetMemory { bytes: 4096 },
        control::ControlRequest::AdmitOrderer { number: 2, address: "localhost:1".to_owned() },
    ];
    requests.iter().map(|request| serde_json::to_vec(request).expect("plain values are JSON")).collect()
}

fn requests(input: &[u8]) {
    // The process reads no more of a request.
    let line = &input[..input.len().min(control::REQUEST_BYTES_MAX as usize)];
    if let Ok(request) = untrusted(line, || serde_json::from_slice::<control::ControlRequest>(line)) {
        let again = serde_json::to_vec(&request).expect("plain values are JSON");
        assert_eq!(
            serde_json::from_slice::<control::ControlRequest>(&again).expect("what is written is read"),
            request
        );
    }
    let _ = within(4, input.len(), || serde_json::from_slice::<control::ControlResponse>(input));
}

/// The targets of `gateway`, with seeds made from a network's envelopes.
pub fn gateway_targets() -> Vec<FuzzTarget> {
    ::gateway::fuzz::targets()
        .into_iter()
        .map(|target| match target.name {
            "gateway-proposals" => FuzzTarget { seeds: proposal_requests, ..target },
            "gateway-seeks" => FuzzTarget { seeds: seek_requests, ..target },
            "gateway-requests" => FuzzTarget { seeds: other_requests, ..target },
            _ => target,
        })
        .collect()
}

fn proposal_requests() -> Vec<Vec<u8>> {
    let of = |signed: Vec<u8>| {
        gateway::EndorseRequest {
            transaction_id: "ab".to_owned(),
            channel_id: "mychannel".to_owned(),
            proposed_transaction: Some(protos::SignedProposal::decode(&signed[..]).expect("a seed decodes")),
            endorsing_organizations: vec!["Org1MSP".to_owned()],
        }
        .encode_to_vec()
    };
    crate::chain::proposals().into_iter().map(of).collect()
}

fn seek_requests() -> Vec<Vec<u8>> {
    let position = |number| orderer::SeekPosition {
        r#type: Some(orderer::seek_position::Type::Specified(orderer::SeekSpecified { number })),
    };
    let info = orderer::SeekInfo { start: Some(position(0)), stop: Some(position(u64::MAX)), ..Default::default() };
    let seconds = ::gateway::fuzz::NOW_SECONDS as i64;
    let channel_header = common::ChannelHeader {
        channel_id: "mychannel".to_owned(),
        timestamp: Some(prost_types::Timestamp { seconds, nanos: 0 }),
        ..Default::default()
    };
    let signature_header = common::SignatureHeader { creator: Bytes::from_static(b"creator"), nonce: Bytes::new() };
    let header = common::Header {
        channel_header: channel_header.encode_to_vec().into(),
        signature_header: signature_header.encode_to_vec().into(),
    };
    let payload = common::Payload { header: Some(header), data: info.encode_to_vec().into() };
    let signature = Bytes::from_static(b"signature");
    vec![common::Envelope { payload: payload.encode_to_vec().into(), signature }.encode_to_vec()]
}

fn other_requests() -> Vec<Vec<u8>> {
    let status = gateway::CommitStatusRequest {
        transaction_id: "ab".to_owned(),
        channel_id: "mychannel".to_owned(),
        identity: Bytes::from_static(b"identity"),
    };
    let signed = gateway::SignedCommitStatusRequest {
        request: status.encode_to_vec().into(),
        signature: Bytes::from_static(b"signature"),
    };
    vec![status.encode_to_vec(), signed.encode_to_vec(), seek_requests().remove(0)]
}
