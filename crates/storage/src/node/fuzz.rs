//! Harnesses of the messages between storage nodes and their clients; see [`base::fuzz`].

use base::fuzz::{Shape, Target, authenticated};
use base::rt::net::Parts;
use base::{BlockNumber, Bytes, Epoch, TxId, TxIndex, Version};

use super::Role;
use super::message::{self, Append, Hello, Ids, Keys, Malformed, Notice, Opened, Request, answer, answer::Answering};
use crate::blocks::{PAGE_BLOCKS_MAX, StoredBlock, Tip, TransactionPlace};
use crate::state_store::KEYS_MAX;
use crate::tables::{RangeEntry, RangePage, Row, Savepoint};

/// The targets of this module.
pub const TARGETS: &[Target] = &[
    Target { name: "storage-requests", shape: Shape::Bytes, run: requests, seeds: request_seeds },
    Target { name: "storage-answers", shape: Shape::Bytes, run: answers, seeds: answer_seeds },
    Target { name: "storage-hellos", shape: Shape::Bytes, run: hellos, seeds: hello_seeds },
];

fn request_seeds() -> Vec<Vec<u8>> {
    let keys = || Keys::new(&[("cc", b"key"), ("", b"")]);
    let (namespace, through) = ("cc".to_owned(), BlockNumber(9));
    let all = [
        Request::Append(Append {
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
        Request::FindTransactions(Ids::new(&[TxId::from("ab"), TxId::from("")])),
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
        Request::History { below: through, limit: 2, namespace, key: Bytes::from_static(b"key") },
    ];
    all.iter().map(|request| request.encode().concat().to_vec()).collect()
}

/// What decodes has that one encoding.
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
    let place = TransactionPlace { block: BlockNumber(1), index: TxIndex(2), code: 0 };
    let entry = RangeEntry { key: Bytes::from_static(b"k"), value: Bytes::from_static(b"v"), version };
    [
        answer::number(7),
        answer::numbers(&[BlockNumber(1), BlockNumber(2)]),
        answer::maybe_block(Some(Bytes::from_static(b"block"))),
        answer::blocks(&[block]),
        answer::maybe_transactions(Some(vec![(TxId::from("ab"), 0)])),
        answering(|answer| [None, Some(place)].into_iter().for_each(|place| answer.place(place))),
        answer::tags(&[1, 2]),
        answering(|answer| {
            [None, row(None), row(Some(b"value"))].iter().for_each(|row| answer.row(row.as_ref()));
        }),
        answering(|answer| [None, Some((version, true))].into_iter().for_each(|version| answer.version(version))),
        answer::page(&RangePage { entries: vec![entry], next: Some(Bytes::from_static(b"next")) }),
        answer::names(&["one".to_owned(), "two".to_owned()]),
        answer::savepoint(&Savepoint::default()),
    ]
    .map(|parts| parts.concat().to_vec())
    .into_iter()
    .flat_map(|bytes| (0..ANSWERS).map(move |kind| [&[kind], &bytes[..]].concat()))
    .collect()
}

fn answering(write: impl FnOnce(&mut Answering)) -> Parts {
    let mut answer = Answering::default();
    write(&mut answer);
    answer.done()
}

const ANSWERS: u8 = 12;

/// The first byte says which answer is expected.
fn answers(input: &[u8]) {
    let Some((kind, input)) = input.split_first() else { return };
    let bytes = Bytes::copy_from_slice(input);
    let (given, whole) = (bytes.clone(), bytes.clone());
    fn read<T>(input: &[u8], read: impl FnOnce() -> Result<T, Malformed>, write: fn(T) -> Parts) -> Option<Parts> {
        authenticated(input, read).ok().map(write)
    }
    // Whoever asks for many makes room for the answers first.
    fn read_into<T>(
        input: &[u8],
        count: usize,
        read: impl FnOnce(&mut Vec<T>) -> Result<(), Malformed>,
        write: impl Fn(&mut Answering, T),
    ) -> Option<Parts> {
        let mut list = Vec::with_capacity(count);
        authenticated(input, || read(&mut list)).ok()?;
        Some(answering(|answer| list.into_iter().for_each(|one| write(answer, one))))
    }
    let many = input.len().min(KEYS_MAX);
    let again = match kind % ANSWERS {
        0 => read(input, || answer::read_maybe_number(given), answer::maybe_number),
        1 => read(input, || answer::read_numbers(given, 1000), |numbers| answer::numbers(&numbers)),
        2 => read(input, || answer::read_maybe_block(given), answer::maybe_block),
        3 => read(input, || answer::read_blocks(given, PAGE_BLOCKS_MAX), |blocks| answer::blocks(&blocks)),
        4 => read(input, || answer::read_maybe_transactions(given), answer::maybe_transactions),
        5 => read_into(input, 2, |list| answer::read_places(given, 2, list), Answering::place),
        6 => answer::read_tags(&given).ok().map(|tags| answer::tags(&tags.collect::<Vec<_>>())),
        7 => read_into(
            input,
            many,
            |list| answer::read_rows(given, many, list),
            |answer, row| {
                answer.row(row.as_ref());
            },
        ),
        8 => read_into(input, 2, |list| answer::read_versions(given, 2, list), Answering::version),
        9 => read(input, || answer::read_page(given), |page| answer::page(&page)),
        10 => read(input, || answer::read_names(given), |names| answer::names(&names)),
        _ => read(input, || answer::read_savepoint(given), |savepoint| answer::savepoint(&savepoint)),
    };
    if let Some(again) = again {
        assert_eq!(again.concat(), whole, "an answer has one encoding");
    }
}

fn hello_seeds() -> Vec<Vec<u8>> {
    let token = Bytes::from_static(b"token");
    let hello =
        Hello { version: message::VERSION, role: Role::Appender, epoch: Epoch(3), token, channel: "ch".to_owned() };
    let tip = Tip { height: 3, header_hash: [4; 32], epoch: Epoch(1) };
    let opened = Opened { tip, durable: 3, savepoint: Savepoint::default() };
    let notices = [Notice::Durable(3), Notice::Savepoint(Savepoint::default())].map(|notice| notice.encode().to_vec());
    [hello.encode().to_vec(), opened.encode().to_vec()].into_iter().chain(notices).collect()
}

fn hellos(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok((_, Some(hello))) = authenticated(input, || Hello::decode(bytes.clone())) {
        assert_eq!(hello.encode(), bytes);
    }
    if let Ok(opened) = authenticated(input, || Opened::decode(bytes.clone())) {
        assert_eq!(opened.encode(), bytes);
    }
    if let Ok(notice) = authenticated(input, || Notice::decode(bytes.clone())) {
        assert_eq!(notice.encode(), bytes);
    }
}
