use base::rt::disk::Directory;
use base::{Epoch, TxId};
use storage::GroupSync;
use storage::blocks::{BlockStore, BlockStoreConfig, NewBlock};

use super::*;
use crate::block::{BlockMetadata, EncodedBlock, OrdererMetadata};
use crate::fixture::{TestChain, TestNetwork};
use crate::golden::{self, BLOCK_1, BLOCK_8, BLOCK_9, GENESIS};
use crate::verify::store::verify;

/// A verifier that has checked what comes before a golden block.
fn before(block: &Block, previous_commit_hash: Option<Hash>) -> LedgerVerifier {
    let config = ChannelConfig::from_block(&golden::block(GENESIS)).expect("golden");
    let mut verifier = LedgerVerifier::new(VerifyConfig::default());
    verifier.config = Some(Arc::new(config));
    verifier.report.blocks = block.number().get();
    verifier.report.block_hash = block.header().previous_hash;
    verifier.report.commit_hash = previous_commit_hash;
    verifier
}

fn commit_hash(bytes: &'static [u8]) -> Hash {
    golden::block(bytes).metadata().commit_hash().expect("golden").expect("golden")
}

/// Checks a whole ledger; an error comes with the block's number.
fn check(blocks: &[Block], options: VerifyConfig) -> Result<LedgerReport, (usize, Error)> {
    let mut verifier = LedgerVerifier::new(options);
    for (index, block) in blocks.iter().enumerate() {
        verifier.check(block).map_err(|error| (index, error))?;
    }
    Ok(verifier.report().clone())
}

/// What the check of the sample ledger says after a change.
fn fault(change: impl FnOnce(&TestNetwork, &mut Vec<Block>)) -> (usize, Error) {
    let network = TestNetwork::new();
    let mut blocks = TestChain::sample(&network).blocks;
    change(&network, &mut blocks);
    check(&blocks, VerifyConfig::default()).expect_err("a fault")
}

fn with_metadata(block: &mut Block, change: impl FnOnce(&mut BlockMetadata)) {
    let mut metadata = block.metadata().clone();
    change(&mut metadata);
    *block = block.with_metadata(metadata);
}

#[test]
fn golden_blocks_0_and_1_are_a_sound_ledger() {
    let blocks = [golden::block(GENESIS), golden::block(BLOCK_1)];
    let report = check(&blocks, VerifyConfig::default()).expect("golden");
    assert_eq!((report.blocks, report.transactions, report.valid), (2, 2, 2));
    assert_eq!((report.configurations, report.commit_hashes_unchecked), (1, 0));
    assert_eq!(report.commit_hash, Some(commit_hash(BLOCK_1)));
    assert_eq!(report.bytes, (GENESIS.len() + BLOCK_1.len()) as u64);
}

#[test]
fn the_commit_hash_of_block_9_follows_from_that_of_block_8() {
    let ninth = golden::block(BLOCK_9);
    let mut verifier = before(&ninth, Some(commit_hash(BLOCK_8)));
    verifier.check(&ninth).expect("golden");
    assert_eq!(verifier.report().commit_hash, Some(commit_hash(BLOCK_9)));

    let mut verifier = before(&ninth, Some(commit_hash(BLOCK_1)));
    assert!(matches!(verifier.check(&ninth), Err(Error::CommitHash { block: BlockNumber(9), .. })));
}

#[test]
fn a_sound_ledger_is_reported() {
    let chain = TestChain::sample(&TestNetwork::new());
    let report = check(&chain.blocks, VerifyConfig::default()).expect("the ledger is intact");
    assert_eq!((report.blocks, report.transactions, report.valid), (4, 7, 4));
    assert_eq!((report.configurations, report.commit_hashes_unchecked), (1, 0));
    assert_eq!(report.block_hash, chain.blocks.last().map(Block::hash));
    assert_eq!(report.commit_hash, chain.blocks[3].metadata().commit_hash().expect("there is one"));
    assert_eq!(chain.number(), BlockNumber(3));
    assert_eq!(chain.config().channel(), crate::fixture::CHANNEL);
}

#[test]
fn an_orderers_ledger_has_no_filters() {
    let network = TestNetwork::new();
    let mut blocks = TestChain::sample(&network).blocks;
    for block in &mut blocks {
        with_metadata(block, |metadata| {
            let signatures = metadata.signatures().clone();
            *metadata = BlockMetadata::default();
            metadata.set_signatures(signatures);
        });
    }
    let report = check(&blocks, VerifyConfig { validated: false, creators: false }).expect("the ledger is intact");
    assert_eq!((report.blocks, report.commit_hash), (4, None));
    assert!(matches!(check(&blocks, VerifyConfig::default()), Err((0, Error::FilterLength { .. }))));
}

#[test]
fn blocks_that_are_missing_or_swapped_are_found() {
    assert!(matches!(fault(|_, blocks| drop(blocks.remove(1))), (1, Error::Number { .. })));
    assert!(matches!(fault(|_, blocks| blocks.swap(2, 3)), (2, Error::Number { .. })));
    assert!(matches!(fault(|_, blocks| drop(blocks.remove(0))), (0, Error::Number { .. })));
    let other_genesis = |network: &TestNetwork, blocks: &mut Vec<Block>| {
        let mut spec = network.spec();
        spec.batch.messages_max = 1;
        blocks[0] = TestChain::new(&spec.build().expect("usable")).blocks.remove(0);
    };
    assert!(matches!(fault(other_genesis), (1, Error::PreviousHash { block: BlockNumber(1), .. })));
}

#[test]
fn a_changed_transaction_is_found() {
    let change = |_: &TestNetwork, blocks: &mut Vec<Block>| {
        let mut encoded = blocks[2].encoded().clone();
        let mut data = encoded.data.to_vec();
        *data.last_mut().expect("not empty") ^= 1;
        encoded = EncodedBlock { data: data.into(), ..encoded };
        blocks[2] = Block::parse_parts(encoded).expect("the last byte is one of a signature");
    };
    assert!(matches!(fault(change), (2, Error::DataHash { block: BlockNumber(2), .. })));
}

#[test]
fn blocks_that_no_orderer_signed_are_found() {
    let unsigned = |_: &TestNetwork, blocks: &mut Vec<Block>| {
        with_metadata(&mut blocks[1], |metadata| metadata.set_signatures(Bytes::new()));
    };
    assert!(matches!(fault(unsigned), (1, Error::OrdererSignatures { .. })));
    let by_a_peer = |network: &TestNetwork, blocks: &mut Vec<Block>| {
        blocks[1] = blocks[1].sign(&network.peers[0], &OrdererMetadata::default());
    };
    assert!(matches!(fault(by_a_peer), (1, Error::OrdererSignatures { .. })));
    let wrong_config = |network: &TestNetwork, blocks: &mut Vec<Block>| {
        let metadata = OrdererMetadata { last_config: 1, ..OrdererMetadata::default() };
        blocks[2] = blocks[2].sign(&network.orderer, &metadata);
    };
    let (block, error) = fault(wrong_config);
    assert_eq!(block, 2);
    assert!(error.to_string().contains("name block 1 as the newest configuration, which is block 0"), "{error}");
}

#[test]
fn filters_and_commit_hashes_that_do_not_fit_are_found() {
    let filter = |block: usize, codes: &'static [u8]| {
        fault(|_, blocks| with_metadata(&mut blocks[block], |metadata| metadata.set_filter(Bytes::from_static(codes))))
    };
    assert!(matches!(filter(1, &[0, 11]), (1, Error::FilterLength { codes: 2, transactions: 3, .. })));
    // A valid transaction that is marked as invalid, and one that lost a conflict marked as valid.
    assert!(matches!(filter(1, &[0, 11, 11]), (1, Error::CommitHash { .. })));
    assert!(matches!(filter(1, &[0, 0, 0]), (1, Error::CommitHash { .. })));
    // Junk that is marked as valid.
    assert!(matches!(filter(3, &[0, 10]), (3, Error::Transaction { block: BlockNumber(3), index: TxIndex(0), .. })));
    let other_hash = |_: &TestNetwork, blocks: &mut Vec<Block>| {
        with_metadata(&mut blocks[2], |metadata| metadata.set_commit_hash(&[1; 32]));
    };
    assert!(matches!(fault(other_hash), (2, Error::CommitHash { .. })));
    let no_hash = |_: &TestNetwork, blocks: &mut Vec<Block>| {
        with_metadata(&mut blocks[2], |metadata| metadata.set_slot(4, Bytes::new()));
    };
    assert!(matches!(fault(no_hash), (2, Error::Missing { what: "the commit hash" })));
}

#[test]
fn a_valid_transaction_that_its_creator_did_not_sign_is_found() {
    let network = TestNetwork::new();
    let mut chain = TestChain::new(&network.spec().build().expect("usable"));
    let mut transaction = network.transaction(b"1", &[("a", Some("1"))]).to_vec();
    *transaction.last_mut().expect("not empty") ^= 1;
    chain.append(&network.orderer, &[(transaction.into(), 0)], &[("a", Some("1"), 0)]);
    let (block, error) = check(&chain.blocks, VerifyConfig::default()).expect_err("a fault");
    assert_eq!(block, 1);
    assert!(error.to_string().contains("its creator did not sign it"), "{error}");
    check(&chain.blocks, VerifyConfig { creators: false, ..VerifyConfig::default() }).expect("not looked at");
}

#[test]
fn a_new_configuration_counts_from_the_block_after_it() {
    let network = TestNetwork::new();
    let mut chain = TestChain::new(&network.spec().build().expect("usable"));
    // The first organisation takes over the ordering.
    let mut spec = network.spec();
    spec.orderers = vec![spec.application[0].clone()];
    let other = ChannelConfig::from_block(&spec.build().expect("usable")).expect("usable");
    let orderers = other.decode_root().expect("usable").groups["Orderer"].groups.clone();
    let current = chain.config();
    let update = network.config_update(&current, |root| {
        root.groups.get_mut("Orderer").expect("there").groups = orderers;
    });
    let next = current.propose_update(&update).expect("permitted");
    let mut unasked = chain.clone();
    chain.last_config = 1;
    chain.append(&network.orderer, &[(network.config_transaction(&next), 0)], &[]);
    let mut late = chain.clone();

    chain.append(&network.peers[0], &[(network.transaction(b"1", &[]), 0)], &[]);
    let report = check(&chain.blocks, VerifyConfig::default()).expect("the ledger is intact");
    assert_eq!((report.blocks, report.configurations), (3, 2));

    late.append(&network.orderer, &[(network.transaction(b"1", &[]), 0)], &[]);
    assert!(matches!(check(&late.blocks, VerifyConfig::default()), Err((2, Error::OrdererSignatures { .. }))));

    // The orderer alone cannot change it.
    let asked_by_nobody = proto::common::ConfigEnvelope { last_update: None, ..next };
    unasked.last_config = 1;
    unasked.append(&network.orderer, &[(network.config_transaction(&asked_by_nobody), 0)], &[]);
    for validated in [true, false] {
        let unasked = check(&unasked.blocks, VerifyConfig { validated, ..VerifyConfig::default() });
        assert!(matches!(unasked, Err((1, Error::Missing { .. }))), "{unasked:?}");
    }
}

/// Fabric's peers do not note the changes that follow from the state before a block. All other commit hashes are recomputed.
#[test]
fn the_recorded_ledger_of_fabrics_peers_is_sound() {
    let mut verifier = LedgerVerifier::new(VerifyConfig::default());
    for number in 0..171 {
        verifier.check(&crate::golden::recorded(number)).unwrap_or_else(|error| panic!("block {number}: {error}"));
    }
    let LedgerReport { blocks, valid, configurations, commit_hashes_unchecked, .. } = *verifier.report();
    assert_eq!((blocks, valid, configurations, commit_hashes_unchecked), (171, 214, 16, 5));
}

async fn store_of(directory: &tempfile::TempDir, blocks: &[Block], ids: impl Fn(&Block, usize) -> TxId) -> BlockStore {
    let directory = Directory::open(directory.path()).await.expect("opens");
    let opened = BlockStore::open(directory, GroupSync::new(), BlockStoreConfig::default()).await;
    let (store, _) = opened.expect("opens");
    for block in blocks {
        let filter = block.metadata().filter();
        let transactions: Vec<(TxId, u8)> = (0..block.len()).map(|index| (ids(block, index), filter[index])).collect();
        let new = NewBlock {
            number: block.number(),
            header_hash: block.hash(),
            previous_hash: block.header().previous_hash_or_zero(),
            epoch: Epoch(0),
            parts: &block.parts(),
            transactions: &transactions,
        };
        store.append(new).await.expect("in order");
    }
    store
}

fn id_of(block: &Block, index: usize) -> TxId {
    Transaction::decode(&block.envelope(index)).map_or(TxId::from(""), |transaction| transaction.header().to_tx_id())
}

#[test]
fn a_stored_ledger_is_checked_with_its_indexes() {
    base::rt::production::run(async {
        let blocks = TestChain::sample(&TestNetwork::new()).blocks;
        let directory = tempfile::tempdir().expect("a directory");
        let store = store_of(&directory, &blocks, id_of).await;
        let mut seen = Vec::new();
        let report = verify(&store, VerifyConfig::default(), |progress| seen.push(progress))
            .await
            .expect("the ledger is intact");
        assert_eq!(report.blocks, 4);
        let bytes: usize = blocks.iter().map(|block| block.encoded().len()).sum();
        assert_eq!(report.bytes, bytes as u64);
        assert_eq!(seen.iter().map(|progress| progress.blocks).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert!(seen.iter().all(|progress| progress.height == 4));

        let directory = tempfile::tempdir().expect("a directory");
        let wrong_ids = |block: &Block, index: usize| match block.number() {
            BlockNumber(2) => TxId::from("another"),
            _ => id_of(block, index),
        };
        let store = store_of(&directory, &blocks, wrong_ids).await;
        let error = verify(&store, VerifyConfig::default(), |_| {}).await.expect_err("a fault");
        assert_eq!(error.block, BlockNumber(2));
        assert_eq!(
            error.to_string(),
            "the ledger is not sound at block 2: block 2, transaction 0: the store's record has another transaction id \
             than the block"
        );
        assert_eq!(error.kind(), base::ErrorKind::Corrupt);
    });
}

#[test]
fn a_transaction_that_is_valid_twice_is_found() {
    base::rt::production::run(async {
        let network = TestNetwork::new();
        let mut chain = TestChain::new(&network.spec().build().expect("usable"));
        for _ in 0..2 {
            let transaction = network.transaction(b"1", &[("a", Some("1"))]);
            chain.append(&network.orderer, &[(transaction, 0)], &[("a", Some("1"), 0)]);
        }
        let directory = tempfile::tempdir().expect("a directory");
        let store = store_of(&directory, &chain.blocks, id_of).await;
        let error = verify(&store, VerifyConfig::default(), |_| {}).await.expect_err("a fault");
        assert_eq!(error.block, BlockNumber(2));
        assert!(error.to_string().contains("an earlier block has a transaction of the same id"), "{error}");
    });
}
