//! Tests of the messages: golden bytes, and bytes that are not a message.

use base::rt::net::GatherList;
use base::{TxIndex, Version};
use wire::VersionRange;

use super::*;
use crate::blocks::{StoredBlock, TransactionLocation};
use crate::node::epoch::EpochRecord;
use crate::node::message::{AppendRequest, Hello, KeyList, Notification, Request, TxIdList, Welcome, response};
use crate::tables::{RangeEntry, RangePage, Row, Savepoint};

/// The body in one piece, as it travels.
fn flat(body: impl Into<GatherList>) -> Bytes {
    body.into().concat()
}

fn hello() -> Hello {
    Hello {
        versions: VersionRange::new(1, 2),
        purpose: LinkPurpose::Appender,
        epoch: Epoch(5),
        token: Bytes::from_static(b"key"),
        channel: "alpha".to_owned(),
    }
}

fn opened() -> Welcome {
    let savepoint = Savepoint { height: 8, epoch: Epoch(4), block_hash: [3; 32] };
    Welcome { tip: ChainTip { height: 9, header_hash: [2; 32], epoch: Epoch(4) }, durable: 9, savepoint }
}

fn answer_rows(rows: &[Option<Row>]) -> Bytes {
    let mut response = response::ResponseWriter::default();
    rows.iter().for_each(|row| response.row(row.as_ref()));
    flat(response.done())
}

fn requests() -> Vec<Request> {
    let through = BlockNumber(7);
    let keys = KeyList::new(&[("cc", b"a"), ("", b"")]);
    let append = AppendRequest {
        number: BlockNumber(9),
        epoch: Epoch(5),
        header_hash: [1; 32],
        previous_hash: [2; 32],
        transactions: vec![(TxId::from("tx"), 11), (TxId::from(""), 0)],
        payload: Bytes::from_static(b"block").into(),
    };
    vec![
        Request::Append(append),
        Request::Close,
        Request::Read(through),
        Request::Page { from: through, limit: 3 },
        Request::Transactions(through),
        Request::NumberByHash([9; 32]),
        Request::FindTransactions(TxIdList::new(&[TxId::from("a"), TxId::from("")])),
        Request::Tags(200),
        Request::Rows { through, keys: keys.clone() },
        Request::Versions { through, keys },
        Request::Range {
            through,
            limit: 2,
            namespace: "cc".to_owned(),
            start: Bytes::from_static(b"a"),
            end: Bytes::new(),
        },
        Request::Namespaces,
        Request::Materialize { epoch: Epoch(5), height: 9 },
        Request::Prune { epoch: Epoch(5), oldest: through },
        Request::Confirm { epoch: Epoch(5) },
        Request::Channels,
        Request::Epoch("alpha".to_owned()),
        Request::Begin("alpha".to_owned()),
        Request::History { below: through, limit: 2, namespace: "cc".to_owned(), key: Bytes::from_static(b"a") },
        Request::BeginAfter { newest: Epoch(5), channel: "alpha".to_owned() },
    ]
}

#[test]
fn messages_have_the_documented_bytes() {
    let bytes = hello().encode();
    assert_eq!(bytes[..], *b"HEDDLEST\x01\0\0\0\x02\0\0\0\x01\x05\0\0\0\0\0\0\0\x03\0key\x05\0alpha");
    let append = flat(requests()[0].encode());
    let mut expected = b"\x01\x09\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0".to_vec();
    expected.extend([1; 32].into_iter().chain([2; 32]));
    expected.extend_from_slice(b"\x02\0\0\0\x0c\0\0\0\x0b\x02\0\0\0tx\0\0\0\0\0block");
    assert_eq!(append[..], expected);
    let rows = flat(requests()[8].encode());
    assert_eq!(rows[..], *b"\x10\x07\0\0\0\0\0\0\0\x02\0\0\0\x02\0cc\x01\0\0\0a\0\0\0\0\0\0");
    let prune = flat(requests()[13].encode());
    assert_eq!(prune[..], *b"\x15\x05\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0");
    let history = flat(requests()[18].encode());
    assert_eq!(history[..], *b"\x19\x07\0\0\0\0\0\0\0\x02\0\0\0\x02\0cc\x01\0\0\0a");
    let begin_after = flat(requests()[19].encode());
    assert_eq!(begin_after[..], *b"\x1b\x05\0\0\0\0\0\0\0\x05\0alpha");
    assert_eq!(Notification::Durable(9).encode()[..], *b"\x01\x09\0\0\0\0\0\0\0");
    let row = Row { version: Version::new(7, 1), value: Some(Bytes::from_static(b"v")) };
    let rows = answer_rows(&[None, Some(row)]);
    assert_eq!(rows[..], *b"\0\x02\x07\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0v");
    assert_eq!(opened().encode().len(), 48 + 8 + 48);
}

#[test]
fn what_is_written_is_read_again() {
    assert_eq!(Hello::decode(hello().encode()), Ok(Ok(hello())));
    let versions = VersionRange::new(3, 9);
    let other = [&Hello { versions, ..hello() }.encode()[..16], b"of version 3"].concat();
    assert_eq!(Hello::decode(other.into()), Ok(Err(versions)));
    assert_eq!(Welcome::decode(opened().encode()), Ok(opened()));
    for request in requests() {
        assert_eq!(Request::decode(request.encode()).as_ref(), Ok(&request), "in parts");
        assert_eq!(Request::decode(flat(request.encode())), Ok(request));
    }
    for notice in [Notification::Durable(4), Notification::Savepoint(opened().savepoint)] {
        assert_eq!(Notification::decode(notice.encode()), Ok(notice));
    }
    let block = StoredBlock {
        number: BlockNumber(9),
        header_hash: [1; 32],
        previous_hash: [2; 32],
        epoch: Epoch(5),
        payload: Bytes::from_static(b"block"),
        transactions: vec![(TxId::from("tx"), 11)],
    };
    let blocks = vec![block.clone(), StoredBlock { payload: Bytes::new(), ..block.clone() }];
    assert!(response::read_blocks(flat(response::blocks(&blocks)), 1).is_err(), "one was asked for");
    assert_eq!(response::read_blocks(flat(response::blocks(&blocks)), 2), Ok(blocks));
    for bytes in [None, Some(Bytes::new()), Some(block.payload)] {
        assert_eq!(response::read_maybe_block(flat(response::maybe_block(bytes.clone()))), Ok(bytes));
    }
    for number in [None, Some(0)] {
        assert_eq!(response::read_maybe_number(flat(response::maybe_number(number))), Ok(number));
    }
    for list in [None, Some(Vec::new()), Some(block.transactions)] {
        assert_eq!(response::read_maybe_transactions(flat(response::maybe_transactions(list.clone()))), Ok(list));
    }
    let places = vec![None, Some(TransactionLocation { block: BlockNumber(3), index: TxIndex(2), code: 1 })];
    let mut response = response::ResponseWriter::default();
    places.iter().for_each(|place| response.place(*place));
    let mut read = Vec::new();
    assert_eq!(response::read_places(flat(response.done()), 2, &mut read), Ok(()));
    assert_eq!(read, places);
    let tags = vec![7, u32::MAX - 1];
    let written = flat(response::tags(&tags));
    assert_eq!(response::read_tags(&written).map(Iterator::collect), Ok(tags));
    assert!(response::read_tags(&written.slice(1..)).is_err());
    let version = Version::new(7, 1);
    let rows = vec![None, Some(Row { version, value: None }), Some(Row { version, value: Some(Bytes::new()) })];
    let (written, mut read) = (answer_rows(&rows), Vec::new());
    assert_eq!(response::read_rows(written.clone(), 3, &mut read), Ok(()));
    assert_eq!(read, rows);
    for (bytes, count) in [(written, 2), (Bytes::new(), 2)] {
        assert!(response::read_rows(bytes, count, &mut read).is_err());
    }
    let versions = vec![None, Some((version, true)), Some((version, false))];
    let mut response = response::ResponseWriter::default();
    versions.iter().for_each(|version| response.version(*version));
    let mut read = Vec::new();
    assert_eq!(response::read_versions(flat(response.done()), 3, &mut read), Ok(()));
    assert_eq!(read, versions);
    let entry = RangeEntry { key: Bytes::from_static(b"k"), value: Bytes::from_static(b"v"), version };
    for next in [None, Some(Bytes::from_static(b"l"))] {
        let page = RangePage { entries: vec![entry.clone()], next };
        assert_eq!(response::read_page(flat(response::page(&page))), Ok(page));
    }
    let numbers = vec![BlockNumber(9), BlockNumber(3)];
    assert_eq!(response::read_numbers(flat(response::numbers(&numbers)), 2), Ok(numbers.clone()));
    assert!(response::read_numbers(flat(response::numbers(&numbers)), 1).is_err());
    let names = vec!["a".to_owned(), String::new()];
    assert_eq!(response::read_names(flat(response::names(&names))), Ok(names));
}

#[test]
fn bytes_by_chance_are_refused_and_never_panic() {
    let mut rng = Prng::new(11);
    let mut seeds: Vec<Bytes> = requests().into_iter().map(|request| flat(request.encode())).collect();
    seeds.extend([hello().encode(), opened().encode(), Notification::Durable(4).encode()]);
    for _ in 0..20_000 {
        let mut bytes = rng.pick(&seeds).to_vec();
        for _ in 0..1 + rng.index(4) {
            let at = rng.index(bytes.len());
            bytes[at] = *rng.pick(&[0, 1, 2, 0x7f, 0xff, 0x20]);
        }
        if rng.one_in(3) {
            bytes.truncate(rng.index(bytes.len() + 1));
        }
        let bytes = Bytes::from(bytes);
        let _ = Request::decode(bytes.clone());
        let _ = Hello::decode(bytes.clone());
        let _ = Welcome::decode(bytes.clone());
        let _ = Notification::decode(bytes.clone());
        let _ = response::read_blocks(bytes.clone(), 5);
        let _ = response::read_rows(bytes.clone(), 5, &mut Vec::new());
        let _ = response::read_versions(bytes.clone(), 5, &mut Vec::new());
        let _ = response::read_places(bytes.clone(), 5, &mut Vec::new());
        let _ = response::read_page(bytes.clone());
        let _ = response::read_names(bytes.clone());
        let _ = response::read_numbers(bytes.clone(), 5);
        let _ = response::read_maybe_transactions(bytes);
    }
}

#[test]
fn an_epoch_file_has_the_documented_bytes_and_damage_is_found() {
    let record = EpochRecord { epoch: Epoch(7), ..EpochRecord::default() };
    let bytes = epoch::encode(&record);
    assert_eq!(bytes[..24], *b"HEDDLEEP\x01\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0");
    assert_eq!(bytes[24..], crate::checksum(&bytes[..24]).to_le_bytes());
    assert_eq!(epoch::decode(&bytes), Ok(record));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(epoch::decode(&damaged).is_err(), "byte {at}");
        assert!(epoch::decode(&bytes[..at]).is_err(), "{at} bytes");
    }
}

#[test]
fn an_epoch_file_with_a_view_has_the_documented_bytes_and_damage_is_found() {
    let copy = |name: &str, is_learner| ChannelCopy { name: name.to_owned(), is_learner };
    let view = View { id: ViewId { number: 3, epoch: Epoch(2) }, copies: vec![copy("a", false), copy("b", true)] };
    let registered = RegisteredView { view, own: Some(1) };
    let record = EpochRecord { epoch: Epoch(7), registered, reset: CopyReset::PrivateRows };
    let bytes = epoch::encode(&record);
    let expected = b"HEDDLEEP\x02\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x01\x03\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x02\0\x01\0a\x01\x01\0b\x01";
    let at = bytes.len() - 8;
    assert_eq!(bytes[..at], expected[..]);
    assert_eq!(bytes[at..], crate::checksum(&bytes[..at]).to_le_bytes());
    assert_eq!(epoch::decode(&bytes), Ok(record));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(epoch::decode(&damaged).is_err(), "byte {at}");
        assert!(epoch::decode(&bytes[..at]).is_err(), "{at} bytes");
    }
}
