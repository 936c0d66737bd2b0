//! The verifier: it chooses the path, holds the generator's table, and batches signatures.

use crate::builder;
use crate::digits;
use crate::engine::{COLD_WINDOW, Cold, Hot, VerifyJob};
#[cfg(target_arch = "x86_64")]
use crate::ifma::Ifma;
use crate::key::PublicKey;
use crate::lanes::{LANES, Lanes, Model, Words};
use crate::portable;
use crate::scalars::{self, InRange, PreparedSignature, WindowSizes};
use crate::signature::Signature;

/// Bits of a window of the generator's table: 20 windows of 4,096 entries, 5 MiB.
const BASE_WINDOW: u32 = 13;
/// Bits of a window of a key's table: 32 windows of 128 entries, 256 KiB.
const KEY_WINDOW: u32 = 8;
/// Signatures that share an inversion of s, and keys whose small tables are built together.
const CHUNK: usize = 256;
/// The smallest number of signatures without tables that [`Verifier::verify_many`] accepts beyond multiples of eight: for
/// fewer, the library costs no more, and the verdict is [`Verdict::Unsure`] at once.
pub const COLD_MIN: usize = 3;

/// How signatures are verified. All paths give the same verdicts, except for [`COLD_MIN`] and keys without tables.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Backend {
    /// AVX-512 with the 52-bit multiply-add (IFMA), where the processor has it.
    Ifma,
    /// The algorithm of [`Backend::Ifma`] on a scalar model of the vector unit, for tests: it runs everywhere, slowly.
    Model,
    /// 64-bit words, one signature at a time. Keys without tables are left to the library.
    Portable,
}

impl Backend {
    /// The fastest path that this processor has.
    pub fn fastest() -> Backend {
        if Backend::Ifma.is_available() { Backend::Ifma } else { Backend::Portable }
    }

    /// Whether this processor can take the path.
    pub fn is_available(self) -> bool {
        AvailableBackend::new(self).is_some()
    }
}

/// A path, with the proof that it is available.
#[derive(Clone, Copy, Debug)]
enum AvailableBackend {
    #[cfg(target_arch = "x86_64")]
    Ifma(Ifma),
    Model,
    Portable,
}

impl AvailableBackend {
    fn new(path: Backend) -> Option<AvailableBackend> {
        match path {
            #[cfg(target_arch = "x86_64")]
            Backend::Ifma => Ifma::detect().map(AvailableBackend::Ifma),
            #[cfg(not(target_arch = "x86_64"))]
            Backend::Ifma => None,
            Backend::Model => Some(AvailableBackend::Model),
            Backend::Portable => Some(AvailableBackend::Portable),
        }
    }

    fn backend(self) -> Backend {
        match self {
            #[cfg(target_arch = "x86_64")]
            AvailableBackend::Ifma(_) => Backend::Ifma,
            AvailableBackend::Model => Backend::Model,
            AvailableBackend::Portable => Backend::Portable,
        }
    }
}

/// The answer about a signature.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum Verdict {
    /// The signature is valid.
    Valid,
    /// This crate does not say. The signature may be invalid, its numbers out of range, an addition of points
    /// exceptional, the table made for another path, or the signature one that the library verifies as cheaply. Ask the
    /// library.
    Unsure,
}

impl Verdict {
    fn valid_if(valid: bool) -> Verdict {
        if valid { Verdict::Valid } else { Verdict::Unsure }
    }
}

/// The Montgomery form of a table's entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TableForm {
    /// 2^260, of the lanes.
    Lanes,
    /// 2^256, of 64-bit words.
    Portable,
}

/// Multiples of a public key, for a verifier's path. It is made once and used for every signature of that key.
pub struct KeyTable {
    key: PublicKey,
    entries: Box<[Words]>,
    form: TableForm,
    window: u32,
}

impl KeyTable {
    /// The key.
    pub fn key(&self) -> &PublicKey {
        &self.key
    }

    /// Bytes of memory that the table takes.
    pub fn bytes(&self) -> usize {
        size_of::<KeyTable>() + size_of_val(&*self.entries)
    }
}

impl std::fmt::Debug for KeyTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("key", &self.key).field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// The key of a signature, as far as it is prepared.
#[derive(Clone, Copy, Debug)]
pub enum KeyRef<'a> {
    /// A key that has a table.
    Table(&'a KeyTable),
    /// A key that has none, or is not worth one.
    Cold(&'a PublicKey),
}

/// A signature to verify.
#[derive(Clone, Copy, Debug)]
pub struct VerifyItem<'a> {
    /// The signer's key.
    pub key: KeyRef<'a>,
    /// The SHA-256 digest of the message.
    pub digest: [u8; 32],
    /// The signature.
    pub signature: Signature,
}

/// Verifies signatures. It holds the generator's table of 5 MiB: make one and share it.
pub struct Verifier {
    machine: AvailableBackend,
    base: Box<[Words]>,
    windows: WindowSizes,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier").field("path", &self.backend()).finish_non_exhaustive()
    }
}

impl Default for Verifier {
    fn default() -> Self {
        Verifier::new()
    }
}

impl Verifier {
    /// A verifier for this processor's fastest path. Building the generator's table takes some milliseconds.
    pub fn new() -> Verifier {
        Verifier::with_backend(Backend::fastest()).expect("the path was found available")
    }

    /// A verifier for a path, or nothing if this processor does not have it.
    pub fn with_backend(path: Backend) -> Option<Verifier> {
        Verifier::with_windows(path, WindowSizes { base: BASE_WINDOW, key: KEY_WINDOW })
    }

    /// The same with smaller or larger tables.
    pub(crate) fn with_windows(path: Backend, windows: WindowSizes) -> Option<Verifier> {
        let machine = AvailableBackend::new(path)?;
        let base = build(machine, &[PublicKey::GENERATOR], windows.base).pop().expect("one for each key").entries;
        Some(Verifier { machine, base, windows })
    }

    /// The path that this verifier takes.
    pub fn backend(&self) -> Backend {
        self.machine.backend()
    }

    /// Bytes of memory that the table of any key takes.
    pub fn table_bytes(&self) -> usize {
        self.table(&PublicKey::GENERATOR).bytes()
    }

    /// Builds a key's table.
    pub fn table(&self, key: &PublicKey) -> KeyTable {
        self.tables(std::slice::from_ref(key)).pop().expect("one for each key")
    }

    /// Builds the tables of several keys. Up to eight at once are built in less time than one after another.
    pub fn tables(&self, keys: &[PublicKey]) -> Vec<KeyTable> {
        build(self.machine, keys, self.windows.key)
    }

    /// Verifies one signature of a key that has a table.
    pub fn verify_one(&self, table: &KeyTable, digest: &[u8; 32], signature: &Signature) -> Verdict {
        let prepared = self
            .fits(table)
            .then(|| InRange::new(digest, signature))
            .flatten()
            .and_then(|in_range| scalars::prepare_one(&in_range, self.windows));
        let Some(prepared) = prepared else { return Verdict::Unsure };
        let job = VerifyJob { prepared: &prepared, table: &table.entries };
        Verdict::valid_if(match self.machine {
            #[cfg(target_arch = "x86_64")]
            AvailableBackend::Ifma(lanes) => lanes.run(self.hot(&[job], LANES)) == 1,
            AvailableBackend::Model => Model.run(self.hot(&[job], LANES)) == 1,
            AvailableBackend::Portable => self.portable(&job),
        })
    }

    /// Verifies signatures together. Verdict i is about item i.
    pub fn verify_many(&self, items: &[VerifyItem]) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::Unsure; items.len()];
        for (items, verdicts) in items.chunks(CHUNK).zip(verdicts.chunks_mut(CHUNK)) {
            match self.machine {
                #[cfg(target_arch = "x86_64")]
                AvailableBackend::Ifma(lanes) => self.verify_chunk(lanes, items, verdicts),
                AvailableBackend::Model => self.verify_chunk(Model, items, verdicts),
                AvailableBackend::Portable => self.verify_chunk_portably(items, verdicts),
            }
        }
        verdicts
    }

    /// Whether a table was made for this path.
    fn fits(&self, table: &KeyTable) -> bool {
        table.form == form(self.machine) && table.window == self.windows.key
    }

    fn hot<'a>(&'a self, jobs: &'a [VerifyJob<'a>], width: usize) -> Hot<'a> {
        let WindowSizes { base, key } = self.windows;
        Hot { jobs, width, base: &self.base, base_window: base, key_window: key }
    }

    fn portable(&self, job: &VerifyJob) -> bool {
        portable::verify(job.prepared, job.table, self.windows.key, &self.base, self.windows.base)
    }

    /// Prepares the items that can be: their indices, and what was prepared for each.
    fn prepare(&self, items: &[VerifyItem]) -> Option<(Vec<usize>, Vec<PreparedSignature>)> {
        let mut indices = Vec::with_capacity(items.len());
        let mut in_range = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let fits = match item.key {
                KeyRef::Table(table) => self.fits(table),
                KeyRef::Cold(_) => !matches!(self.machine, AvailableBackend::Portable),
            };
            if let Some(signature) = fits.then(|| InRange::new(&item.digest, &item.signature)).flatten() {
                indices.push(i);
                in_range.push(signature);
            }
        }
        if indices.is_empty() {
            return None;
        }
        let windows = |i: usize| match items[indices[i]].key {
            KeyRef::Table(_) => self.windows,
            KeyRef::Cold(_) => WindowSizes { key: COLD_WINDOW, ..self.windows },
        };
        let prepared = scalars::prepare_many(&in_range, windows)?;
        Some((indices, prepared))
    }

    fn verify_chunk_portably(&self, items: &[VerifyItem], verdicts: &mut [Verdict]) {
        let Some((indices, prepared)) = self.prepare(items) else { return };
        for (&i, prepared) in indices.iter().zip(&prepared) {
            if let KeyRef::Table(table) = items[i].key {
                verdicts[i] = Verdict::valid_if(self.portable(&VerifyJob { prepared, table: &table.entries }));
            }
        }
    }

    fn verify_chunk<L: Lanes>(&self, lanes: L, items: &[VerifyItem], verdicts: &mut [Verdict]) {
        let Some((indices, prepared)) = self.prepare(items) else { return };
        let (mut jobs, mut jobs_at) = (Vec::with_capacity(indices.len()), Vec::with_capacity(indices.len()));
        let (mut cold, mut cold_keys) = (Vec::new(), Vec::new());
        for (&i, prepared) in indices.iter().zip(&prepared) {
            match items[i].key {
                KeyRef::Table(table) => {
                    jobs.push(VerifyJob { prepared, table: &table.entries });
                    jobs_at.push(i);
                }
                KeyRef::Cold(key) => {
                    cold.push((i, prepared));
                    cold_keys.push(*key);
                }
            }
        }
        let mut say = |at: &[usize], valid: u8| {
            for (j, &i) in at.iter().enumerate() {
                verdicts[i] = Verdict::valid_if(valid >> j & 1 == 1);
            }
        };
        let (mut jobs, mut at) = (&jobs[..], &jobs_at[..]);
        while !jobs.is_empty() {
            let (width, count) = split(jobs.len());
            let (now, later) = jobs.split_at(count);
            let (at_now, at_later) = at.split_at(count);
            say(at_now, lanes.run(self.hot(now, width)));
            (jobs, at) = (later, at_later);
        }
        // Signatures that would leave most of the lanes idle stay unsure.
        let left = cold.len() % LANES;
        if left < COLD_MIN {
            cold.truncate(cold.len() - left);
            cold_keys.truncate(cold.len());
        }
        if cold.is_empty() {
            return;
        }
        let tables = builder::build_first_windows(lanes, &cold_keys, COLD_WINDOW);
        let per_key = digits::entries(COLD_WINDOW);
        for (cold, tables) in cold.chunks(LANES).zip(tables.chunks(LANES * per_key)) {
            let jobs: Vec<VerifyJob> = cold
                .iter()
                .zip(tables.chunks_exact(per_key))
                .map(|(&(_, prepared), table)| VerifyJob { prepared, table })
                .collect();
            let at: Vec<usize> = cold.iter().map(|&(i, _)| i).collect();
            say(&at, lanes.run(Cold { jobs: &jobs, base: &self.base, base_window: self.windows.base }));
        }
    }
}

/// The lanes that each signature gets if `left` are left, and how many signatures are verified in this step. A step
/// with a lane a signature takes about as long as two with two lanes, so six signatures are done sooner as four and
/// two.
fn split(left: usize) -> (usize, usize) {
    match left {
        7.. => (1, left.min(LANES)),
        3..=6 => (2, left.min(4)),
        2 => (4, 2),
        _ => (8, 1),
    }
}

fn form(machine: AvailableBackend) -> TableForm {
    if matches!(machine, AvailableBackend::Portable) { TableForm::Portable } else { TableForm::Lanes }
}

fn build(machine: AvailableBackend, keys: &[PublicKey], window: u32) -> Vec<KeyTable> {
    let entries = match machine {
        #[cfg(target_arch = "x86_64")]
        AvailableBackend::Ifma(lanes) => builder::build(lanes, keys, window),
        AvailableBackend::Model => builder::build(Model, keys, window),
        AvailableBackend::Portable => keys.iter().map(|key| portable::build(key, window)).collect(),
    };
    let tables = keys.iter().zip(entries);
    tables.map(|(&key, entries)| KeyTable { key, entries, form: form(machine), window }).collect()
}
