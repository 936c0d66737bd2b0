//! Measures what it costs to validate a block, and what parallel validation gains (FlexChain, section 5).
//!
//! Real blocks of SmallBank-like transactions are validated on a world state in pooled memory: each reads the definition of
//! its contract and two accounts, writes both accounts, and has one endorsement. A transaction in conflict takes the
//! accounts of an earlier one of its block, and so becomes invalid. In further blocks some transactions also scan twenty
//! accounts that nobody writes. For each block the parts are timed one after the other:
//!
//! 1. *signatures*: all signatures of the block in one batch, their digests included;
//! 2. *unchecked*: everything that verification does besides, as if each signature were valid, and the validation of the
//!    block: duplicates, policies of keys, conflicts, changes, commit hash;
//! 3. *checked*: both together, as a peer does it on one thread;
//! 4. *conflicts* by the sequential check and by workers, in turns; then the block is *applied* to one state by one task,
//!    and to another one by workers.

mod blocks;

use measurement::interval::median;
use std::time::Instant;

use base::rt::disk::Directory;
use base::rt::{self, CancellationToken};
use state::{ApplyWorkers, DisaggregatedConfig, WorldState as _};
use storage::GroupSync;
use storage::blocks::{BlockStore, BlockStoreConfig};
use validation::block::{BlockRules, ConflictCheckMode, find_conflicts, validate_block};
use validation::known_rows::KnownRows;
use validation::parallel::WorkersConfig;
use validation::verify::{SignatureVerdict, VerifiedTransaction, verify_transactions, verify_with_verdict};
use validation::view::BlockStateView;

use self::blocks::{BenchChannel, BlockShape};
use crate::state::setup::{PooledState, failed};
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::ConfidenceInterval;

/// Lower bounds on the ratios.
const CHECKED_OVER_FLOOR_MIN: f64 = 0.8;
const UNCHECKED_TPS_MIN: f64 = 200_000.0;
const PARALLEL_MIN: f64 = 1.0;
const UNCONFLICTED_MIN: f64 = 1.7;

/// Percent of transactions in conflict, and of those that scan.
const SHARES: [(u64, u64); 4] = [(0, 0), (10, 0), (50, 0), (0, 20)];

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct ValidateConfig {
    /// Transactions of a block, for each size that is measured.
    pub block_transactions: Vec<usize>,
    /// Blocks of each size and share.
    pub blocks: usize,
    /// Determines the accounts.
    pub seed: u64,
}

impl Default for ValidateConfig {
    fn default() -> ValidateConfig {
        ValidateConfig { block_transactions: vec![200, 1_000], blocks: 31, seed: 1 }
    }
}

/// Nanoseconds a transaction of each block: signatures, unchecked, checked, conflicts in sequence, conflicts in parallel,
/// applied by one task, applied by workers.
type BlockTimes = [Vec<f64>; 7];

/// Measures.
///
/// # Errors
/// A part of the system fails, or `stop` was stopped.
pub async fn run(options: &ValidateConfig, stop: &CancellationToken, progress: &dyn Fn(&str)) -> Result<Figure, Error> {
    let mut figure = Figure::new("validate", "Validation of blocks, by one thread and by several workers");
    figure.setting("blocks", options.blocks);
    figure.setting("workers", WorkersConfig::of_machine().workers_max);
    figure.setting("seed", options.seed);
    let (mut over_floor, mut unchecked_ns) = (f64::INFINITY, 0.0_f64);
    let (mut parallel_min, mut unconflicted) = (f64::INFINITY, f64::INFINITY);
    for transactions in &options.block_transactions {
        for (conflict_percent, scan_percent) in SHARES {
            progress(&format!("blocks of {transactions}, {conflict_percent} % in conflict, {scan_percent} % scan"));
            let shape = BlockShape { transactions: *transactions, conflict_percent, scan_percent };
            let measuring = rt::spawn(measure(options.clone(), shape, stop.clone())).abort_on_drop();
            let times = measuring.await.map_err(|_| Error::Interrupted)??;
            let sums =
                |check: &[f64], apply: &[f64]| check.iter().zip(apply).map(|(check, apply)| check + apply).collect();
            let (alone, workers): (Vec<f64>, Vec<f64>) = (sums(&times[3], &times[5]), sums(&times[4], &times[6]));
            let gains: Vec<f64> = alone.iter().zip(&workers).map(|(alone, workers)| alone / workers).collect();
            let gain = ConfidenceInterval::of_ratios(&gains);
            let (low, high) = gain.ends.unwrap_or((gain.mean, gain.mean));
            let [signatures, unchecked, checked, sequential, parallel, apply, apply_parallel] = times.map(median);
            over_floor = over_floor.min((signatures + unchecked) / checked);
            parallel_min = parallel_min.min(gain.mean);
            if scan_percent == 0 {
                unchecked_ns = unchecked_ns.max(unchecked);
            }
            if (conflict_percent, scan_percent) == (0, 0) {
                unconflicted = unconflicted.min(gain.mean);
            }
            figure.row(
                &[
                    ("block", &transactions.to_string()),
                    ("conflicts", &format!("{conflict_percent} %")),
                    ("scans", &format!("{scan_percent} %")),
                ],
                &[
                    ("signatures_ns", signatures),
                    ("unchecked_ns", unchecked),
                    ("checked_ns", checked),
                    ("conflicts_sequential_ns", sequential),
                    ("conflicts_parallel_ns", parallel),
                    ("apply_sequential_ns", apply),
                    ("apply_parallel_ns", apply_parallel),
                    ("parallel_over_sequential", gain.mean),
                    ("low", low),
                    ("high", high),
                ],
            );
        }
    }
    figure.ratio("checked_over_floor", over_floor, Some(RatioBound::AtLeast(CHECKED_OVER_FLOOR_MIN)));
    figure.ratio("unchecked_tps_per_core", 1e9 / unchecked_ns, Some(RatioBound::AtLeast(UNCHECKED_TPS_MIN)));
    figure.ratio("parallel_over_sequential_min", parallel_min, Some(RatioBound::AtLeast(PARALLEL_MIN)));
    figure.ratio("parallel_over_sequential_unconflicted", unconflicted, Some(RatioBound::AtLeast(UNCONFLICTED_MIN)));
    figure
        .note("Nanoseconds are a transaction's, medians over the blocks; the gain is the mean of each block's ratios.");
    figure.note("The conflict checks include the batch of changes; its bytes in storage are in neither time.");
    Ok(figure)
}

async fn measure(options: ValidateConfig, shape: BlockShape, stop: CancellationToken) -> Result<BlockTimes, Error> {
    let mut channel = BenchChannel::new(options.seed)?;
    let state = PooledState::start(None, 1 << 30, DisaggregatedConfig::default()).await?;
    let by_workers = DisaggregatedConfig { apply_workers: ApplyWorkers::of_machine(), ..Default::default() };
    let state_of_workers = PooledState::start(None, 1 << 30, by_workers).await?;
    for batch in channel.first_batches() {
        state.apply_batch(batch.clone()).await?;
        state_of_workers.apply_batch(batch).await?;
    }
    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", error))?;
    let directory = Directory::open(folder.path()).await.map_err(|error| failed("a temporary folder", error))?;
    let opened = BlockStore::open(directory, GroupSync::new(), BlockStoreConfig::default()).await;
    let (committed, _) = opened.map_err(|error| failed("a block store", error))?;
    let mut known = KnownRows::default();
    let mut times = BlockTimes::default();
    for turn in 0..options.blocks {
        if stop.is_cancelled() {
            return Err(Error::Interrupted);
        }
        let block = channel.next_block(state.state.height(), shape);
        let each = |since: Instant| since.elapsed().as_nanos() as f64 / shape.transactions as f64;
        let policies = channel.policies();
        let view = BlockStateView::new(state.state.snapshot(), Vec::new());
        let (previous_commit_hash, mode) = (None, ConflictCheckMode::Sequential);
        let rules = BlockRules { policies, committed: &committed, view: &view, previous_commit_hash, mode };
        let failed_block = |error| failed("validation", error);

        let signatures = channel.signatures(&block);
        let start = Instant::now();
        let valid = channel.verify(&signatures);
        times[0].push(each(start));
        assert!(valid, "the benchmark has signed");

        let start = Instant::now();
        let verify = |envelope| verify_with_verdict(envelope, policies, SignatureVerdict::Valid);
        let mut unchecked: Vec<VerifiedTransaction> = block.envelopes.iter().map(verify).collect();
        let expected = validate_block(&block.block, &mut unchecked, &rules, &mut known).await.map_err(failed_block)?;
        times[1].push(each(start));

        let start = Instant::now();
        let mut checked = verify_transactions(block.envelopes.iter().cloned(), policies);
        let found = validate_block(&block.block, &mut checked, &rules, &mut known).await.map_err(failed_block)?;
        times[2].push(each(start));
        assert_eq!(found.codes, expected.codes);
        assert_eq!(block.conflicts, found.codes.iter().filter(|code| !code.is_valid()).count(), "as generated");

        checked.iter_mut().for_each(VerifiedTransaction::find_footprint);
        let positions: Vec<u32> = (0..shape.transactions as u32).collect();
        let parallel = ConflictCheckMode::Parallel(WorkersConfig::of_machine());
        let number = block.block.number().get();
        let mut turns = [(ConflictCheckMode::Sequential, &state, 0), (parallel, &state_of_workers, 1)];
        turns.rotate_left(turn % 2);
        for (mode, state, at) in turns {
            let view = BlockStateView::new(state.state.snapshot(), Vec::new());
            // The first check brings the state's rows into the processor's caches, for both modes alike.
            for is_timed in [false, true] {
                let start = Instant::now();
                let outcome = find_conflicts(number, &mut checked, &positions, mode, &view, &mut known).await;
                if is_timed {
                    times[3 + at].push(each(start));
                }
                assert_eq!(outcome.map_err(|error| failed("a conflict check", error))?.codes, expected.codes);
            }
            drop(view);
            let took = state.apply_timed(expected.batch.clone()).await?;
            times[5 + at].push(took.as_nanos() as f64 / shape.transactions as f64);
        }
        channel.note(&expected);
    }
    Ok(times)
}
