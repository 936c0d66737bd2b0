//! Decides which public keys get a precomputed table of their multiples, and when the table is built.
//!
//! A table takes 256 KiB and as much time as a few verifications by the library. Therefore:
//!
//! 1. A key gets a table when [`USES_FIRST`] of its signatures were found valid. A background thread builds the table,
//!    and no verification waits for it. If building fails, the table's part of the budget is free again.
//! 2. Tables stay within a budget of bytes. When the budget is used up, a key displaces the least used key that has a
//!    table. It may do so only if its uses are at least twice the uses of that key plus [`USES_AGAIN`]. A key that did
//!    not get a table asks again every [`USES_AGAIN`] uses.
//! 3. Whenever a key reaches [`USES_MAX`] uses, the uses of all keys are halved, so that old uses count less.
//!
//! Only valid signatures count as uses. To displace the table of a key, an attacker must therefore make more
//! signatures with each certificate than the owner of that key makes.
//!
//! Keys with the same bytes share a table, even if they come from different certificates, channels or roles of this
//! process. A key is tracked while it is in use or has a table.
//!
//! In a simulation a run must leave nothing for the next run. So each parsed key has its own table there, which is
//! built at once and does not count against the budget.
//!
//! Invariants: no verdict depends on whether a table exists. The tables that count against the budget never exceed it.
//! A dropped table no longer counts, but stays in memory until the verifications that use it have finished.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use base::{Map, rt};
use p256_verify::{KeyRef, KeyTable, PublicKey, Signature, Verdict, VerifyItem};

use crate::event;

/// Bytes that tables may take unless the operator says otherwise.
pub const BUDGET_BYTES_DEFAULT: usize = 128 << 20;
const USES_FIRST: u32 = 4;
const USES_AGAIN: u32 = 64;
const USES_MAX: u32 = 1 << 20;
/// The number of known keys above which keys that are no longer in use are removed.
const KNOWN_MIN: usize = 1024;
const POINT_BYTES: usize = 65;

/// A key on P-256, with its table if it has one.
#[derive(Clone)]
pub(crate) struct TabledKey(Arc<KeySlot>);

struct KeySlot {
    key: PublicKey,
    uses: AtomicU32,
    table: RwLock<Option<Arc<KeyTable>>>,
    /// Whether its table counts against the budget.
    has_slot: AtomicBool,
}

/// The engine with the table of the group's generator, which all keys share; or the known answer that its self-test did
/// not reproduce.
static ENGINE: LazyLock<Result<TableEngine, String>> = LazyLock::new(|| {
    let verifier = p256_verify::Verifier::new();
    verifier.self_test().map_err(|wrong| wrong.to_string())?;
    let table_bytes = verifier.table_bytes();
    Ok(TableEngine { verifier, table_bytes })
});

struct TableEngine {
    verifier: p256_verify::Verifier,
    /// The size of the table of one key.
    table_bytes: usize,
}

/// Whether the engine was found to differ from the library.
static IS_DISTRUSTED: AtomicBool = AtomicBool::new(false);

/// Stops the use of the engine for good.
pub(super) fn distrust() {
    IS_DISTRUSTED.store(true, Ordering::Relaxed);
}

/// The engine, or how it computes wrongly; then the library must verify instead.
pub(super) fn engine() -> Result<&'static p256_verify::Verifier, &'static str> {
    if IS_DISTRUSTED.load(Ordering::Relaxed) {
        return Err("it differs from the library");
    }
    ENGINE.as_ref().map(|engine| &engine.verifier).map_err(String::as_str)
}

/// The keys of this process.
static KEYS: LazyLock<Mutex<TabledKeys>> = LazyLock::new(|| Mutex::new(TabledKeys::new(BUDGET_BYTES_DEFAULT)));

pub(super) struct TabledKeys {
    known: Map<[u8; POINT_BYTES], Weak<KeySlot>>,
    known_max: usize,
    /// Keys that have a table, or will have one soon.
    reserved: Vec<Arc<KeySlot>>,
    budget_bytes: usize,
}

/// The right of a key to have a table built, which drops the table of the key that it displaces.
struct BuildRight {
    evicted: Option<Arc<KeySlot>>,
}

/// Sets how many bytes tables may take. Tables beyond that are dropped.
pub fn set_budget(bytes: usize) {
    let mut displaced = Vec::new();
    let mut keys = keys();
    keys.budget_bytes = bytes;
    while !keys.reserved.is_empty() && keys.reserved.len() > keys.tables_max() {
        displaced.extend(keys.evict_least_used());
    }
    gauge(keys.reserved.len());
    drop(keys);
    displaced.iter().for_each(|slot| slot.lose());
}

impl TabledKey {
    /// The key at this uncompressed point; `None` if the point is not on the curve.
    pub(crate) fn new(point: &[u8]) -> Option<TabledKey> {
        let point: [u8; POINT_BYTES] = point.try_into().ok()?;
        let is_shared = !rt::is_simulation();
        if is_shared && let Some(known) = keys().known.get(&point).and_then(Weak::upgrade) {
            return Some(TabledKey(known));
        }
        let key = PublicKey::from_sec1(&point)?;
        let slot = KeySlot { key, uses: AtomicU32::new(0), table: RwLock::new(None), has_slot: AtomicBool::new(false) };
        if !is_shared {
            return Some(TabledKey(Arc::new(slot)));
        }
        Some(TabledKey(keys().learn(point, Arc::new(slot))))
    }

    /// Whether the engine found this signature of a message with this digest valid. A signature that it did not find
    /// valid may be valid nevertheless.
    pub(crate) fn finds_valid(&self, digest: &[u8; 32], signature: &Signature) -> bool {
        let (Some(table), Ok(engine)) = (self.0.table(), engine()) else { return false };
        engine.verify_one(&table, digest, signature) == Verdict::Valid
    }

    /// As [`TabledKey::finds_valid`], for many signatures.
    pub(crate) fn find_valid<'a>(
        asked: impl Iterator<Item = (&'a TabledKey, &'a [u8; 32], &'a Signature)>,
    ) -> Vec<bool> {
        let asked: Vec<_> = asked.map(|(key, digest, signature)| (key, key.0.table(), digest, signature)).collect();
        let Ok(engine) = engine() else { return vec![false; asked.len()] };
        let mut items = Vec::with_capacity(asked.len());
        for (key, table, digest, signature) in &asked {
            let key = match table {
                Some(table) => KeyRef::Table(table),
                None => KeyRef::Cold(&key.0.key),
            };
            items.push(VerifyItem { key, digest: **digest, signature: **signature });
        }
        engine.verify_many(&items).into_iter().map(|verdict| verdict == Verdict::Valid).collect()
    }

    /// Counts a valid signature by this key.
    pub(crate) fn used(&self) {
        let slot = &self.0;
        let uses = slot.uses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let asks = uses == USES_FIRST || (uses > USES_FIRST && uses.is_multiple_of(USES_AGAIN));
        if asks && !slot.has_slot.load(Ordering::Relaxed) {
            self.ask();
        }
        if uses >= USES_MAX {
            keys().age();
        }
    }

    #[cold]
    fn ask(&self) {
        if rt::is_simulation() {
            let Ok(engine) = engine() else { return };
            self.0.has_slot.store(true, Ordering::Relaxed);
            return self.0.take(Arc::new(engine.table(&self.0.key)));
        }
        let Some(BuildRight { evicted: displaced }) = keys().reserve(&self.0) else { return };
        if let Some(displaced) = displaced {
            displaced.lose();
        }
        let place = ReservedSlot(Some(Arc::clone(&self.0)));
        let build = move || place.fill(|key| Some(engine().ok()?.table(key)));
        if !rt::is_running() {
            build();
        } else {
            // Nothing waits for its end: until then the library verifies.
            drop(rt::spawn(rt::blocking(build)));
        }
    }
}

/// A reserved part of the budget whose table is not built yet. It is free again if there will be no table: the engine
/// is distrusted, building panics, or no thread builds it. Its key asks again later.
struct ReservedSlot(Option<Arc<KeySlot>>);

impl ReservedSlot {
    fn fill(mut self, build: impl FnOnce(&PublicKey) -> Option<KeyTable>) {
        let Some(slot) = &self.0 else { return };
        if let Some(table) = build(&slot.key) {
            slot.take(Arc::new(table));
            self.0 = None;
        }
    }
}

impl Drop for ReservedSlot {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            keys().free(&slot);
            slot.lose();
        }
    }
}

impl KeySlot {
    fn table(&self) -> Option<Arc<KeyTable>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Accepts its table, if its part of the budget is still reserved.
    fn take(&self, table: Arc<KeyTable>) {
        let mut held = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if self.has_slot.load(Ordering::Relaxed) {
            *held = Some(table);
            count(&event::VerifierTablesBuilt);
        }
    }

    /// Drops its table and frees its part of the budget.
    fn lose(&self) {
        let mut held = self.table.write().unwrap_or_else(PoisonError::into_inner);
        self.has_slot.store(false, Ordering::Relaxed);
        *held = None;
    }
}

fn keys() -> MutexGuard<'static, TabledKeys> {
    KEYS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TabledKeys {
    fn new(budget_bytes: usize) -> TabledKeys {
        // With capacity, since keys are learnt while a stranger's bytes are read.
        let mut known = Map::default();
        known.reserve(2 * KNOWN_MIN);
        TabledKeys { known, known_max: KNOWN_MIN, reserved: Vec::new(), budget_bytes }
    }

    /// How many tables fit the budget.
    fn tables_max(&self) -> usize {
        ENGINE.as_ref().map_or(0, |engine| self.budget_bytes / engine.table_bytes)
    }

    /// Makes a key known, or returns the one that another thread has just made known.
    fn learn(&mut self, point: [u8; POINT_BYTES], slot: Arc<KeySlot>) -> Arc<KeySlot> {
        if let Some(known) = self.known.get(&point).and_then(Weak::upgrade) {
            return known;
        }
        if self.known.len() >= self.known_max {
            self.known.retain(|_, slot| slot.strong_count() > 0);
            self.known_max = KNOWN_MIN.max(2 * self.known.len());
        }
        self.known.insert(point, Arc::downgrade(&slot));
        slot
    }

    /// Reserves a table for a key that has none, if the budget has space or another key is used less.
    fn reserve(&mut self, slot: &Arc<KeySlot>) -> Option<BuildRight> {
        if slot.has_slot.load(Ordering::Relaxed) || self.tables_max() == 0 {
            return None;
        }
        let displaced = if self.reserved.len() < self.tables_max() {
            None
        } else {
            let uses = slot.uses.load(Ordering::Relaxed);
            let least = self.reserved.iter().map(|placed| placed.uses.load(Ordering::Relaxed)).min()?;
            if uses < 2 * least + USES_AGAIN {
                return None;
            }
            count(&event::VerifierTablesDisplaced);
            self.evict_least_used()
        };
        slot.has_slot.store(true, Ordering::Relaxed);
        self.reserved.push(Arc::clone(slot));
        gauge(self.reserved.len());
        Some(BuildRight { evicted: displaced })
    }

    /// Frees a key's part of the budget, if it has one.
    fn free(&mut self, slot: &Arc<KeySlot>) {
        self.reserved.retain(|placed| !Arc::ptr_eq(placed, slot));
        gauge(self.reserved.len());
    }

    fn evict_least_used(&mut self) -> Option<Arc<KeySlot>> {
        let uses = |index: &usize| self.reserved[*index].uses.load(Ordering::Relaxed);
        let least = (0..self.reserved.len()).min_by_key(uses)?;
        Some(self.reserved.swap_remove(least))
    }

    /// Halves the uses of all keys, unless that was just done.
    pub(super) fn age(&mut self) {
        let slots: Vec<Arc<KeySlot>> = self.known.values().filter_map(Weak::upgrade).collect();
        if slots.iter().any(|slot| slot.uses.load(Ordering::Relaxed) >= USES_MAX) {
            for slot in slots {
                slot.uses.store(slot.uses.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }
}

/// Counts an event of the whole process, which one run of a simulation does not see.
pub(super) fn count(counter: &'static base::event::Counter) {
    if !rt::is_simulation() {
        counter.add(1);
    }
}

fn gauge(tables: usize) {
    if !rt::is_simulation() {
        event::VerifierTables.set(tables as i64);
    }
}

impl PartialEq for TabledKey {
    fn eq(&self, other: &TabledKey) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for TabledKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TabledKey").field(&self.0.key).finish()
    }
}

/// What tests look at.
#[cfg(test)]
impl TabledKey {
    pub(super) fn has_table(&self) -> bool {
        self.0.table().is_some()
    }

    pub(super) fn has_slot(&self) -> bool {
        self.0.has_slot.load(Ordering::Relaxed)
    }

    /// Whether it counts against the budget.
    pub(super) fn is_reserved(&self) -> bool {
        keys().reserved.iter().any(|placed| Arc::ptr_eq(placed, &self.0))
    }

    /// Reserves a table and builds it with `build`.
    pub(super) fn reserve_and_build(&self, build: impl FnOnce(&PublicKey) -> Option<KeyTable>) {
        keys().reserve(&self.0).expect("there is room");
        ReservedSlot(Some(Arc::clone(&self.0))).fill(build);
    }

    pub(super) fn uses(&self) -> u32 {
        self.0.uses.load(Ordering::Relaxed)
    }

    pub(super) fn set_uses(&self, uses: u32) {
        self.0.uses.store(uses, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl TabledKeys {
    pub(super) fn with_tables_max(places: usize) -> TabledKeys {
        TabledKeys::new(places * ENGINE.as_ref().expect("known answers are found again").table_bytes)
    }

    pub(super) fn know(&mut self, key: &TabledKey) {
        self.learn(key.0.key.to_sec1(), Arc::clone(&key.0));
    }

    /// Whether a key gets a table, and which key it displaces.
    pub(super) fn reserve_for(&mut self, key: &TabledKey) -> Option<Option<TabledKey>> {
        let BuildRight { evicted: displaced } = self.reserve(&key.0)?;
        if let Some(displaced) = &displaced {
            displaced.lose();
        }
        Some(displaced.map(TabledKey))
    }
}
