//! Which keys have a table of their multiples.
//!
//! A table takes 256 KiB and as much time as a few verifications by the library. So
//!
//! 1. a key gets one when signatures by it were found right [`USES_FIRST`] times, built by a thread that nobody waits for; where that
//!    fails, the place is free again;
//! 2. tables stay within a budget of bytes. When it is used up, a key takes the place of the least used one if it is used twice as
//!    often, and somewhat more; it asks again every [`USES_AGAIN`] uses;
//! 3. uses are halved for all keys whenever one of them has [`USES_MAX`]: what was used long ago counts less.
//!
//! Only right signatures count as uses. Somebody with many certificates therefore takes the place of a key only by signing
//! more with each of them than the owner of that key does.
//!
//! Keys with the same bytes share a table, whichever certificate, channel or role of this process they come from. A key is known while
//! somebody has it or while it has a table.
//!
//! In a simulation each key that is parsed has its own table, which takes no place and is built at once: nothing is left for the next run.
//!
//! Invariants: no verdict depends on whether there is a table; tables that hold a place never exceed the budget. (One that has just lost its place stays until
//! whoever verifies with it has finished.)

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use base::{Map, rt};
use p256_verify::{Item, Key, PublicKey, Signature, Table, Verdict};

use crate::event;

/// Bytes that tables may take unless the operator says otherwise.
pub const BUDGET_BYTES_DEFAULT: usize = 128 << 20;
const USES_FIRST: u32 = 4;
const USES_AGAIN: u32 = 64;
const USES_MAX: u32 = 1 << 20;
/// Keys that are known before those are looked for that nobody has any more.
const KNOWN_MIN: usize = 1024;
const POINT_BYTES: usize = 65;

/// A key on P-256, with its table if it has one.
#[derive(Clone)]
pub(crate) struct TabledKey(Arc<Slot>);

struct Slot {
    key: PublicKey,
    uses: AtomicU32,
    table: RwLock<Option<Arc<Table>>>,
    /// Whether it holds a place in the budget.
    has_place: AtomicBool,
}

/// What verifies, with the table of the group's generator, which all share; or which known answer it did not find again.
static ENGINE: LazyLock<Result<Engine, String>> = LazyLock::new(|| {
    let verifier = p256_verify::Verifier::new();
    verifier.self_test().map_err(|wrong| wrong.to_string())?;
    let table_bytes = verifier.table_bytes();
    Ok(Engine { verifier, table_bytes })
});

struct Engine {
    verifier: p256_verify::Verifier,
    /// Of one key.
    table_bytes: usize,
}

/// Whether the engine was found to differ from the library.
static IS_DISTRUSTED: AtomicBool = AtomicBool::new(false);

/// Has the engine never be asked again.
pub(super) fn distrust() {
    IS_DISTRUSTED.store(true, Ordering::Relaxed);
}

/// The engine. Where it computes wrongly, this says how, and the library is to be asked.
pub(super) fn engine() -> Result<&'static p256_verify::Verifier, &'static str> {
    if IS_DISTRUSTED.load(Ordering::Relaxed) {
        return Err("it differs from the library");
    }
    ENGINE.as_ref().map(|engine| &engine.verifier).map_err(String::as_str)
}

/// The keys of this process.
static KEYS: LazyLock<Mutex<Keys>> = LazyLock::new(|| Mutex::new(Keys::new(BUDGET_BYTES_DEFAULT)));

pub(super) struct Keys {
    known: Map<[u8; POINT_BYTES], Weak<Slot>>,
    known_max: usize,
    /// Those that have a table, or will have one soon.
    placed: Vec<Arc<Slot>>,
    budget_bytes: usize,
}

/// The right of a key to have a table built, which takes the places of those whose tables it then drops.
struct Place {
    displaced: Option<Arc<Slot>>,
}

/// Sets how many bytes tables may take. Those that are over it are dropped.
pub fn set_budget(bytes: usize) {
    let mut displaced = Vec::new();
    let mut keys = keys();
    keys.budget_bytes = bytes;
    while !keys.placed.is_empty() && keys.placed.len() > keys.places() {
        displaced.extend(keys.displace_least());
    }
    gauge(keys.placed.len());
    drop(keys);
    displaced.iter().for_each(|slot| slot.lose());
}

impl TabledKey {
    /// The key at this uncompressed point; nothing if it is not on the curve.
    pub(crate) fn new(point: &[u8]) -> Option<TabledKey> {
        let point: [u8; POINT_BYTES] = point.try_into().ok()?;
        let is_shared = !rt::is_simulation();
        if is_shared && let Some(known) = keys().known.get(&point).and_then(Weak::upgrade) {
            return Some(TabledKey(known));
        }
        let key = PublicKey::from_sec1(&point)?;
        let slot = Slot { key, uses: AtomicU32::new(0), table: RwLock::new(None), has_place: AtomicBool::new(false) };
        if !is_shared {
            return Some(TabledKey(Arc::new(slot)));
        }
        Some(TabledKey(keys().learn(point, Arc::new(slot))))
    }

    /// Whether this signature of a message with this digest was found valid; where it was not, it may be all the same.
    pub(crate) fn finds_valid(&self, digest: &[u8; 32], signature: &Signature) -> bool {
        let (Some(table), Ok(engine)) = (self.0.table(), engine()) else { return false };
        engine.verify_one(&table, digest, signature) == Verdict::Valid
    }

    /// As [`TabledKey::finds_valid`], of many.
    pub(crate) fn find_valid<'a>(
        asked: impl Iterator<Item = (&'a TabledKey, &'a [u8; 32], &'a Signature)>,
    ) -> Vec<bool> {
        let asked: Vec<_> = asked.map(|(key, digest, signature)| (key, key.0.table(), digest, signature)).collect();
        let Ok(engine) = engine() else { return vec![false; asked.len()] };
        let mut items = Vec::with_capacity(asked.len());
        for (key, table, digest, signature) in &asked {
            let key = match table {
                Some(table) => Key::Table(table),
                None => Key::Cold(&key.0.key),
            };
            items.push(Item { key, digest: **digest, signature: **signature });
        }
        engine.verify_many(&items).into_iter().map(|verdict| verdict == Verdict::Valid).collect()
    }

    /// Counts a right signature by this key.
    pub(crate) fn used(&self) {
        let slot = &self.0;
        let uses = slot.uses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let asks = uses == USES_FIRST || (uses > USES_FIRST && uses.is_multiple_of(USES_AGAIN));
        if asks && !slot.has_place.load(Ordering::Relaxed) {
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
            self.0.has_place.store(true, Ordering::Relaxed);
            return self.0.take(Arc::new(engine.table(&self.0.key)));
        }
        let Some(Place { displaced }) = keys().place(&self.0) else { return };
        if let Some(displaced) = displaced {
            displaced.lose();
        }
        let place = EmptyPlace(Some(Arc::clone(&self.0)));
        let build = move || place.fill(|key| Some(engine().ok()?.table(key)));
        if !rt::is_running() {
            build();
        } else {
            // Its end is not waited for: until then the library verifies.
            drop(rt::spawn(rt::blocking(build)));
        }
    }
}

/// A place that has no table yet. It is free again where there will be none: the engine is distrusted, building panics, or nobody
/// comes to build it. Its key asks again later.
struct EmptyPlace(Option<Arc<Slot>>);

impl EmptyPlace {
    fn fill(mut self, build: impl FnOnce(&PublicKey) -> Option<Table>) {
        let Some(slot) = &self.0 else { return };
        if let Some(table) = build(&slot.key) {
            slot.take(Arc::new(table));
            self.0 = None;
        }
    }
}

impl Drop for EmptyPlace {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            keys().free(&slot);
            slot.lose();
        }
    }
}

impl Slot {
    fn table(&self) -> Option<Arc<Table>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes its table, if it has still the place for it.
    fn take(&self, table: Arc<Table>) {
        let mut held = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if self.has_place.load(Ordering::Relaxed) {
            *held = Some(table);
            count(&event::VerifierTablesBuilt);
        }
    }

    /// Drops its table, with its place.
    fn lose(&self) {
        let mut held = self.table.write().unwrap_or_else(PoisonError::into_inner);
        self.has_place.store(false, Ordering::Relaxed);
        *held = None;
    }
}

fn keys() -> MutexGuard<'static, Keys> {
    KEYS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keys {
    fn new(budget_bytes: usize) -> Keys {
        // With room, since keys are met while a stranger's bytes are read.
        let mut known = Map::default();
        known.reserve(2 * KNOWN_MIN);
        Keys { known, known_max: KNOWN_MIN, placed: Vec::new(), budget_bytes }
    }

    /// How many tables fit the budget.
    fn places(&self) -> usize {
        ENGINE.as_ref().map_or(0, |engine| self.budget_bytes / engine.table_bytes)
    }

    /// Makes a key known, or finds out that somebody else just has.
    fn learn(&mut self, point: [u8; POINT_BYTES], slot: Arc<Slot>) -> Arc<Slot> {
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

    /// A place for a key that has none, if one is free or another key is used less.
    fn place(&mut self, slot: &Arc<Slot>) -> Option<Place> {
        if slot.has_place.load(Ordering::Relaxed) || self.places() == 0 {
            return None;
        }
        let displaced = if self.placed.len() < self.places() {
            None
        } else {
            let uses = slot.uses.load(Ordering::Relaxed);
            let least = self.placed.iter().map(|placed| placed.uses.load(Ordering::Relaxed)).min()?;
            if uses < 2 * least + USES_AGAIN {
                return None;
            }
            count(&event::VerifierTablesDisplaced);
            self.displace_least()
        };
        slot.has_place.store(true, Ordering::Relaxed);
        self.placed.push(Arc::clone(slot));
        gauge(self.placed.len());
        Some(Place { displaced })
    }

    /// Takes a key's place away, if it has one.
    fn free(&mut self, slot: &Arc<Slot>) {
        self.placed.retain(|placed| !Arc::ptr_eq(placed, slot));
        gauge(self.placed.len());
    }

    fn displace_least(&mut self) -> Option<Arc<Slot>> {
        let uses = |index: &usize| self.placed[*index].uses.load(Ordering::Relaxed);
        let least = (0..self.placed.len()).min_by_key(uses)?;
        Some(self.placed.swap_remove(least))
    }

    /// Halves the uses of all keys, unless that was just done.
    pub(super) fn age(&mut self) {
        let slots: Vec<Arc<Slot>> = self.known.values().filter_map(Weak::upgrade).collect();
        if slots.iter().any(|slot| slot.uses.load(Ordering::Relaxed) >= USES_MAX) {
            for slot in slots {
                slot.uses.store(slot.uses.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }
}

/// Counts what depends on the whole process, which one run of a simulation does not see.
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

    pub(super) fn has_place(&self) -> bool {
        self.0.has_place.load(Ordering::Relaxed)
    }

    /// Whether it is counted against the budget.
    pub(super) fn is_placed(&self) -> bool {
        keys().placed.iter().any(|placed| Arc::ptr_eq(placed, &self.0))
    }

    /// Takes a place and has its table built so.
    pub(super) fn place_and_build(&self, build: impl FnOnce(&PublicKey) -> Option<Table>) {
        keys().place(&self.0).expect("there is room");
        EmptyPlace(Some(Arc::clone(&self.0))).fill(build);
    }

    pub(super) fn uses(&self) -> u32 {
        self.0.uses.load(Ordering::Relaxed)
    }

    pub(super) fn set_uses(&self, uses: u32) {
        self.0.uses.store(uses, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Keys {
    pub(super) fn with_places(places: usize) -> Keys {
        Keys::new(places * ENGINE.as_ref().expect("known answers are found again").table_bytes)
    }

    pub(super) fn know(&mut self, key: &TabledKey) {
        self.learn(key.0.key.to_sec1(), Arc::clone(&key.0));
    }

    /// Whether a key gets a place, and whose.
    pub(super) fn place_of(&mut self, key: &TabledKey) -> Option<Option<TabledKey>> {
        let Place { displaced } = self.place(&key.0)?;
        if let Some(displaced) = &displaced {
            displaced.lose();
        }
        Some(displaced.map(TabledKey))
    }
}
