//! Fuzz harnesses for row keys, savepoints and the log of the model engine; see [`base::fuzz`].

use base::Version;
#[cfg(debug_assertions)]
use base::fuzz::within;
use base::fuzz::{FuzzTarget, InputShape, authenticated};

use super::Savepoint;
use super::key::{self, RowKey, decode_prefix};
#[cfg(debug_assertions)]
use super::model::fuzz::{encode_log, replayed};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "storage-row-keys", shape: InputShape::Bytes, run: row_keys, seeds: row_key_seeds },
    FuzzTarget { name: "storage-savepoints", shape: InputShape::Bytes, run: savepoints, seeds: savepoint_seeds },
    #[cfg(debug_assertions)]
    FuzzTarget { name: "storage-model-log", shape: InputShape::Bytes, run: model_log, seeds: model_log_seeds },
];

fn row_key(namespace: &str, name: &[u8]) -> Vec<u8> {
    let mut bytes = key::prefix(namespace, name);
    key::push_suffix(&mut bytes, Version::new(3, 4), true);
    bytes
}

fn row_key_seeds() -> Vec<Vec<u8>> {
    vec![row_key("cc", b"key"), row_key("", b"\0\x01\0")]
}

fn row_keys(input: &[u8]) {
    let Some(row) = RowKey::split(input) else { return };
    let Some((namespace, name)) = authenticated(input, || decode_prefix(row.prefix)) else { return };
    let mut again = key::prefix(&namespace, &name);
    key::push_suffix(&mut again, row.version, row.live);
    assert_eq!(again, input, "a row key has one encoding");
}

fn savepoint_seeds() -> Vec<Vec<u8>> {
    vec![Savepoint { height: 3, ..Savepoint::default() }.encode().to_vec()]
}

fn savepoints(input: &[u8]) {
    if let Some((_, Some(savepoint))) = Savepoint::decode(input) {
        assert_eq!(savepoint.encode()[..], *input);
    }
}

#[cfg(debug_assertions)]
fn model_log_seeds() -> Vec<Vec<u8>> {
    vec![encode_log(&row_key("cc", b"key"), b"value")]
}

/// The model is the engine of simulations and tests only: no node opens it, so it never reads bytes of other processes. By
/// design it keeps its rows in a tree in memory, where a row of 31 bytes takes 64, three times as many while a record is
/// read, and the log once more for each replay. The bound says that memory is a multiple of the input, not that it is
/// small.
#[cfg(debug_assertions)]
fn model_log(input: &[u8]) {
    let end = within(40, input.len(), || replayed(input));
    assert!(end <= input.len());
}
