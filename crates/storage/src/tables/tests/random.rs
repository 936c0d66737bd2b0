//! Random histories against an oracle, which is a map from keys to all their versions.

use std::collections::BTreeMap;

use base::rt::simulation::Prng;

use super::*;

type Versions = BTreeMap<Version, Option<Bytes>>;

#[derive(Clone, Default)]
struct Oracle {
    keys: BTreeMap<Vec<u8>, Versions>,
    savepoint: Savepoint,
}

impl Oracle {
    fn get(&self, key: &[u8], through: u64) -> Option<(Version, Option<Bytes>)> {
        let versions = self.keys.get(key)?;
        let (version, value) = versions.range(..=Version::new(through, u32::MAX)).next_back()?;
        Some((*version, value.clone()))
    }

    fn range(&self, start: &[u8], end: &[u8], through: u64) -> Vec<(Bytes, Bytes, Version)> {
        let within = |key: &[u8]| start <= key && (end.is_empty() || key < end);
        let live = |key: &Vec<u8>| match self.get(key, through) {
            Some((version, Some(value))) => Some((Bytes::copy_from_slice(key), value, version)),
            _ => None,
        };
        self.keys.keys().filter(|key| within(key)).filter_map(live).collect()
    }
}

/// A value determined by its key and version, so that writing a row again writes the same.
fn value_of(key: &[u8], version: Version) -> Option<Bytes> {
    let seed = crate::checksum(&[key, &version.block.to_le_bytes(), &version.tx.to_le_bytes()].concat());
    if seed.is_multiple_of(4) {
        return None;
    }
    let length = [0, 3, 50, 300, 1000][(seed / 4 % 5) as usize];
    Some(Bytes::from(seed.to_le_bytes().repeat(length / 8 + 1)).slice(..length))
}

fn random_key(rng: &mut Prng) -> Vec<u8> {
    let alphabet = [0, 1, b'a', b'b', 0xff];
    (0..rng.below(4)).map(|_| *rng.pick(&alphabet)).collect()
}

/// A deletion that pruning has removed reads as an absent key.
fn visible(row: Option<(Version, Option<Bytes>)>) -> Option<(Version, Bytes)> {
    row.and_then(|(version, value)| Some((version, value?)))
}

fn check(tables: &dyn Tables, oracle: &Oracle, oldest: u64, rng: &mut Prng) {
    assert_eq!(tables.savepoint(), oracle.savepoint);
    let Some(newest) = oracle.savepoint.height.checked_sub(1) else { return };
    let through = oldest + rng.below(newest - oldest + 1);
    for _ in 0..5 {
        let key = random_key(rng);
        let row = tables.get("n", &key, BlockNumber(through)).expect("the row is readable");
        let row = row.map(|row| (row.version, row.value));
        assert_eq!(visible(row.clone()), visible(oracle.get(&key, through)), "{key:?} through {through}");
        let version = tables.version("n", &key, BlockNumber(through)).expect("the row is readable");
        let live = version.filter(|(_, live)| *live).map(|(version, _)| version);
        assert_eq!(live, visible(row).map(|(version, _)| version), "{key:?} through {through}");
    }
    let (start, end) = (random_key(rng), random_key(rng));
    let mut found = Vec::new();
    let mut from = Bytes::from(start.clone());
    let limit = 1 + rng.index(20);
    loop {
        let page = tables
            .range(RangeQuery { namespace: "n", start: &from, end: &end, through: BlockNumber(through), limit })
            .expect("the range is readable");
        found.extend(page.entries.into_iter().map(|entry| (entry.key, entry.value, entry.version)));
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    assert_eq!(found, oracle.range(&start, &end, through), "{start:?}..{end:?} through {through}");
}

/// Plays `steps` random steps: blocks, late rows, reads, pruning, persisting, closing and opening.
pub async fn run(mut engine: Engine, seed: u64, steps: usize) {
    let mut rng = Prng::new(seed);
    let mut oracle = Oracle::default();
    // The oracle at every savepoint since the last durable one.
    let mut history = vec![oracle.clone()];
    let mut oldest = 0;
    let mut tables = engine.tables("channel").await;
    for _ in 0..steps {
        match rng.below(20) {
            0..9 => {
                let height = oracle.savepoint.height + 1 + rng.below(3);
                let mut batch = RowBatch::new(savepoint(height));
                for _ in 0..rng.below(30) {
                    let key = random_key(&mut rng);
                    // Mostly new blocks; sometimes a row that comes late, but not below the bound of pruning.
                    let from = if rng.one_in(8) { oldest + 1 } else { oracle.savepoint.height };
                    let block = from.min(height - 1) + rng.below(height - from.min(height - 1));
                    let version = Version::new(block, rng.below(3) as u32);
                    let value = value_of(&key, version);
                    batch.put("n", &key, version, value.clone()).expect("the row is within the limits");
                    oracle.keys.entry(key).or_default().insert(version, value);
                }
                tables.write(batch).expect("the batch follows");
                oracle.savepoint = savepoint(height);
                history.push(oracle.clone());
            }
            9..15 => check(&*tables, &oracle, oldest, &mut rng),
            15 => {
                let newest = oracle.savepoint.height.saturating_sub(1);
                oldest = oldest.max(newest.saturating_sub(rng.below(6)));
                let rows_max = [0, 1, 7, 1000][rng.index(4)];
                tables.prune(BlockNumber(oldest), rows_max).expect("the disk is well");
            }
            16..18 => {
                let durable = tables.persist().await.expect("the disk is well");
                assert_eq!(durable, oracle.savepoint);
                history = vec![oracle.clone()];
            }
            18 => {
                let durable = tables.durable_savepoint();
                drop(tables);
                engine.close();
                tables = engine.tables("channel").await;
                let found = tables.savepoint();
                assert!(found.height >= durable.height, "what was persisted is there");
                oracle =
                    history.iter().rfind(|past| past.savepoint == found).expect("a savepoint that was written").clone();
                history = vec![oracle.clone()];
                oldest = found.height.saturating_sub(1);
                for _ in 0..10 {
                    check(&*tables, &oracle, oldest, &mut rng);
                }
            }
            _ => base::rt::yield_now().await,
        }
    }
}

#[test]
fn model_matches_the_oracle_on_many_seeds() {
    for seed in 0..60 {
        base::rt::simulation::Simulation::new(seed)
            .run(move |_| run(Engine::model(), seed, 200))
            .expect("the run succeeds");
    }
}

#[test]
fn fjall_matches_the_oracle_on_many_seeds() {
    for seed in 0..12 {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        base::rt::production::run(run(Engine::fjall(scratch.path().join("engine")), seed, 300));
    }
}
