//! Measures the cost of applying blocks to the world state.

use measurement::interval::median;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Bytes, Epoch, Map};
use state::disaggregated::DisaggregatedConfig;
use state::{Monolithic, WorldState as _};
use storage::tables::{FjallConfig, FjallEngine, RowBatch, Savepoint, TablesEngine as _};

use super::StateConfig;
use super::setup::{NAMESPACE, PooledState, block, each_ns, failed, keys, provider_name, value};
use super::two_sided::TwoSided;
use measurement::error::Error;
use measurement::figure::Figure;
use measurement::random::Random;

/// Writes of a block.
const WRITES: usize = 500;
/// Records, all of which are loaded before the measurement.
const RECORDS: usize = 20_000;
/// Blocks that are measured.
const BLOCKS: usize = 41;

pub async fn measure(options: &StateConfig, latency: Option<Duration>, figure: &mut Figure) -> Result<(), Error> {
    let mut random = Random::new(options.seed);
    let keys = keys(RECORDS);
    let budget = 512 << 20;
    let state = PooledState::start(latency, budget, DisaggregatedConfig::default()).await?;
    let mut two_sided = TwoSided::start(latency, budget).await?;
    let folder = tempfile::tempdir().map_err(|error| failed("a temporary folder", error))?;
    let engine = FjallEngine::open(folder.path(), FjallConfig::default()).await;
    let engine = engine.map_err(|error| failed("the storage engine", error))?;
    let tables = engine.tables("alone").await.map_err(|error| failed("the storage engine", error))?;
    let beneath = engine.tables("monolithic").await.map_err(|error| failed("the storage engine", error))?;
    let monolithic = Monolithic::open(beneath, state::MonolithicConfig::default());
    let mut map: Map<Arc<str>, Bytes> = Map::default();
    let mut times: [Vec<f64>; 5] = Default::default();
    let loading = RECORDS / WRITES;
    for round in 0..loading + BLOCKS {
        let chosen: Vec<Arc<str>> = match round < loading {
            true => keys[round * WRITES..(round + 1) * WRITES].to_vec(),
            false => (0..WRITES).map(|_| keys[random.below(RECORDS as u64) as usize].clone()).collect(),
        };
        let writes: Vec<_> = chosen.into_iter().map(|key| (key, value(&mut random, options.value_bytes))).collect();
        let number = round as u64;
        let begin = Instant::now();
        for (key, value) in &writes {
            map.insert(key.clone(), Bytes::copy_from_slice(value));
        }
        let mut took = [0.0; 5];
        took[0] = each_ns(begin, WRITES);
        let begin = Instant::now();
        state.apply(&writes).await?;
        took[1] = each_ns(begin, WRITES);
        let (batch, rows) = block(number, &writes);
        let begin = Instant::now();
        if monolithic.wants_persist() {
            monolithic.persist().await.map_err(|error| failed("a savepoint", error))?;
        }
        monolithic.apply(number, batch).await.map_err(|error| failed("a block", error))?;
        took[2] = each_ns(begin, WRITES);
        let begin = Instant::now();
        two_sided.put(&writes).await?;
        took[3] = each_ns(begin, WRITES);
        let begin = Instant::now();
        let savepoint = Savepoint { height: number + 1, epoch: Epoch(0), block_hash: [0; 32] };
        let mut batch = RowBatch::new(savepoint);
        for (key, version, value) in rows {
            let put = batch.put(NAMESPACE, key.as_bytes(), version, Some(value));
            put.map_err(|error| failed("a row", error))?;
        }
        tables.write(batch).map_err(|error| failed("rows", error))?;
        took[4] = each_ns(begin, WRITES);
        if round >= loading {
            times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
        }
    }
    let ways = [
        "in-process hash map",
        "state",
        "monolithic state",
        "allocation and linking asked of the memory node",
        "storage engine alone",
    ];
    let provider = provider_name(latency);
    for (way, times) in ways.into_iter().zip(times) {
        let labels = [("apply, a write", way), ("provider", provider.as_str())];
        figure.row(&labels, &[("median_ns", median(times))]);
    }
    Ok(())
}
