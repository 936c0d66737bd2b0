//! The conflict check by several workers (FlexChain, section 5.2, Algorithm 1).
//!
//! The result is that of the sequential check ([`crate::conflicts`]), bit for bit: the same codes, the same batch. The
//! candidates are numbered in the order of the block. Each becomes *ready* once all its predecessors in the
//! [dependency graph](crate::graph) are *done*.
//!
//! 1. The graph is built from the candidates' footprints. Candidates without predecessors are ready.
//! 2. A worker claims up to [`CLAIM_MAX`] ready candidates; no two of them conflict. One request fetches the versions of
//!    all keys that they read.
//! 3. For each of them it makes the checks of the sequential rule, in the same order. Whether an earlier valid candidate
//!    has written a key is in the table of *last writers*, with one entry for each key of the graph; rows in namespaces
//!    that somebody scans are also in one ordered batch. The worker computes what a valid candidate changes, enters it
//!    in both, and keeps the rows.
//! 4. Then the candidate is done. The worker claims the candidates that became ready thereby before others, so a chain
//!    of conflicts stays with one worker. It leaves half of a surplus to workers that wait.
//! 5. When all candidates are done, each worker sorts its rows, and the caller merges them into the batch: of several
//!    rows with one key, that of the last candidate counts.
//!
//! Invariants:
//! 1. While a candidate is checked, all earlier candidates that conflict with it are done, and no later one that does is
//!    claimed. So the last writer of each of its keys is the one that the sequential check would have met.
//! 2. An entry of the table stands for a hash. If it names a writer, the worker compares the keys themselves, so equal
//!    hashes of different keys do not change a verdict.
//! 3. The first error of a worker ends all of them, and there is no result.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use base::rt::sync::Notify;
use base::{Bytes, Version, rt};
use ledger::Code;
use ledger::rwset::ReadWriteSet;
use state::{Update, UpdateBatch};

use crate::conflicts::{ConflictOutcome, EarlierChanges, HashedReads, ReadKeys, check_candidate};
use crate::footprint::{Footprint, RowHash};
use crate::graph::{DependencyGraph, GraphBuilder, KeyNumbers};
use crate::known_rows::KnownRows;
use crate::updates::{BlockUpdates, LatestRows, NamespaceNames, changes_by_key, has_plain_changes};
use crate::view::BlockStateView;

/// The largest number of candidates that a worker claims at once.
const CLAIM_MAX: usize = 16;

/// How many workers check a block.
///
/// Scans decide: each waits for the state several times, one scan after the other, while all keys that are read by name
/// are fetched at once. A candidate without a scan takes less than a microsecond, which no second worker makes shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkersConfig {
    /// The largest number of workers.
    pub workers_max: usize,
    /// The number of candidates with scans for which one more worker is started. With 0 all workers are always started.
    pub scans_per_worker: usize,
}

impl WorkersConfig {
    /// As many workers as there are processors, up to 8.
    pub fn of_machine() -> WorkersConfig {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        WorkersConfig { workers_max: processors.min(8), scans_per_worker: 128 }
    }

    /// The number of workers for a block with this number of scanning candidates.
    pub(crate) fn workers(&self, scans: usize) -> usize {
        self.workers_max.min(scans.checked_div(self.scans_per_worker).unwrap_or(usize::MAX)).max(1)
    }
}

/// A transaction of a block that passed all earlier checks.
#[derive(Debug)]
pub struct Candidate {
    /// Its position in the block.
    pub position: u32,
    /// What it reads and writes.
    pub set: ReadWriteSet,
    /// The footprint of the set.
    pub footprint: Footprint,
}

/// Decides which of `candidates` are valid, as [`crate::conflicts::check_conflicts`] does, with this number of workers.
/// The candidates come in the order of the block, and are given back. There are at most
/// [`TRANSACTIONS_MAX`](crate::graph::TRANSACTIONS_MAX).
///
/// # Errors
/// The state's; in that case there is no result.
pub async fn check_conflicts_in_parallel(
    block: u64,
    candidates: Vec<Candidate>,
    view: &BlockStateView,
    known: &mut KnownRows,
    workers: usize,
) -> (Vec<Candidate>, Result<ConflictOutcome, state::Error>) {
    debug_assert!(candidates.is_sorted_by_key(|candidate| candidate.position), "candidates come in block order");
    let plain = match plain_changes(&candidates, view, known).await {
        Ok(plain) => plain,
        Err(error) => return (candidates, Err(error)),
    };
    let check = Arc::new(BlockCheck::new(block, candidates, plain, view.clone()));
    let mut runs = Vec::with_capacity(workers);
    if workers == 1 {
        runs.push(work(check.clone()).await);
    } else {
        // The caller only waits: a task that works without waiting keeps what it has just spawned from other threads.
        let tasks: Vec<_> = (0..workers).map(|_| rt::spawn(work(check.clone())).abort_on_drop()).collect();
        for task in tasks {
            match task.await {
                Ok(run) => runs.push(run),
                // Only the end of the runtime stops the task, and it ends this one, too.
                Err(_) => std::future::pending().await,
            }
        }
    }
    let check = Arc::into_inner(check).expect("all workers have ended");
    let outcome = match check.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(merged(block, &check.candidates, check.results, runs)),
    };
    (check.candidates, outcome)
}

/// For each candidate, whether it changes exactly what it writes if it is valid.
async fn plain_changes(
    candidates: &[Candidate],
    view: &BlockStateView,
    known: &mut KnownRows,
) -> Result<Vec<bool>, state::Error> {
    let writes_metadata = |contract: &str| {
        candidates.iter().any(|Candidate { set, .. }| {
            let mut namespaces = set.namespaces.iter();
            namespaces.any(|namespace| namespace.metadata_writes > 0 && set.name(namespace) == contract)
        })
    };
    let mut plain = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        plain.push(has_plain_changes(&candidate.set, view, known, writes_metadata).await?);
    }
    Ok(plain)
}

/// A row that a candidate changes if it is valid.
struct ChangedRow {
    namespace: Arc<str>,
    key: Arc<str>,
    value: Option<Bytes>,
}

/// The result of the check of one candidate.
struct CheckedCandidate {
    code: Code,
    /// What it changes; empty unless it is valid.
    rows: Vec<ChangedRow>,
    is_derived: bool,
}

/// A row of a candidate, by the numbers of both.
#[derive(Clone, Copy)]
struct RowNumber {
    candidate: u32,
    row: u32,
}

/// The check of one block, shared by its workers.
struct BlockCheck {
    block: u64,
    candidates: Vec<Candidate>,
    /// For each candidate, whether it changes exactly what it writes if it is valid.
    plain: Vec<bool>,
    view: BlockStateView,
    successors: Successors,
    /// For each candidate, the number of predecessors that are not done.
    waits_for: Vec<AtomicU32>,
    /// The candidates that are ready from the start.
    roots: Vec<u32>,
    next_root: AtomicUsize,
    /// Other candidates that are ready, for any worker.
    surplus: Mutex<Vec<u32>>,
    /// The number of workers that wait for a ready candidate.
    idle: AtomicUsize,
    /// The number of candidates that are not done.
    left: AtomicUsize,
    changed: Notify,
    keys: KeyNumbers,
    /// For each key, the last valid candidate that changed it; see [`LastWriter`].
    last_writers: Vec<LastWriter>,
    results: Vec<OnceLock<CheckedCandidate>>,
    scanned: ScannedRows,
    has_failed: AtomicBool,
    failed: Mutex<Option<state::Error>>,
}

/// The row that changed a key last, or none.
#[derive(Default)]
struct LastWriter(AtomicU64);

impl LastWriter {
    fn set(&self, RowNumber { candidate, row }: RowNumber) {
        self.0.store((u64::from(candidate) + 1) << 32 | u64::from(row), Ordering::Release);
    }

    fn get(&self) -> Option<RowNumber> {
        let bits = self.0.load(Ordering::Acquire);
        let candidate = u32::try_from((bits >> 32).checked_sub(1)?).ok()?;
        Some(RowNumber { candidate, row: bits as u32 })
    }
}

/// The changed rows of the namespaces that somebody scans, in order.
#[derive(Default)]
struct ScannedRows {
    namespaces: BTreeSet<String>,
    batch: Mutex<UpdateBatch>,
}

impl ScannedRows {
    fn of(candidates: &[Candidate]) -> ScannedRows {
        let mut namespaces = BTreeSet::new();
        for Candidate { set, footprint, .. } in candidates {
            if footprint.has_scans() {
                let scanned = set.namespaces.iter().filter(|namespace| namespace.ranges > 0);
                namespaces.extend(scanned.map(|namespace| set.name(namespace).to_owned()));
            }
        }
        ScannedRows { namespaces, batch: Mutex::default() }
    }

    fn note(&self, rows: &[ChangedRow], version: Version) {
        if self.namespaces.is_empty() {
            return;
        }
        for ChangedRow { namespace, key, value } in rows {
            if self.namespaces.contains(&**namespace) {
                let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
                batch.put(namespace, key.clone(), value.clone(), version);
            }
        }
    }
}

/// The later candidates to which edges lead from each one.
struct Successors {
    ends: Vec<u32>,
    targets: Vec<u32>,
}

impl Successors {
    fn of(graph: &DependencyGraph) -> Successors {
        let mut ends = vec![0_u32; graph.len()];
        for transaction in 0..graph.len() {
            graph.predecessors(transaction).iter().for_each(|from| ends[*from as usize] += 1);
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum;
        }
        let (mut targets, mut free) = (vec![0_u32; sum as usize], ends.clone());
        for transaction in (0..graph.len()).rev() {
            for from in graph.predecessors(transaction) {
                let free = &mut free[*from as usize];
                *free -= 1;
                targets[*free as usize] = transaction as u32;
            }
        }
        Successors { ends, targets }
    }

    fn after(&self, candidate: u32) -> &[u32] {
        let start = (candidate as usize).checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.targets[start as usize..self.ends[candidate as usize] as usize]
    }
}

impl BlockCheck {
    /// Step 1.
    fn new(block: u64, candidates: Vec<Candidate>, plain: Vec<bool>, view: BlockStateView) -> BlockCheck {
        let accesses = candidates.iter().map(|candidate| candidate.footprint.len()).sum();
        let mut builder = GraphBuilder::<&ReadWriteSet>::with_capacity(candidates.len(), accesses);
        candidates.iter().for_each(|candidate| builder.add(&candidate.footprint, &candidate.set));
        let (graph, keys) = builder.finish_with_keys();
        let is_unordered = rt::fault_point("validation.parallel.mutant.unordered");
        let waits_for = |candidate| if is_unordered { 0 } else { graph.predecessors(candidate).len() as u32 };
        let waits_for: Vec<u32> = (0..graph.len()).map(waits_for).collect();
        let roots = (0..).zip(&waits_for).filter(|(_, count)| **count == 0).map(|(candidate, _)| candidate).collect();
        BlockCheck {
            block,
            plain,
            view,
            successors: Successors::of(&graph),
            waits_for: waits_for.into_iter().map(AtomicU32::new).collect(),
            roots,
            next_root: AtomicUsize::new(0),
            surplus: Mutex::default(),
            idle: AtomicUsize::new(0),
            left: AtomicUsize::new(candidates.len()),
            changed: Notify::new(),
            last_writers: std::iter::repeat_with(LastWriter::default).take(keys.len()).collect(),
            keys,
            results: std::iter::repeat_with(OnceLock::new).take(candidates.len()).collect(),
            scanned: ScannedRows::of(&candidates),
            has_failed: AtomicBool::new(false),
            failed: Mutex::default(),
            candidates,
        }
    }

    fn surplus(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.surplus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is nothing more to claim, now or later.
    fn is_over(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0 || self.has_failed.load(Ordering::Acquire)
    }

    /// Step 2: ready candidates, of the worker's `own` first; none if there are none now.
    fn claim(&self, own: &mut Vec<u32>, claim: &mut Vec<u32>) {
        claim.clear();
        if self.has_failed.load(Ordering::Acquire) {
            return;
        }
        claim.extend(own.drain(own.len().saturating_sub(CLAIM_MAX)..));
        let wanted = CLAIM_MAX - claim.len();
        if wanted > 0 && self.next_root.load(Ordering::Relaxed) < self.roots.len() {
            let first = self.next_root.fetch_add(wanted, Ordering::Relaxed).min(self.roots.len());
            claim.extend(&self.roots[first..(first + wanted).min(self.roots.len())]);
        }
        if claim.is_empty() {
            let mut surplus = self.surplus();
            let first = surplus.len().saturating_sub(CLAIM_MAX);
            claim.extend(surplus.drain(first..));
        }
    }

    /// Waits until a candidate may be ready. False once there is nothing more to claim.
    async fn has_more(&self) -> bool {
        self.idle.fetch_add(1, Ordering::SeqCst);
        let has_more = loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_over() {
                break false;
            }
            if self.next_root.load(Ordering::Relaxed) < self.roots.len() || !self.surplus().is_empty() {
                break true;
            }
            changed.await;
        };
        self.idle.fetch_sub(1, Ordering::SeqCst);
        has_more
    }

    /// Step 4.
    fn note_done(&self, claim: &[u32], own: &mut Vec<u32>) {
        for candidate in claim {
            for after in self.successors.after(*candidate) {
                let waits_for = &self.waits_for[*after as usize];
                if waits_for.load(Ordering::Relaxed) > 0 && waits_for.fetch_sub(1, Ordering::AcqRel) == 1 {
                    own.push(*after);
                }
            }
        }
        let is_last = self.left.fetch_sub(claim.len(), Ordering::AcqRel) == claim.len();
        let shares = own.len() > 1 && self.idle.load(Ordering::SeqCst) > 0;
        if shares {
            self.surplus().extend(own.drain(..own.len() / 2));
        }
        if is_last || shares {
            self.changed.notify_waiters();
        }
    }

    /// Step 3 for candidates that do not conflict. Their changed rows are appended to `run`.
    async fn check(
        &self,
        claim: &[u32],
        names: &mut NamespaceNames,
        run: &mut Vec<RowNumber>,
    ) -> Result<(), state::Error> {
        let sets = || claim.iter().map(|candidate| &self.candidates[*candidate as usize].set);
        let hashed = HashedReads::of_all(sets());
        let reads = ReadKeys::of(sets(), &hashed);
        let versions = reads.current_versions(&self.view).await?;
        let mut reads = reads.with_versions(versions);
        for candidate in claim {
            let set = &self.candidates[*candidate as usize].set;
            let earlier = ChangesBefore { check: self, candidate: *candidate };
            let code = check_candidate(set, &mut reads, &self.view, &earlier).await?;
            let mut checked = CheckedCandidate { code, rows: Vec::new(), is_derived: false };
            if code == Code::VALID {
                self.change(*candidate, &earlier, names, &mut checked).await?;
                self.scanned.note(&checked.rows, self.version_of(*candidate));
            }
            for (row, ChangedRow { namespace, key, .. }) in (0..).zip(&checked.rows) {
                let number = RowNumber { candidate: *candidate, row };
                let known = self.keys.number(RowHash::of(namespace, key));
                self.last_writers[known.expect("a footprint has all keys that may change")].set(number);
                run.push(number);
            }
            let is_first = self.results[*candidate as usize].set(checked).is_ok();
            assert!(is_first, "a candidate is claimed once");
        }
        Ok(())
    }

    async fn change(
        &self,
        candidate: u32,
        earlier: &ChangesBefore<'_>,
        names: &mut NamespaceNames,
        checked: &mut CheckedCandidate,
    ) -> Result<(), state::Error> {
        let set = &self.candidates[candidate as usize].set;
        if !self.plain[candidate as usize] {
            let changes = changes_by_key(set, earlier).await?;
            checked.is_derived = changes.is_derived;
            checked.rows.extend(changes.rows.into_iter().map(|(namespace, key, value)| ChangedRow {
                namespace: names.shared(&namespace),
                key: key.into(),
                value,
            }));
            return Ok(());
        }
        let count = set.namespaces.iter().map(|namespace| namespace.writes as usize).sum();
        checked.rows.reserve_exact(count);
        for namespace in set.namespaces.iter().filter(|namespace| namespace.writes > 0) {
            let name = names.shared(set.name(namespace));
            checked.rows.extend(set.writes(namespace).map(|write| ChangedRow {
                namespace: name.clone(),
                key: set.write_key(&write).into(),
                value: set.write_value(&write),
            }));
        }
        Ok(())
    }

    fn version_of(&self, candidate: u32) -> Version {
        Version::new(self.block, self.candidates[candidate as usize].position)
    }
}

/// What the valid candidates before one have changed, as far as they conflict with it.
struct ChangesBefore<'a> {
    check: &'a BlockCheck,
    candidate: u32,
}

impl ChangesBefore<'_> {
    /// The last change of a row of which only the hash has a number.
    fn row(&self, hash: RowHash, namespace: &str, key: &str) -> Option<&ChangedRow> {
        let results = &self.check.results;
        let is_row = |row: &&ChangedRow| *row.key == *key && *row.namespace == *namespace;
        let RowNumber { candidate, row } = self.check.last_writers[self.check.keys.number(hash)?].get()?;
        let last = &results[candidate as usize].get().expect("what it changed is known").rows[row as usize];
        if is_row(&last) {
            return Some(last);
        }
        // Another key with the same hash was changed later, or this one was never changed.
        let before = results[..self.candidate as usize].iter().rev().filter_map(OnceLock::get);
        before.flat_map(|checked| &checked.rows).find(is_row)
    }
}

impl EarlierChanges for ChangesBefore<'_> {
    fn have_row(&self, read: usize, namespace: &str, key: &str) -> bool {
        let hash = self.check.candidates[self.candidate as usize].footprint.reads()[read];
        self.row(hash, namespace, key).is_some()
    }

    fn in_range(&self, namespace: &str, start: &str, end: &str) -> Cow<'_, UpdateBatch> {
        let (all, mut found) = (&self.check.scanned.batch, UpdateBatch::default());
        let all = all.lock().unwrap_or_else(PoisonError::into_inner);
        let namespace: Arc<str> = namespace.into();
        for (key, update) in all.range(&namespace, start, end) {
            found.put(&namespace, key.clone(), update.value.clone(), update.version);
        }
        Cow::Owned(found)
    }
}

#[async_trait]
impl LatestRows for ChangesBefore<'_> {
    async fn latest(&self, namespace: &str, key: &str) -> Result<Option<Bytes>, state::Error> {
        match self.row(RowHash::of(namespace, key), namespace, key) {
            Some(row) => Ok(row.value.clone()),
            None => Ok(self.check.view.get(namespace, key).await?.map(|found| found.value)),
        }
    }
}

/// Ends the other workers if a worker panics or is dropped.
struct EndOthers<'a>(&'a BlockCheck);

impl Drop for EndOthers<'_> {
    fn drop(&mut self) {
        if self.0.left.load(Ordering::Acquire) > 0 {
            self.0.has_failed.store(true, Ordering::Release);
            self.0.changed.notify_waiters();
        }
    }
}

/// One worker: steps 2 to 5. Returns the rows that its valid candidates change, sorted.
async fn work(check: Arc<BlockCheck>) -> Vec<RowNumber> {
    let check = &*check;
    let _end_others = EndOthers(check);
    let (mut own, mut claim, mut run) = (Vec::new(), Vec::with_capacity(CLAIM_MAX), Vec::new());
    let mut names = NamespaceNames::default();
    loop {
        check.claim(&mut own, &mut claim);
        if claim.is_empty() {
            if check.has_more().await {
                continue;
            }
            break;
        }
        if rt::fault_point("validation.parallel.yield") {
            rt::yield_now().await;
        }
        if let Err(error) = check.check(&claim, &mut names, &mut run).await {
            check.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            break;
        }
        check.note_done(&claim, &mut own);
    }
    if !check.has_failed.load(Ordering::Acquire) {
        let place = |number: &RowNumber| {
            let checked = check.results[number.candidate as usize].get().expect("the worker has checked it");
            let row = &checked.rows[number.row as usize];
            (&row.namespace, &row.key, number.candidate)
        };
        run.sort_unstable_by(|one, other| place(one).cmp(&place(other)));
    }
    run
}

/// The rest of step 5.
fn merged(
    block: u64,
    candidates: &[Candidate],
    results: Vec<OnceLock<CheckedCandidate>>,
    runs: Vec<Vec<RowNumber>>,
) -> ConflictOutcome {
    let results: Vec<CheckedCandidate> =
        results.into_iter().map(|checked| checked.into_inner().expect("all candidates are done")).collect();
    let codes = results.iter().map(|checked| checked.code).collect();
    let is_derived = results.iter().any(|checked| checked.is_derived);
    let row = |number: &RowNumber| &results[number.candidate as usize].rows[number.row as usize];
    let mut runs: Vec<_> = runs.iter().map(|run| run.iter().peekable()).collect();
    let mut batch = UpdateBatch::default();
    let mut namespace: Option<&Arc<str>> = None;
    let mut updates: Vec<(Arc<str>, Update)> = Vec::new();
    loop {
        let heads = runs.iter_mut().enumerate().filter_map(|(at, run)| run.peek().map(|number| (at, **number)));
        let first = heads.min_by(|(_, one), (_, other)| {
            let place = |number| (&row(number).namespace, &row(number).key, number.candidate);
            place(one).cmp(&place(other))
        });
        let Some((at, number)) = first else { break };
        runs[at].next();
        let changed = row(&number);
        if namespace.is_none_or(|namespace| *namespace != changed.namespace) {
            if let Some(namespace) = namespace {
                batch.put_sorted(namespace, std::mem::take(&mut updates));
            }
            namespace = Some(&changed.namespace);
        }
        let version = Version::new(block, candidates[number.candidate as usize].position);
        let update = Update { value: changed.value.clone(), version };
        match updates.last_mut() {
            Some((key, last)) if *key == changed.key => *last = update,
            _ => updates.push((changed.key.clone(), update)),
        }
    }
    if let Some(namespace) = namespace {
        batch.put_sorted(namespace, updates);
    }
    ConflictOutcome { codes, updates: BlockUpdates::new(batch, is_derived) }
}
