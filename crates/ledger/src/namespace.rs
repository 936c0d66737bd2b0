//! The namespaces of the world state: those of the contracts, and those that hold the metadata of their keys, the
//! hashes of their private data, and this node's bookkeeping.
//!
//! | namespace | key | value |
//! |---|---|---|
//! | `contract` | a public key | its value |
//! | `contract$$m` | a public key | its metadata: a `KVMetadataWrite` without the key |
//! | `contract$$hcollection` | the SHA-256 of a private key, in hexadecimal | the SHA-256 of its value |
//! | `contract$$ncollection` | the SHA-256 of a private key, in hexadecimal | the private key's metadata |
//! | `$$expiry` | the block that removes a hash, the namespace of the hash, and the hash | [`MARKER`] |
//! | `$$rules` | `definitions` | [`MARKER`] |
//!
//! A row in `$$expiry` has the version of the write that expires; see `validation`. Every block that writes to the
//! namespace of definitions rewrites the row in `$$rules`, so that its version tells a reader of the state that
//! definitions may have changed.
//!
//! No contract has a name with a dollar sign, so no contract reads or writes the other namespaces. The names sort in
//! the order that Fabric's commit hash requires: a contract's public keys, then its collections, then the next
//! contract.

/// The namespace of the schedule by which hashes of collections expire.
pub const EXPIRY: &str = "$$expiry";
/// The namespace of the row whose version is that of the last block that may have changed a definition.
pub const RULES: &str = "$$rules";
/// The key of the row in [`RULES`].
pub const RULES_DEFINITIONS: &str = "definitions";
/// The value of a row that carries all its information in its key and version.
pub const MARKER: &[u8] = &[1];

/// The most bytes of a namespace's name besides the names of its contract and collection.
pub const NAMESPACE_SUFFIX_BYTES: usize = 3;

const SEPARATOR: &str = "$$";
const METADATA: char = 'm';
const HASHES: char = 'h';
const HASHED_METADATA: char = 'n';

/// What a namespace of the state holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamespaceContent<'a> {
    /// The public values of this contract.
    Values(&'a str),
    /// The hashes of the private values of this contract in this collection.
    Hashes(&'a str, &'a str),
    /// The metadata of this contract's keys in this collection; the collection is empty for public keys.
    Metadata(&'a str, &'a str),
    /// Bookkeeping of this node.
    Internal,
}

/// What a namespace of the state holds.
pub fn content(namespace: &str) -> NamespaceContent<'_> {
    match namespace.split_once(SEPARATOR) {
        None => NamespaceContent::Values(namespace),
        Some(("", _)) => NamespaceContent::Internal,
        Some((contract, rest)) => match rest.strip_prefix(HASHES) {
            Some(collection) => NamespaceContent::Hashes(contract, collection),
            None => NamespaceContent::Metadata(contract, rest.strip_prefix(HASHED_METADATA).unwrap_or_default()),
        },
    }
}

/// The namespace of a contract's public values, if `collection` is empty; otherwise that of the hashes of its values in
/// the collection.
pub fn values_of(contract: &str, collection: &str) -> String {
    match collection {
        "" => contract.to_owned(),
        _ => format!("{contract}{SEPARATOR}{HASHES}{collection}"),
    }
}

/// The namespace of the metadata of a contract's public keys, if `collection` is empty; otherwise that of its keys in
/// the collection.
pub fn metadata_of(contract: &str, collection: &str) -> String {
    match collection {
        "" => format!("{contract}{SEPARATOR}{METADATA}"),
        _ => format!("{contract}{SEPARATOR}{HASHED_METADATA}{collection}"),
    }
}

/// The key of a row in [`EXPIRY`]. All rows of one block begin with its [`expiry_prefix`].
pub fn expiry_key(block: u64, namespace: &str, hash: &str) -> String {
    format!("{}{namespace}/{hash}", expiry_prefix(block))
}

/// The prefix of the keys in [`EXPIRY`] whose hashes this block removes.
pub fn expiry_prefix(block: u64) -> String {
    format!("{block:016x}/")
}

/// Namespace and hash in a key of [`EXPIRY`].
pub fn expiring(key: &str) -> Option<(&str, &str)> {
    key.split_once('/')?.1.rsplit_once('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_tell_what_they_hold() {
        assert_eq!(content("asset"), NamespaceContent::Values("asset"));
        assert_eq!(content(&values_of("asset", "")), NamespaceContent::Values("asset"));
        assert_eq!(content(&values_of("asset", "coll$$h")), NamespaceContent::Hashes("asset", "coll$$h"));
        assert_eq!(content(&metadata_of("asset", "")), NamespaceContent::Metadata("asset", ""));
        assert_eq!(content(&metadata_of("asset", "coll")), NamespaceContent::Metadata("asset", "coll"));
        assert_eq!(content(EXPIRY), NamespaceContent::Internal);
        assert_eq!(content(RULES), NamespaceContent::Internal);
        assert_eq!(content(""), NamespaceContent::Values(""));
    }

    #[test]
    fn a_contracts_namespaces_sort_together_public_keys_first() {
        let mut names = ["asset", "asset-1", "asset1", "asset_1"].map(str::to_owned).to_vec();
        names.extend([
            values_of("asset", "b"),
            values_of("asset", "a"),
            values_of("asset1", "z"),
            metadata_of("asset", ""),
        ]);
        names.sort();
        let expected = ["asset", "asset$$ha", "asset$$hb", "asset$$m", "asset-1", "asset1", "asset1$$hz", "asset_1"];
        assert_eq!(names, expected);
    }

    #[test]
    fn an_expiry_names_its_block_namespace_and_hash() {
        let key = expiry_key(255, &values_of("asset", "c/d"), "00ff");
        assert_eq!(key, "00000000000000ff/asset$$hc/d/00ff");
        assert!(key.starts_with(&expiry_prefix(255)));
        assert_eq!(expiring(&key), Some(("asset$$hc/d", "00ff")));
        assert_eq!(expiring("nonsense"), None);
    }
}
