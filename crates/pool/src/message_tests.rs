use proptest::prelude::*;

use super::*;
use crate::fuzz::messages as decode_anything;

fn capability() -> Capability {
    let mut bytes = [7; CAPABILITY_BYTES];
    bytes[10] = 7;
    bytes[11..16].fill(0);
    Capability::decode(&bytes).expect("it is well-formed")
}

fn requests() -> Vec<(Request, &'static str)> {
    vec![
        (
            Request::Hello { versions: VersionRange::new(1, 3), section_bytes: 16 << 20 },
            "01000000 01000000 48444c52504f4f4c 01000000 03000000 0000000100000000",
        ),
        (
            Request::Fence { epoch: Epoch(3), nonce: 0xA1, keep: true },
            "02000000 02000000 0300000000000000 a100000000000000 0100000000000000",
        ),
        (Request::Grant { bytes: 16 << 20, number: 7 }, "03000000 03000000 0000000100000000 07000000 00000000"),
        (Request::Release { section: 9 }, "04000000 04000000 0900000000000000"),
        (Request::List, "05000000 05000000"),
        (Request::Capacity, "06000000 06000000"),
        (Request::GrantRead { section: 9, follower: 5 }, "07000000 07000000 0900000000000000 0500000000000000"),
        (Request::RevokeReads { follower: 5 }, "08000000 08000000 0500000000000000"),
        (Request::Adopt { section: 9 }, "09000000 09000000 0900000000000000"),
    ]
}

fn replies() -> Vec<(Response, String)> {
    let capability_hex: String = capability().encode().iter().map(|byte| format!("{byte:02x}")).collect();
    vec![
        (
            Response::Welcome {
                hello: HelloAnswer::accept(VersionRange::new(1, 3), 3),
                node: 2,
                section_bytes: 4096,
                budget_bytes: 8192,
                free_bytes: 4096,
                incarnation: 5,
            },
            "81000000 01000000 03000000 01000000 03000000 02000000 0010000000000000 0020000000000000 0010000000000000 0500000000000000"
                .to_owned(),
        ),
        (
            Response::Fenced { free_bytes: 4096, revoked: 2 },
            "82000000 02000000 0010000000000000 02000000 00000000".to_owned(),
        ),
        (
            Response::Granted { free_bytes: 4096, section: 9, bytes: 4096, capability: capability() },
            format!("83000000 03000000 0010000000000000 0900000000000000 0010000000000000 {capability_hex}"),
        ),
        (Response::Released { free_bytes: 4096 }, "84000000 04000000 0010000000000000".to_owned()),
        (
            Response::Listed { free_bytes: 4096, sections: vec![(9, 4096)] },
            "85000000 05000000 0010000000000000 01000000 00000000 0900000000000000 0010000000000000".to_owned(),
        ),
        (
            Response::Capacity { free_bytes: 4096, budget_bytes: 8192 },
            "86000000 06000000 0010000000000000 0020000000000000".to_owned(),
        ),
        (
            Response::ReadGranted { free_bytes: 4096, section: 9, capability: capability() },
            format!("87000000 07000000 0010000000000000 0900000000000000 {capability_hex}"),
        ),
        (
            Response::ReadsRevoked { free_bytes: 4096, revoked: 2 },
            "88000000 08000000 0010000000000000 02000000 00000000".to_owned(),
        ),
        (
            Response::Adopted { free_bytes: 4096, section: 9, bytes: 4096, number: 7, capability: capability() },
            format!(
                "89000000 09000000 0010000000000000 0900000000000000 0010000000000000 07000000 00000000 {capability_hex}"
            ),
        ),
        (
            Response::Rejected { rejection: Rejection::Fenced, detail: 4, text: "no".to_owned() },
            "ff000000 0a000000 04000000 00000000 0400000000000000 6e6f".to_owned(),
        ),
    ]
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
    let digit = |byte: u8| (byte as char).to_digit(16).expect("golden bytes are hexadecimal") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

#[test]
fn messages_have_the_documented_bytes() {
    for (number, (request, golden)) in (1..).zip(requests()) {
        assert_eq!(request.encode(number)[..], bytes_of(golden), "{request:?}");
        assert_eq!(Request::decode(&bytes_of(golden)), Ok((number, request)));
    }
    for (number, (reply, golden)) in (1..).zip(replies()) {
        assert_eq!(reply.encode(number)[..], bytes_of(&golden), "{reply:?}");
        let (decoded_number, decoded) = Response::decode(&bytes_of(&golden)).expect("golden bytes decode");
        assert_eq!((decoded_number, &decoded.encode(number)[..]), (number, &bytes_of(&golden)[..]));
    }
}

#[test]
fn the_golden_bytes_are_those_of_the_document() {
    let document = include_str!("../../../docs/formats/section-table.md");
    for golden in requests().iter().map(|(_, golden)| *golden) {
        assert!(document.contains(golden), "{golden} is missing in docs/formats/section-table.md");
    }
    // A capability's bytes are specified in another document.
    let has_capability = |reply: &Response| {
        matches!(reply, Response::Granted { .. } | Response::ReadGranted { .. } | Response::Adopted { .. })
    };
    for (reply, golden) in replies().iter().filter(|(reply, _)| !has_capability(reply)) {
        assert!(document.contains(golden), "{reply:?}: {golden} is missing in docs/formats/section-table.md");
    }
}

#[test]
fn another_version_is_told_whatever_follows_the_hello() {
    let versions = VersionRange::new(PROTOCOL_VERSIONS.newest() + 1, 9);
    let hello = Request::OtherVersions(versions).encode(1);
    let bytes = [&hello[..], &[0xEE; 40]].concat();
    assert_eq!(Request::decode(&bytes), Ok((1, Request::OtherVersions(versions))));
    assert!(Request::decode(&hello[..hello.len() - 1]).is_err());
    let answer = Response::OtherVersions(HelloAnswer::refuse(versions)).encode(1);
    let Ok((1, Response::OtherVersions(told))) = Response::decode(&[&answer[..], &[0xEE; 40]].concat()) else {
        panic!("it refuses")
    };
    assert!(told.chosen_by(PROTOCOL_VERSIONS).is_err_and(|mismatch| mismatch.is_ours_older()));
}

#[test]
fn every_prefix_and_every_longer_message_is_refused() {
    let encoded = requests().into_iter().map(|(request, _)| request.encode(1));
    for bytes in encoded {
        for length in 0..bytes.len() {
            assert!(Request::decode(&bytes[..length]).is_err(), "{length} bytes of {bytes:?}");
        }
        assert!(Request::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
    for (reply, _) in replies() {
        let bytes = reply.encode(1);
        let text = matches!(reply, Response::Rejected { .. });
        for length in 0..bytes.len() {
            assert!(
                Response::decode(&bytes[..length]).is_err() || (text && length >= 24),
                "{length} bytes of {reply:?}"
            );
        }
        assert!(text || Response::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}

#[test]
fn a_list_that_claims_more_than_it_has_is_refused_before_room_is_made_for_it() {
    let mut bytes = Response::Listed { free_bytes: 0, sections: vec![(1, 4096)] }.encode(1).to_vec();
    bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Response::decode(&bytes).is_err());
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let reply = Response::Rejected { rejection: Rejection::Exhausted, detail: 0, text: "é".repeat(TEXT_BYTES_MAX) };
    let (_, decoded) = Response::decode(&reply.encode(1)).expect("what is encoded decodes");
    assert!(matches!(decoded, Response::Rejected { text, .. } if text.len() == TEXT_BYTES_MAX));
}

proptest! {
    #[test]
    fn whatever_arrives_is_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
        decode_anything(&bytes);
    }

    #[test]
    fn whatever_almost_is_a_message_is_a_message_or_an_error(
        which in 0..17_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut all: Vec<Bytes> = requests().into_iter().map(|(request, _)| request.encode(1)).collect();
        all.extend(replies().into_iter().map(|(reply, _)| reply.encode(1)));
        let mut bytes = all[which].to_vec();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        decode_anything(&bytes);
    }
}
