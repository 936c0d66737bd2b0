//! Unchecked arithmetic on foreign numbers is forbidden: modules that decode must enable clippy's lint against it.
//!
//! A length from a client once overflowed an addition and took down the service that read it. Therefore each module
//! that reads bytes of a client, a peer, a disk or a remote region denies arithmetic that can overflow. A function in
//! such a module may allow it, with a reason, if this process produced or has checked the function's numbers.

#![cfg(test)]

use std::fs;
use std::path::{Path, PathBuf};

/// The modules, below `crates/`.
const DECODERS: &[&str] = &[
    "base/src/rt/net/rpc/frame.rs",
    "block_transport/src/protocol.rs",
    "chain/src/commit/recent_writes.rs",
    "chain/src/endorse/lifecycle.rs",
    "chain/src/endorse/packages.rs",
    "chain/src/remote/messages.rs",
    "chain/src/remote/private_messages.rs",
    "validation/src/offload.rs",
    "validation/src/verify.rs",
    "contract/src/packages/archive.rs",
    "contract/src/packages/package.rs",
    "contract/src/shim/answer.rs",
    "contract/src/shim/registration.rs",
    "executor_relay/src/message.rs",
    "executors/src/view.rs",
    "pushdown/src/message.rs",
    "pushdown/src/role_messages.rs",
    "sift/src/disk.rs",
    "sift/src/entry.rs",
    "kv/src/layout.rs",
    "kv/src/log.rs",
    "sift/src/layout.rs",
    "sift/src/message.rs",
    "ordered_log/src/sift/message.rs",
    "page_coherence/src/message.rs",
    "page_coherence/src/page_list.rs",
    "raft/src/codec.rs",
    "raft/src/disk.rs",
    "raft/src/incarnations.rs",
    "raft/src/links.rs",
    "gateway/src/grpc/message.rs",
    "gateway/src/grpc/status.rs",
    "gateway/src/grpc/timeout.rs",
    "gateway/src/service/filtered.rs",
    "gateway/src/service/proposal.rs",
    "gateway/src/service/seek.rs",
    "identity/src/certificate.rs",
    "identity/src/chain.rs",
    "identity/src/der.rs",
    "identity/src/msp.rs",
    "identity/src/policy/application.rs",
    "identity/src/policy/decode.rs",
    "identity/src/policy/signature.rs",
    "identity/src/policy/text.rs",
    "identity/src/policy/tree.rs",
    "identity/src/principal.rs",
    "identity/src/revocation.rs",
    "ledger/src/block/commit_hash.rs",
    "ledger/src/block/derived.rs",
    "ledger/src/block/encoded.rs",
    "ledger/src/block/fields.rs",
    "ledger/src/block/header.rs",
    "ledger/src/block/metadata.rs",
    "ledger/src/block/signature.rs",
    "ledger/src/config/acl.rs",
    "ledger/src/config/batch.rs",
    "ledger/src/config/capability.rs",
    "ledger/src/config/channel_config.rs",
    "ledger/src/config/group.rs",
    "ledger/src/config/organization.rs",
    "ledger/src/config/weight.rs",
    "ledger/src/lifecycle.rs",
    "ledger/src/proposal.rs",
    "ledger/src/rwset/count.rs",
    "ledger/src/rwset/decode.rs",
    "ledger/src/rwset/entries.rs",
    "ledger/src/rwset/fields.rs",
    "ledger/src/rwset/private.rs",
    "ledger/src/rwset/visit.rs",
    "ledger/src/transaction/action.rs",
    "ledger/src/transaction/header.rs",
    "ledger/src/transaction/invalid.rs",
    "ledger/src/transaction/parsed.rs",
    "ledger/src/transaction/results.rs",
    "ledger/src/wire.rs",
    "manager/src/record.rs",
    "node/src/control/mod.rs",
    "link_transport/src/frames.rs",
    "p256_verify/src/signature.rs",
    "pool/src/message.rs",
    "pool/src/space/read_grant.rs",
    "pool/src/node/serve.rs",
    "private_data/src/rows.rs",
    "rma/src/capability.rs",
    "rma/src/shm/message.rs",
    "rma/src/tcp/wire.rs",
    "rma_verbs/src/wire.rs",
    "replica/src/followers/message.rs",
    "state/src/disaggregated/followers/changes.rs",
    "state/src/disaggregated/header.rs",
    "state/src/disaggregated/index.rs",
    "state/src/disaggregated/pointer.rs",
    "state/src/disaggregated/record.rs",
    "storage/src/blocks/format.rs",
    "storage/src/blocks/index.rs",
    "storage/src/node/epoch.rs",
    "storage/src/node/message/fields.rs",
    "storage/src/node/message/link.rs",
    "storage/src/node/message/lists.rs",
    "storage/src/node/message/request.rs",
    "storage/src/node/message/response.rs",
    "storage/src/node/private_message.rs",
    "storage/src/node/view.rs",
    "storage/src/tables/batch.rs",
    "storage/src/tables/key.rs",
    "storage/src/tables/model/log.rs",
    "storage/src/watermark.rs",
    "wire/src/hello.rs",
    "wire/src/reader.rs",
];

/// Modules with functions of such names that pass the bytes on to a decoder of the list or to a library, that combine
/// shards whose lengths this process's layout gives, or that serve tests and benchmarks.
const OTHERS: &[&str] = &[
    "attack/",
    "bench/",
    "sift/src/coordinator/state/reading.rs",
    "sift/src/shards.rs",
    "contract/",
    "simulator/",
    "storage/src/blocks/store.rs",
    "storage/src/tables/fjall/tables.rs",
];

const LINT: &str = "#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]";

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates")
}

/// All source files of libraries and programs, by their path below `crates/`.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a folder of the tree").flatten() {
        let path = entry.path();
        let name = path.strip_prefix(crates()).expect("it is below").to_str().expect("names are text").to_owned();
        if path.is_dir() && !name.ends_with("/tests") && !name.ends_with("/examples") {
            sources(&path, found);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") && !name.ends_with("fuzz.rs") {
            found.push((name, fs::read_to_string(&path).expect("a source file")));
        }
    }
}

/// Whether a file defines a function that is named like a decoder and takes bytes.
fn decodes(source: &str) -> bool {
    let source = source.split("mod tests {").next().unwrap_or_default();
    ["fn decode", "fn parse"].iter().any(|start| {
        source.match_indices(start).any(|(at, _)| {
            let signature = source[at..].split(['{', ';']).next().unwrap_or_default();
            let arguments = signature.split("->").next().unwrap_or_default();
            ["&[u8]", "Bytes)", "Bytes,", "BytesMut", ": Span"].iter().any(|kind| arguments.contains(kind))
        })
    })
}

#[test]
fn every_decoder_denies_arithmetic_without_checks() {
    let without: Vec<&str> = DECODERS
        .iter()
        .filter(|name| {
            let source = fs::read_to_string(crates().join(name)).expect("a module of the list is in the tree");
            !source.lines().any(|line| line == LINT)
        })
        .copied()
        .collect();
    assert!(without.is_empty(), "modules of DECODERS that lack `{LINT}`: {without:?}");
}

#[test]
fn every_module_that_decodes_is_in_the_list() {
    let mut found = Vec::new();
    sources(&crates(), &mut found);
    let decoders: Vec<&str> =
        found.iter().filter(|(_, source)| decodes(source)).map(|(name, _)| name.as_str()).collect();
    assert!(
        decoders.contains(&"ledger/src/wire.rs") || decoders.contains(&"ledger/src/rwset/decode.rs"),
        "the search works"
    );
    let unknown: Vec<&str> = decoders
        .into_iter()
        .filter(|name| !DECODERS.contains(name) && !OTHERS.iter().any(|other| name.starts_with(other)))
        .collect();
    assert!(unknown.is_empty(), "modules that decode bytes and are in no list of this test: {unknown:?}");
}
