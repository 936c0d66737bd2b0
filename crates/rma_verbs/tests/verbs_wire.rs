//! The formats of the provider over RDMA adapters: every encoded frame and header can be decoded, and no other bytes can.

use rma::{CAPABILITY_BYTES, GrantId, NodeId, RegionId, Rights, Token};
use rma_verbs::wire::{
    FRAME_BYTES, Frame, HEADER_BYTES, HandshakeTranscript, MessageHeader, NAME_BYTES_MAX, PROTOCOL_VERSIONS,
    PairAddress, Rejection, RemoteRegion,
};
use wire::VersionRange;
use wire::hello::HelloAnswer;

fn pair() -> PairAddress {
    PairAddress { number: 0x11, first_packet: 0x0022_3344, gid: [0xa7; 16], lid: 0x5566, mtu: 3, reads_max: 16 }
}

fn every_frame() -> Vec<Frame> {
    let remote = RemoteRegion { key: 9, rights: Rights::ALL, address: 0x7f00_0000_1000, bytes: 4096 };
    let mut frames = vec![
        Frame::Hello { versions: PROTOCOL_VERSIONS, name: "peer0".to_owned(), nonce: [1; 32] },
        Frame::Hello { versions: VersionRange::new(7, 9), name: "n".repeat(NAME_BYTES_MAX), nonce: [1; 32] },
        Frame::Challenge { answer: HelloAnswer::to(PROTOCOL_VERSIONS, PROTOCOL_VERSIONS), nonce: [2; 32] },
        Frame::Challenge { answer: HelloAnswer::refuse(PROTOCOL_VERSIONS), nonce: [0; 32] },
        Frame::Join { pair: pair(), proof: [3; 32] },
        Frame::Welcome { node: NodeId(4), pair: pair(), proof: [5; 32] },
        Frame::Ready,
        Frame::Open { request: 6, capability: [7; CAPABILITY_BYTES] },
        Frame::Opened { request: 8, remote },
        Frame::Revoke { request: 10, region: RegionId(11), grant: GrantId(12), generation: 13 },
        Frame::Drained { request: 14 },
    ];
    let rejections = [Rejection::Unauthenticated, Rejection::Unknown, Rejection::Revoked, Rejection::Exhausted];
    frames.extend(rejections.map(|rejection| Frame::Rejected { request: 15, rejection }));
    frames
}

#[test]
fn every_frame_is_read_back() {
    for frame in every_frame() {
        assert_eq!(Frame::decode(&frame.encode()).expect("it is well-formed"), frame);
    }
}

#[test]
fn frames_have_the_documented_bytes() {
    let hello = Frame::Hello { versions: VersionRange::new(1, 2), name: "peer0".to_owned(), nonce: [1; 32] }.encode();
    let mut expected = b"\x01\0\0\0\0\0\0\0heddlerv\x01\0\0\0\x02\0\0\0".to_vec();
    expected.extend([1; 32]);
    expected.extend(b"\x05peer0");
    assert_eq!(hello[..expected.len()], expected);
    let answer = HelloAnswer::accept(VersionRange::new(1, 2), 2);
    let challenge = Frame::Challenge { answer, nonce: [2; 32] }.encode();
    assert_eq!(challenge[..20], *b"\x02\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\x02\0\0\0");
    let open = Frame::Open { request: 0x0102, capability: [7; CAPABILITY_BYTES] }.encode();
    assert_eq!(open[..8], [6, 0, 0, 0, 2, 1, 0, 0]);
    assert_eq!(open[8..48], [7; 40]);
    assert_eq!(open[48..], [0; 80]);
    let join = Frame::Join { pair: pair(), proof: [3; 32] }.encode();
    let mut expected = vec![3, 0, 0, 0, 0, 0, 0, 0, 0x11, 0, 0, 0, 0x44, 0x33, 0x22, 0];
    expected.extend([0xa7; 16]);
    expected.extend([0x66, 0x55, 3, 16]);
    expected.extend([3; 32]);
    assert_eq!(join[..expected.len()], expected);
}

/// Any other value of an unused byte is rejected, so that a later version can give it a meaning.
#[test]
fn unused_bytes_must_be_zero() {
    for frame in every_frame() {
        let good = frame.encode();
        for at in 0..FRAME_BYTES {
            let mut bad = good;
            bad[at] ^= 0x80;
            if let Ok(other) = Frame::decode(&bad) {
                assert_eq!(other.encode(), bad, "byte {at} of {frame:?}");
            }
        }
    }
}

#[test]
fn headers_are_read_back_and_others_refused() {
    let immediate = MessageHeader::Immediate { immediate: 1, region: RegionId(2), offset: 3, length: 4 };
    for header in [MessageHeader::Piece { last: true }, MessageHeader::Piece { last: false }, immediate] {
        let bytes = header.encode();
        assert_eq!(MessageHeader::decode(&bytes).expect("it is well-formed"), (header, &[][..]));
        for at in 0..HEADER_BYTES {
            let mut bad = bytes;
            bad[at] ^= 0x40;
            if let Ok((other, _)) = MessageHeader::decode(&bad) {
                assert_eq!(other.encode(), bad, "byte {at} of {header:?}");
            }
        }
        assert!(MessageHeader::decode(&bytes[1..]).is_err());
    }
}

#[test]
fn a_proof_holds_for_one_transcript_and_one_role() {
    let (token, other) = (Token::new([1; 32]), Token::new([2; 32]));
    let (client, host, pair) = ([3; 32], [4; 32], pair());
    let (versions, answer) = (VersionRange::new(1, 2), HelloAnswer::accept(VersionRange::new(2, 3), 2));
    let transcript = HandshakeTranscript {
        versions,
        answer,
        name: "peer0",
        client_nonce: &client,
        host_nonce: &host,
        client_pair: &pair,
    };
    let proof = transcript.client_proof(&token);
    assert!(transcript.client_proved(&token, &proof));
    assert!(!transcript.client_proved(&other, &proof));
    assert!(!transcript.host_proved(&token, NodeId(1), &pair, &proof));
    let older = HandshakeTranscript { versions: VersionRange::only(1), ..transcript };
    assert!(!older.client_proved(&token, &proof), "nobody can change the range of versions");
    let older = HandshakeTranscript { answer: HelloAnswer::accept(VersionRange::new(1, 3), 1), ..transcript };
    assert!(!older.client_proved(&token, &proof));
    let moved = PairAddress { number: 12, ..pair };
    assert!(!HandshakeTranscript { client_pair: &moved, ..transcript }.client_proved(&token, &proof));
    assert!(!HandshakeTranscript { host_nonce: &client, ..transcript }.client_proved(&token, &proof));
}
