//! Decoders of `ledger`: envelopes, transactions, blocks, channel configurations.

use std::sync::LazyLock;

use base::fuzz::{FuzzTarget, InputShape, OVERHEAD_BYTES, peak_of, untrusted};
use base::{BlockNumber, Bytes};
use ledger::block::derived::{self, DerivedChange, DerivedUpdate};
use ledger::block::{Block, BlockMetadata};
use ledger::config::ChannelConfig;
use ledger::transaction::{Transaction, is_exact, results_of_valid};
use ledger::wire::{FieldValue, Fields, Span};
use prost::Message;
use proto::common;

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "ledger-wire", shape: InputShape::Protobuf, run: wire, seeds: envelopes },
    FuzzTarget { name: "ledger-transaction", shape: InputShape::Protobuf, run: transaction, seeds: envelopes },
    FuzzTarget { name: "ledger-block", shape: InputShape::Protobuf, run: block, seeds: blocks },
    FuzzTarget { name: "ledger-config", shape: InputShape::Protobuf, run: config, seeds: configs },
    FuzzTarget { name: "ledger-config-update", shape: InputShape::Protobuf, run: config_update, seeds: config_updates },
    FuzzTarget { name: "ledger-derived-updates", shape: InputShape::Protobuf, run: derived_updates, seeds: derived },
    FuzzTarget { name: "ledger-duration", shape: InputShape::Bytes, run: duration, seeds: durations },
];

/// Blocks that Fabric wrote: two configurations, of one organisation and of several, a deployment, transactions.
const FABRIC: [&[u8]; 4] = [
    include_bytes!("../../crates/proto/tests/golden/b0.block"),
    include_bytes!("../../crates/proto/tests/golden/b1.block"),
    include_bytes!("../../crates/proto/tests/golden/b8.block"),
    include_bytes!("../../crates/ledger/tests/golden/raft-v3.block"),
];

pub(crate) fn fabric_blocks() -> &'static [Block] {
    static BLOCKS: LazyLock<Vec<Block>> = LazyLock::new(|| {
        FABRIC.iter().map(|bytes| Block::parse(&Bytes::from_static(bytes)).expect("Fabric wrote it")).collect()
    });
    &BLOCKS
}

fn blocks() -> Vec<Vec<u8>> {
    let small = Block::build(BlockNumber(3), Some([7; 32]), &[Bytes::from_static(b"\x0a\x01a\x12\x01b"), Bytes::new()]);
    let mut metadata = BlockMetadata::default();
    metadata.set_filter(Bytes::from_static(&[0, 11]));
    metadata.set_commit_hash(&[9; 32]);
    let small = small.with_metadata(metadata);
    FABRIC[1..3].iter().map(|bytes| bytes.to_vec()).chain([small.to_bytes().to_vec()]).collect()
}

pub(crate) fn envelopes() -> Vec<Vec<u8>> {
    fabric_blocks()[1..3].iter().flat_map(Block::envelopes).map(|envelope| envelope.to_vec()).collect()
}

fn configs() -> Vec<Vec<u8>> {
    [0, 3].map(|block: usize| fabric_blocks()[block].envelope(0).to_vec()).to_vec()
}

fn derived() -> Vec<Vec<u8>> {
    let changes = [DerivedChange::Kept, DerivedChange::Deleted(3), DerivedChange::Written(300, b"value")];
    let updates = changes.map(|change| DerivedUpdate { namespace: "basic$$m", key: "asset1", change });
    vec![derived::encode(updates).to_vec()]
}

/// What is read has the same meaning when it is encoded again.
fn derived_updates(input: &[u8]) {
    let Ok(count) = untrusted(input, || {
        let mut count = 0;
        derived::decode(input).try_for_each(|update| update.map(|_| count += 1))?;
        Ok::<usize, ledger::Error>(count)
    }) else {
        return;
    };
    let updates: Vec<_> = derived::decode(input).flatten().collect();
    assert_eq!(updates.len(), count);
    let encoded = derived::encode(updates.clone());
    assert_eq!(derived::decode(&encoded).flatten().collect::<Vec<_>>(), updates);
}

/// Every field that is walked lies within its message, and a nested walk stays within its field.
fn wire(input: &[u8]) {
    fn walk(source: &[u8], span: Span, depth: u32) {
        let mut fields = Fields::new(source, span);
        while let Ok(Some(field)) = fields.next() {
            if let FieldValue::Bytes(inner) = field.value {
                assert!(inner.start() >= span.start() && inner.of(source).len() <= span.of(source).len());
                let _ = inner.text(source);
                if depth > 0 {
                    walk(source, inner, depth - 1);
                }
            }
        }
    }
    if let Ok(span) = Span::whole(input) {
        untrusted(input, || walk(input, span, 6));
    }
}

/// If the in-place reader accepts a transaction, a protobuf library reads the same content.
fn transaction(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let _ = untrusted(input, || results_of_valid(&bytes));
    let exact = is_exact(&bytes);
    let Ok(transaction) = untrusted(input, || Transaction::parse(&bytes)) else { return };
    let envelope = common::Envelope::decode(bytes.clone()).expect("accepted by us");
    assert_eq!(transaction.payload(), &envelope.payload[..]);
    assert_eq!(transaction.signature(), &envelope.signature[..]);
    if exact {
        assert_eq!(envelope.encode_to_vec(), input, "an exact envelope has one encoding");
    }
    let payload = common::Payload::decode(envelope.payload).expect("accepted by us");
    let header = payload.header.expect("accepted by us");
    assert_eq!(transaction.header().channel_header(), &header.channel_header[..]);
    let channel = common::ChannelHeader::decode(header.channel_header).expect("accepted by us");
    assert_eq!(transaction.header().channel(), channel.channel_id);
    assert_eq!(transaction.header().tx_id(), channel.tx_id);
    assert_eq!(transaction.header().kind(), channel.r#type);
    assert_eq!(transaction.header().epoch(), channel.epoch);
    let signer = common::SignatureHeader::decode(header.signature_header).expect("accepted by us");
    assert_eq!(transaction.header().creator_slice(), &signer.creator[..]);
    assert_eq!(transaction.header().nonce(), &signer.nonce[..]);
    assert_eq!(transaction.data(), payload.data);
    let _ = transaction.header().check_tx_id();
    let _ = transaction.check_type();
    let Ok(action) = untrusted(input, || transaction.action()) else { return };
    for index in 0..action.endorsements().len() {
        let parts = action.signed_parts(index).concat();
        assert_eq!(action.signed_message(index)[..], parts[..]);
    }
    if let Ok(outcome) = untrusted(input, || action.outcome(transaction.header())) {
        let _ = (outcome.check(transaction.header()), outcome.event(), outcome.encoded_event());
        let way = results_of_valid(&bytes).expect("a whole transaction").map(|span| span.of(&bytes).to_vec());
        assert_eq!(way.as_deref(), Some(&outcome.results()[..]), "the short way leads to the same place");
    }
}

fn block(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let Ok(block) = untrusted(input, || Block::parse(&bytes)) else { return };
    let message = common::Block::decode(bytes).expect("accepted by us");
    let header = message.header.expect("accepted by us");
    assert_eq!((block.number().get(), &block.header().data_hash[..]), (header.number, &header.data_hash[..]));
    assert_eq!(block.envelopes().collect::<Vec<_>>(), message.data.expect("accepted by us").data);
    let again = Block::parse(&block.to_bytes()).expect("what was parsed is parsed again");
    assert_eq!((again.hash(), again.metadata()), (block.hash(), block.metadata()));
    assert_eq!(Block::parse_pieces(&block.parts()).map(|pieces| pieces.hash()), Ok(block.hash()));
    let _ = (block.check_data_hash(), block.check_filter(), block.check_follows(1, None));
    let _ = untrusted(input, || (block.orderer_metadata(), block.metadata().commit_hash()));
}

/// A configuration comes in an operator's file, or from a peer whose certificate was checked.
fn config(input: &[u8]) {
    let envelope = Bytes::copy_from_slice(input);
    // The first key on P-256 allocates a table for all keys of the process, once.
    static KEYS: LazyLock<bool> = LazyLock::new(|| ChannelConfig::from_block(&fabric_blocks()[0]).is_ok());
    assert!(*KEYS, "Fabric wrote it");
    // The refusal relies on this: no configuration takes more memory than the estimate for its parts.
    let most = untrusted(input, || ChannelConfig::most_memory(&envelope)).unwrap_or_default();
    let (config, peak) = peak_of(|| ChannelConfig::from_envelope(&envelope));
    assert!(peak <= most + OVERHEAD_BYTES, "reading {} bytes took {peak} bytes of memory, above {most}", input.len());
    let Ok(config) = config else { return };
    for (_, policy) in config.policies().iter() {
        let _ = policy.evaluate_identities(&[]);
    }
    let _ = (config.acl("event/Block"), config.endorsement_policy().layouts());
}

/// The first configuration of a channel that was recorded from Fabric, and the first two blocks that change it.
const CHANGES: [&[u8]; 3] = [
    include_bytes!("../../crates/ledger/tests/fabric-channel/blocks/0000.block"),
    include_bytes!("../../crates/ledger/tests/fabric-channel/blocks/0001.block"),
    include_bytes!("../../crates/ledger/tests/fabric-channel/blocks/0002.block"),
];

/// More uses of a key than it takes until the process makes a table of it.
const USES_UNTIL_TABLES: usize = 64;

fn recorded_change(number: usize) -> Bytes {
    Block::parse(&Bytes::from_static(CHANGES[number])).expect("Fabric wrote it").envelope(0)
}

/// The configuration before the changes, and the most memory that a permitted change of it takes.
fn before_changes() -> &'static (ChannelConfig, usize) {
    static BEFORE: LazyLock<(ChannelConfig, usize)> = LazyLock::new(|| {
        let config = ChannelConfig::from_envelope(&recorded_change(0)).expect("Fabric wrote it");
        let updates = config_updates().into_iter().map(Bytes::from);
        let peaks = updates.map(|update| {
            // A process makes tables of keys that it has met several times, and keeps them.
            for _ in 0..USES_UNTIL_TABLES {
                config.propose_update(&update).expect("Fabric permitted it");
            }
            peak_of(|| config.propose_update(&update).map(drop)).1
        });
        let most = peaks.max().expect("there are updates");
        (config, most)
    });
    &BEFORE
}

fn config_updates() -> Vec<Vec<u8>> {
    let updates = [1, 2].map(|number| {
        let payload = common::Envelope::decode(recorded_change(number)).expect("Fabric wrote it").payload;
        let data = common::Payload::decode(payload).expect("Fabric wrote it").data;
        let content = common::ConfigEnvelope::decode(data).expect("Fabric wrote it");
        content.last_update.expect("Fabric wrote it").encode_to_vec()
    });
    updates.to_vec()
}

/// An update comes from a member of the channel, whose signature was checked. The seeds are permitted.
fn config_update(input: &[u8]) {
    let envelope = Bytes::copy_from_slice(input);
    let (config, usual) = before_changes();
    let most = untrusted(input, || ChannelConfig::most_memory_of_update(&envelope)).unwrap_or_default();
    let (proposed, peak) = peak_of(|| config.propose_update(&envelope));
    let bound = most + usual + 2 * input.len() + OVERHEAD_BYTES;
    assert!(peak <= bound, "an update of {} bytes took {peak} bytes of memory, above {bound}", input.len());
    if let Ok(next) = proposed {
        let next = next.config.expect("there is one");
        let next = ChannelConfig::from_config(config.channel().as_str(), &next).expect("usable");
        assert_eq!(next.sequence(), config.sequence() + 1);
    }
}

fn durations() -> Vec<Vec<u8>> {
    ["2s", "1h15m30.918273645s", "500ms", "1.5h"].map(|text| text.as_bytes().to_vec()).to_vec()
}

fn duration(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Some(duration) = ledger::config::parse_duration(text) else { return };
    let printed = ledger::config::format_duration(duration);
    assert_eq!(ledger::config::parse_duration(&printed), Some(duration), "{printed}");
}
