//! Decoders of the RMA provider `verbs`, which uses RDMA adapters.

use ::wire::hello::HelloAnswer;
use base::fuzz::{FuzzTarget, InputShape, untrusted};
use rma::{GrantId, NodeId, RegionId, Rights};
use rma_verbs::wire::{FRAME_BYTES, Frame, HEADER_BYTES, MessageHeader, PROTOCOL_VERSIONS, PairAddress, RemoteRegion};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "rma-verbs-frames", shape: InputShape::Bytes, run: verbs_frame, seeds: verbs_frames },
    FuzzTarget { name: "rma-verbs-headers", shape: InputShape::Bytes, run: verbs_header, seeds: verbs_headers },
];

fn verbs_frames() -> Vec<Vec<u8>> {
    let pair =
        PairAddress { number: 0x11, first_packet: 0x0022_3344, gid: [0xa7; 16], lid: 0x5566, mtu: 3, reads_max: 16 };
    let remote = RemoteRegion { key: 9, rights: Rights::ALL, address: 0x7f00_0000_1000, bytes: 4096 };
    let frames = [
        Frame::Hello { versions: PROTOCOL_VERSIONS, name: "peer0".to_owned(), nonce: [1; 32] },
        Frame::Challenge { answer: HelloAnswer::to(PROTOCOL_VERSIONS, PROTOCOL_VERSIONS), nonce: [2; 32] },
        Frame::Join { pair, proof: [3; 32] },
        Frame::Welcome { node: NodeId(4), pair, proof: [5; 32] },
        Frame::Opened { request: 8, remote },
        Frame::Revoke { request: 10, region: RegionId(11), grant: GrantId(12), generation: 13 },
        Frame::Drained { request: 14 },
    ];
    frames.iter().map(|frame| frame.encode().to_vec()).collect()
}

fn verbs_frame(input: &[u8]) {
    let mut bytes = [0; FRAME_BYTES];
    let length = input.len().min(FRAME_BYTES);
    bytes[..length].copy_from_slice(&input[..length]);
    if let Ok(frame) = untrusted(input, || Frame::decode(&bytes)) {
        assert_eq!(frame.encode(), bytes);
    }
}

fn verbs_headers() -> Vec<Vec<u8>> {
    let immediate = MessageHeader::Immediate { immediate: 1, region: RegionId(2), offset: 3, length: 4 };
    [MessageHeader::Piece { last: true }, MessageHeader::Piece { last: false }, immediate]
        .map(|header| header.encode().to_vec())
        .to_vec()
}

fn verbs_header(input: &[u8]) {
    if let Ok((header, rest)) = untrusted(input, || MessageHeader::decode(input)) {
        assert_eq!((&header.encode()[..], rest), input.split_at(HEADER_BYTES));
    }
}
