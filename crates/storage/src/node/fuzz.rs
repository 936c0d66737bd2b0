//! Fuzz harnesses for the messages between storage nodes and their clients; see [`base::fuzz`].

use base::fuzz::{FuzzTarget, InputShape, authenticated};
use base::rt::net::GatherList;
use base::{BlockNumber, Bytes, Epoch, TxId, TxIndex, Version};
use wire::Malformed;

use super::LinkPurpose;
use super::message::{
    self, AppendRequest, Hello, KeyList, Notification, Request, TxIdList, Welcome, response, response::ResponseWriter,
};
use super::private_message::{CopiedWrite, PrivateAsk, PrivateRequest, read_scanned, scanned};
use super::view::{ChannelCopy, CopyReset, CopyStatus, Installation, RegisteredView, View, ViewId};
use crate::blocks::{ChainTip, PAGE_BLOCKS_MAX, StoredBlock, TransactionLocation};
use crate::private::{PrivateRow, PrivateTable, RowsPage};
use crate::state_store::KEYS_MAX;
use crate::tables::{RangeEntry, RangePage, Row, Savepoint};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "storage-requests", shape: InputShape::Bytes, run: requests, seeds: request_seeds },
    FuzzTarget { name: "storage-private", shape: InputShape::Bytes, run: private_requests, seeds: private_seeds },
    FuzzTarget { name: "storage-answers", shape: InputShape::Bytes, run: answers, seeds: answer_seeds },
    FuzzTarget { name: "storage-hellos", shape: InputShape::Bytes, run: hellos, seeds: hello_seeds },
];

fn request_seeds() -> Vec<Vec<u8>> {
    let keys = || KeyList::new(&[("cc", b"key"), ("", b"")]);
    let (namespace, through) = ("cc".to_owned(), BlockNumber(9));
    let all = [
        Request::Append(AppendRequest {
            number: BlockNumber(1),
            epoch: Epoch(2),
            header_hash: [3; 32],
            previous_hash: [4; 32],
            transactions: vec![(TxId::from("ab"), 0)],
            payload: Bytes::from_static(b"payload").into(),
        }),
        Request::Close,
        Request::Page { from: through, limit: 5 },
        Request::NumberByHash([7; 32]),
        Request::FindTransactions(TxIdList::new(&[TxId::from("ab"), TxId::from("")])),
        Request::Tags(3),
        Request::Rows { through, keys: keys() },
        Request::Versions { through, keys: keys() },
        Request::Range {
            through,
            limit: 3,
            namespace: namespace.clone(),
            start: Bytes::new(),
            end: Bytes::from_static(b"z"),
        },
        Request::Materialize { epoch: Epoch(1), height: 4 },
        Request::Begin("ch".to_owned()),
        Request::BeginAfter { newest: Epoch(1), channel: "ch".to_owned() },
        Request::CopyStatus("ch".to_owned()),
        Request::BeginIn { epoch: Epoch(4), newest: ViewId { number: 2, epoch: Epoch(3) }, channel: "ch".to_owned() },
        Request::Install { installation: installation(), channel: "ch".to_owned() },
        Request::CheckView(ViewId { number: 2, epoch: Epoch(3) }),
        Request::History { below: through, limit: 2, namespace, key: Bytes::from_static(b"key") },
    ];
    all.iter().map(|request| request.encode().concat().to_vec()).collect()
}

fn installation() -> Installation {
    let copy = |name: &str, is_learner| ChannelCopy { name: name.to_owned(), is_learner };
    let view = View { id: ViewId { number: 3, epoch: Epoch(3) }, copies: vec![copy("one", false), copy("two", true)] };
    let registered = RegisteredView { view, own: Some(1) };
    Installation { epoch: Epoch(3), registered, reset: CopyReset::PrivateRows }
}

fn private_seeds() -> Vec<Vec<u8>> {
    let (key, version) = (Bytes::from_static(b"key"), Version::new(7, 1));
    let row = |value| PrivateRow { namespace: "cc".to_owned(), key: key.clone(), version, value };
    let (through, epoch) = (BlockNumber(9), Epoch(2));
    let asks = [
        PrivateAsk::Write { epoch, copied: None, rows: vec![row(Some(Bytes::from_static(b"value"))), row(None)] },
        PrivateAsk::Write {
            epoch,
            copied: Some(CopiedWrite { view: ViewId { number: 3, epoch }, number: 7 }),
            rows: vec![row(None)],
        },
        PrivateAsk::Scan { from: Bytes::new(), limit: 9 },
        PrivateAsk::Copy { epoch, rows: vec![row(None)] },
        PrivateAsk::Rows { through, keys: KeyList::new(&[("cc", b"key"), ("", b"")]) },
        PrivateAsk::Range { through, limit: 3, namespace: "cc".to_owned(), start: Bytes::new(), end: key.clone() },
        PrivateAsk::Prune { epoch, oldest: through },
    ];
    let encode = |ask| PrivateRequest { table: PrivateTable::Transient, ask }.encode().to_vec();
    asks.into_iter().map(encode).collect()
}

/// Bytes that decode have exactly one encoding.
fn private_requests(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(request) = authenticated(input, || PrivateRequest::decode(bytes.clone())) {
        assert_eq!(request.encode(), bytes);
    }
}

/// Bytes that decode have exactly one encoding.
fn requests(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(request) = authenticated(input, || Request::decode(bytes.clone())) {
        assert_eq!(request.encode().concat(), bytes, "{request:?}");
    }
}

fn answer_seeds() -> Vec<Vec<u8>> {
    let version = Version::new(3, 4);
    let row = |value: Option<&'static [u8]>| Some(Row { version, value: value.map(Bytes::from_static) });
    let block = StoredBlock {
        number: BlockNumber(1),
        header_hash: [3; 32],
        previous_hash: [4; 32],
        epoch: Epoch(2),
        payload: Bytes::from_static(b"payload"),
        transactions: vec![(TxId::from("ab"), 0)],
    };
    let place = TransactionLocation { block: BlockNumber(1), index: TxIndex(2), code: 0 };
    let entry = RangeEntry { key: Bytes::from_static(b"k"), value: Bytes::from_static(b"v"), version };
    [
        response::number(7),
        response::numbers(&[BlockNumber(1), BlockNumber(2)]),
        response::maybe_block(Some(Bytes::from_static(b"block"))),
        response::blocks(&[block]),
        response::maybe_transactions(Some(vec![(TxId::from("ab"), 0)])),
        answering(|response| [None, Some(place)].into_iter().for_each(|place| response.place(place))),
        response::tags(&[1, 2]),
        answering(|response| {
            [None, row(None), row(Some(b"value"))].iter().for_each(|row| response.row(row.as_ref()));
        }),
        answering(|response| [None, Some((version, true))].into_iter().for_each(|version| response.version(version))),
        response::page(&RangePage { entries: vec![entry], next: Some(Bytes::from_static(b"next")) }),
        response::names(&["one".to_owned(), "two".to_owned()]),
        response::savepoint(&Savepoint::default()),
        CopyStatus { registered: installation().registered, ..CopyStatus::default() }.encode().into(),
        scanned(&RowsPage { rows: Vec::new(), next: Some(Bytes::from_static(b"row")) }),
    ]
    .map(|parts| parts.concat().to_vec())
    .into_iter()
    .flat_map(|bytes| (0..ANSWERS).map(move |kind| [&[kind], &bytes[..]].concat()))
    .collect()
}

fn answering(write: impl FnOnce(&mut ResponseWriter)) -> GatherList {
    let mut response = ResponseWriter::default();
    write(&mut response);
    response.done()
}

const ANSWERS: u8 = 14;

/// The first byte says which answer is expected.
fn answers(input: &[u8]) {
    let Some((kind, input)) = input.split_first() else { return };
    let bytes = Bytes::copy_from_slice(input);
    let (given, whole) = (bytes.clone(), bytes.clone());
    fn read<T>(
        input: &[u8],
        read: impl FnOnce() -> Result<T, Malformed>,
        write: fn(T) -> GatherList,
    ) -> Option<GatherList> {
        authenticated(input, read).ok().map(write)
    }
    // The caller reserves space for the answers first.
    fn read_into<T>(
        input: &[u8],
        count: usize,
        read: impl FnOnce(&mut Vec<T>) -> Result<(), Malformed>,
        write: impl Fn(&mut ResponseWriter, T),
    ) -> Option<GatherList> {
        let mut list = Vec::with_capacity(count);
        authenticated(input, || read(&mut list)).ok()?;
        Some(answering(|response| list.into_iter().for_each(|one| write(response, one))))
    }
    let many = input.len().min(KEYS_MAX);
    let again = match kind % ANSWERS {
        0 => read(input, || response::read_maybe_number(given), response::maybe_number),
        1 => read(input, || response::read_numbers(given, 1000), |numbers| response::numbers(&numbers)),
        2 => read(input, || response::read_maybe_block(given), response::maybe_block),
        3 => read(input, || response::read_blocks(given, PAGE_BLOCKS_MAX), |blocks| response::blocks(&blocks)),
        4 => read(input, || response::read_maybe_transactions(given), response::maybe_transactions),
        5 => read_into(input, 2, |list| response::read_places(given, 2, list), ResponseWriter::place),
        6 => response::read_tags(&given).ok().map(|tags| response::tags(&tags.collect::<Vec<_>>())),
        7 => read_into(
            input,
            many,
            |list| response::read_rows(given, many, list),
            |response, row| {
                response.row(row.as_ref());
            },
        ),
        8 => read_into(input, 2, |list| response::read_versions(given, 2, list), ResponseWriter::version),
        9 => read(input, || response::read_page(given), |page| response::page(&page)),
        10 => read(input, || response::read_names(given), |names| response::names(&names)),
        11 => read(input, || response::read_savepoint(given), |savepoint| response::savepoint(&savepoint)),
        12 => read(input, || CopyStatus::decode(given), |status| status.encode().into()),
        _ => read(input, || read_scanned(given), |page| scanned(&page)),
    };
    if let Some(again) = again {
        assert_eq!(again.concat(), whole, "an answer has one encoding");
    }
}

fn hello_seeds() -> Vec<Vec<u8>> {
    let token = Bytes::from_static(b"token");
    let hello = Hello {
        versions: message::PROTOCOL_VERSIONS,
        purpose: LinkPurpose::Appender,
        epoch: Epoch(3),
        token,
        channel: "ch".to_owned(),
    };
    let tip = ChainTip { height: 3, header_hash: [4; 32], epoch: Epoch(1) };
    let opened = Welcome { tip, durable: 3, savepoint: Savepoint::default() };
    let notices = [Notification::Durable(3), Notification::Savepoint(Savepoint::default())]
        .map(|notice| notice.encode().to_vec());
    [hello.encode().to_vec(), opened.encode().to_vec()].into_iter().chain(notices).collect()
}

fn hellos(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(Ok(hello)) = authenticated(input, || Hello::decode(bytes.clone())) {
        assert_eq!(hello.encode(), bytes);
    }
    if let Ok(opened) = authenticated(input, || Welcome::decode(bytes.clone())) {
        assert_eq!(opened.encode(), bytes);
    }
    if let Ok(notice) = authenticated(input, || Notification::decode(bytes.clone())) {
        assert_eq!(notice.encode(), bytes);
    }
}
