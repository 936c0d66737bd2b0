//! A process that holds an owner's memory. It opens a space; then it grows the space, writes, reads and releases
//! sections; after it was fenced, it starts again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, CancellationToken, Instant};
use base::{Bytes, BytesMut, Epoch, ErrorKind};
use pool::{AddressSpace, AddressSpaceConfig, Donor, LossReason, Section, SectionId};
use rma::{Completion, Provider, TOKEN_BYTES, Token};

use super::truth::Truth;
use super::{DONORS, SECTION};

/// Words of a section that are used; few, so that writes of others there would be noticed.
const WORDS: u64 = 16;
/// How long a process waits that took the memory over and takes it over again.
const RETAKE: Duration = Duration::from_millis(400);

pub fn token(owner: &str) -> Token {
    let mut bytes = [7; TOKEN_BYTES];
    bytes[..owner.len()].copy_from_slice(owner.as_bytes());
    Token::new(bytes)
}

pub fn space_options(owner: &'static str, epoch: Epoch, provider: &Arc<dyn Provider>) -> AddressSpaceConfig {
    let donors = DONORS.map(|address| Donor { address: address.to_owned(), token: token(owner) });
    AddressSpaceConfig {
        owner: owner.to_owned(),
        epoch,
        provider: Arc::clone(provider),
        donors: donors.to_vec(),
        section_bytes: SECTION,
        budget_bytes: 6 * SECTION,
    }
}

pub struct OwnerProcess {
    pub node: &'static str,
    pub owner: &'static str,
    pub provider: Arc<dyn Provider>,
    pub truth: Arc<Truth>,
    /// Stopped when no new work is to start.
    pub calm: CancellationToken,
    pub finish: CancellationToken,
}

/// A section, and the values that its words must hold.
struct OwnedSection {
    section: Section,
    given: Instant,
    words: BTreeMap<u64, u64>,
}

/// One space of the process, from opening to its end.
struct OwnerSession<'a> {
    process: &'a OwnerProcess,
    space: AddressSpace,
    epoch: Epoch,
    account: usize,
    held: BTreeMap<SectionId, OwnedSection>,
    written: u64,
}

impl OwnerProcess {
    pub async fn run(self) {
        self.truth.owner_process_ends(self.node);
        // Processes of one owner do not start together.
        rt::sleep(Duration::from_millis(rt::random_below(20))).await;
        while !self.finish.is_cancelled() {
            let epoch = self.truth.next_epoch(self.owner);
            if rt::random_below(4) == 0 {
                // A process that takes over may be slow, and be overtaken.
                rt::sleep(Duration::from_millis(rt::random_below(1500))).await;
            }
            let since = rt::now();
            let adopts = rt::random_below(2) == 0;
            let options = space_options(self.owner, epoch, &self.provider);
            let opened = match adopts {
                true => AddressSpace::adopt(options).await,
                false => AddressSpace::open(options).await,
            };
            match opened {
                Ok(space) => {
                    let account = self.truth.opened(self.node, self.owner, epoch, since, &space, adopts);
                    let held = BTreeMap::new();
                    let mut session = OwnerSession { process: &self, space, epoch, account, held, written: 0 };
                    session.adopt(since).await;
                    session.run().await;
                    self.truth.owner_process_ends(self.node);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Fenced, "{} cannot open: {error}", self.node),
            }
            if self.calm.is_cancelled() {
                return self.finish.cancelled().await;
            }
            // Leave the memory to the other process for a while.
            rt::sleep(RETAKE + Duration::from_millis(rt::random_below(600))).await;
        }
    }
}

impl OwnerSession<'_> {
    async fn run(mut self) {
        while !self.process.finish.is_cancelled() && !self.space.is_fenced() {
            self.hear_of_losses().await;
            if self.process.calm.is_cancelled() {
                rt::sleep(Duration::from_secs(1)).await;
                continue;
            }
            match rt::random_below(20) {
                0..3 => self.grow().await,
                3 => self.release().await,
                4 => self.give_up_growing().await,
                5 => self.migrate().await,
                6..12 => self.write().await,
                12..18 => self.read().await,
                _ => self.add().await,
            }
            self.check_budget();
            rt::sleep(Duration::from_micros(rt::random_below(8_000))).await;
        }
        if self.space.is_fenced() {
            self.hear_of_losses().await;
            let grown = self.space.grow().await.expect_err("a fenced space does not grow");
            assert_eq!(grown.kind(), ErrorKind::Fenced);
            assert!(self.space.sections().is_empty(), "accounts: a fenced space has no sections");
        } else {
            self.space.close().await;
        }
    }

    fn check_budget(&self) {
        let bytes: u64 = self.space.sections().iter().map(|section| section.bytes).sum();
        assert!(bytes <= self.space.budget_bytes(), "budget: a space has {bytes} bytes");
    }

    /// Takes the losses that are reported by now.
    async fn hear_of_losses(&mut self) {
        while let Ok(loss) = rt::timeout(Duration::ZERO, self.space.lost()).await {
            assert!(!loss.sections.is_empty() || loss.reason == LossReason::Fenced, "{loss:?}");
            for id in loss.sections {
                self.held.remove(&id);
                self.process.truth.ended(self.account, id, "loss");
            }
        }
    }

    async fn grow(&mut self) {
        self.process.truth.operation();
        let asked = rt::now();
        let Ok(section) = self.space.grow().await else { return };
        self.hold(section, asked);
        let reading = self.space.read(section.address, SECTION as usize, BytesMut::new());
        if let Some(bytes) = self.outcome(section.id, rt::now(), reading).await {
            assert!(bytes.iter().all(|byte| *byte == 0), "zero: {} was given memory that is not", self.process.owner);
        }
    }

    /// Takes the sections that the last epoch left as they are: from now on nobody else changes them.
    async fn adopt(&mut self, since: Instant) {
        for section in self.space.sections() {
            self.hold(section, since);
            let reading = self.space.read(section.address, 8 * WORDS as usize, BytesMut::new());
            let Some(bytes) = self.outcome(section.id, rt::now(), reading).await else { continue };
            let Some(held) = self.held.get_mut(&section.id) else { continue };
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            held.words.extend((0..).zip(bytes.chunks(8).map(word)));
            let earlier = |value: &u64| *value >> 32 < self.epoch.get();
            assert!(held.words.values().all(earlier), "shared: a word was written under an epoch that is to come");
        }
    }

    fn hold(&mut self, section: Section, asked: Instant) {
        self.process.truth.given(self.account, section.id, asked);
        self.held.insert(section.id, OwnedSection { section, given: rt::now(), words: BTreeMap::new() });
    }

    /// Requests a section, and does not wait for it.
    async fn give_up_growing(&mut self) {
        self.process.truth.operation();
        let before: Vec<Section> = self.space.sections();
        let patience = Duration::from_micros(rt::random_below(400));
        let asked = rt::now();
        match rt::timeout(patience, self.space.grow()).await {
            Ok(Ok(section)) => self.hold(section, asked),
            Ok(Err(_)) => {}
            Err(rt::Elapsed) => {
                let known = |section: &&Section| !before.iter().any(|other| other.id == section.id);
                for section in self.space.sections().iter().filter(known) {
                    self.hold(*section, asked);
                }
            }
        }
    }

    fn pick(&self) -> Option<SectionId> {
        let ids: Vec<SectionId> = self.held.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[rt::random_below(ids.len() as u64) as usize])
    }

    async fn release(&mut self) {
        self.process.truth.operation();
        let Some(id) = self.pick() else { return };
        match self.space.release(id).await {
            // The donor's silence changes nothing: the section is no longer ours.
            Ok(()) | Err(pool::Error::NoAnswer { .. } | pool::Error::Unconfirmed(_) | pool::Error::Rejected { .. }) => {
                self.held.remove(&id);
                self.process.truth.ended(self.account, id, "release");
                let gone = self.space.read(address_of(id), 8, BytesMut::new()).await;
                assert!(gone.is_err(), "a released section cannot be read");
            }
            Err(pool::Error::UnknownSection(_)) => {
                // Lost; the loss is about to be reported.
            }
            Err(error) => panic!("a release fails: {error}"),
        }
    }

    /// Moves a section to another donor, or begins to, and writes meanwhile.
    async fn migrate(&mut self) {
        self.process.truth.operation();
        let Some(id) = self.pick() else { return };
        let Ok(migration) = self.space.migrate(id, 8).await else { return };
        for _ in 0..rt::random_below(3) {
            self.write().await;
            if migration.copy_some(SECTION).await.is_err() {
                return;
            }
        }
        self.write().await;
        let gives_up = rt::random_below(4) == 0;
        let Some(held) = self.held.get_mut(&id).filter(|_| !gives_up) else { return };
        let head = held.words.get(&0).copied().unwrap_or_default();
        if migration.complete(Bytes::copy_from_slice(&head.to_le_bytes())).await.is_err() {
            return;
        }
        let Ok(old) = migration.finish() else { return };
        held.given = rt::now();
        self.read().await;
        if rt::random_below(2) == 0 && old.erase_head().await.is_ok() {
            // If the donor is silent, the old location is returned in the background.
            let _ = old.release().await;
        }
    }

    /// Writes a few words, posting each without waiting for the one before.
    async fn write(&mut self) {
        let Some(id) = self.pick() else { return };
        let posted = rt::now();
        let mut writing = Vec::new();
        let held = self.held.get_mut(&id).expect("it was picked");
        for _ in 0..=rt::random_below(4) {
            self.written += 1;
            let value = (self.epoch.get() << 32) | self.written;
            let word = rt::random_below(WORDS);
            held.words.insert(word, value);
            let bytes = Bytes::copy_from_slice(&value.to_le_bytes());
            writing.push(self.space.write(held.section.address + 8 * word, &[bytes]));
        }
        self.space.flush();
        for write in writing {
            self.outcome(id, posted, write).await;
        }
    }

    async fn read(&mut self) {
        let Some(id) = self.pick() else { return };
        let held = &self.held[&id];
        let posted = rt::now();
        let reading = self.space.read(held.section.address, 8 * WORDS as usize, BytesMut::new());
        if let Some(bytes) = self.outcome(id, posted, reading).await {
            let held = &self.held[&id];
            for (word, found) in (0..).zip(bytes.chunks(8)) {
                let found = u64::from_le_bytes(found.try_into().expect("eight bytes"));
                let expected = held.words.get(&word).copied().unwrap_or_default();
                assert!(
                    found == expected,
                    "shared: {} finds {found:x} where it wrote {expected:x}, in {:?}",
                    self.process.owner,
                    held.section
                );
            }
        }
    }

    async fn add(&mut self) {
        let Some(id) = self.pick() else { return };
        let word = rt::random_below(WORDS);
        let held = self.held.get_mut(&id).expect("it was picked");
        let before = held.words.get(&word).copied().unwrap_or_default();
        held.words.insert(word, before + 1);
        let address = held.section.address + 8 * word;
        let posted = rt::now();
        let adding = self.space.fetch_add(address, 1);
        if let Some(found) = self.outcome(id, posted, adding).await {
            assert!(found == before, "shared: {} finds {found:x} in place of {before:x}", self.process.owner);
        }
    }

    /// The result of a verb; a section whose verb fails is not used any more, until it is reported lost.
    async fn outcome<T: Unpin>(&mut self, id: SectionId, posted: Instant, verb: Completion<T>) -> Option<T> {
        match verb.await {
            Ok(value) => {
                let Some(OwnedSection { given, .. }) = self.held.get(&id) else { return Some(value) };
                let donor = self.space.donor_of(id).expect("it was given").to_owned();
                self.process.truth.verb(self.process.owner, self.epoch, &donor, *given, posted);
                Some(value)
            }
            Err(error) => {
                self.process.truth.operation();
                // Otherwise another verb has failed before.
                let held = self.held.remove(&id)?;
                self.space.note_failure(held.section.address, &error);
                let lost = self.space.read(held.section.address, 8, BytesMut::new()).await;
                assert!(lost.is_err(), "{error}: yet the section is live");
                None
            }
        }
    }
}

/// The first address of a granted section, live or not.
fn address_of(id: SectionId) -> u64 {
    // New sections get new, ascending addresses, until the addresses are used up, which no seed reaches.
    u64::from(id.0) * SECTION
}
