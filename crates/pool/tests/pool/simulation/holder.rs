//! Who holds an owner's memory: opens a space, grows, writes, reads, releases; begins again when it was fenced.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, Instant, Stop};
use base::{Bytes, BytesMut, Epoch, ErrorKind};
use pool::{AddressSpace, Donor, LossReason, Section, SectionId, SpaceOptions};
use rma::{Completion, Fabric, TOKEN_BYTES, Token};

use super::truth::Truth;
use super::{DONORS, SECTION};

/// Words of a section that are used; few, so that what others write there would be noticed.
const WORDS: u64 = 16;
/// A holder that was told to take over, and is told again, waits so long.
const RETAKE: Duration = Duration::from_millis(400);

pub fn token(owner: &str) -> Token {
    let mut bytes = [7; TOKEN_BYTES];
    bytes[..owner.len()].copy_from_slice(owner.as_bytes());
    Token::new(bytes)
}

pub fn space_options(owner: &'static str, epoch: Epoch, fabric: &Arc<dyn Fabric>) -> SpaceOptions {
    let donors = DONORS.map(|address| Donor { address: address.to_owned(), token: token(owner) });
    SpaceOptions {
        owner: owner.to_owned(),
        epoch,
        fabric: Arc::clone(fabric),
        donors: donors.to_vec(),
        section_bytes: SECTION,
        budget_bytes: 6 * SECTION,
    }
}

pub struct Holder {
    pub node: &'static str,
    pub owner: &'static str,
    pub fabric: Arc<dyn Fabric>,
    pub truth: Arc<Truth>,
    /// Nothing new is begun any more.
    pub calm: Stop,
    pub finish: Stop,
}

/// A section, and what its words must hold.
struct Held {
    section: Section,
    given: Instant,
    words: BTreeMap<u64, u64>,
}

/// One life of a space.
struct Reign<'a> {
    holder: &'a Holder,
    space: AddressSpace,
    epoch: Epoch,
    account: usize,
    held: BTreeMap<SectionId, Held>,
    written: u64,
}

impl Holder {
    pub async fn run(self) {
        self.truth.holder_ends(self.node);
        // Holders of one owner do not begin together.
        rt::sleep(Duration::from_millis(rt::random_below(20))).await;
        while !self.finish.is_stopped() {
            let epoch = self.truth.next_epoch(self.owner);
            if rt::random_below(4) == 0 {
                // Who is told to take over may be slow to do it, and be overtaken.
                rt::sleep(Duration::from_millis(rt::random_below(1500))).await;
            }
            let since = rt::now();
            match AddressSpace::open(space_options(self.owner, epoch, &self.fabric)).await {
                Ok(space) => {
                    let account = self.truth.opened(self.node, self.owner, epoch, since, &space);
                    let held = BTreeMap::new();
                    let reign = Reign { holder: &self, space, epoch, account, held, written: 0 };
                    reign.run().await;
                    self.truth.holder_ends(self.node);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Fenced, "{} cannot open: {error}", self.node),
            }
            if self.calm.is_stopped() {
                return self.finish.stopped().await;
            }
            // Give the other holder a while.
            rt::sleep(RETAKE + Duration::from_millis(rt::random_below(600))).await;
        }
    }
}

impl Reign<'_> {
    async fn run(mut self) {
        while !self.holder.finish.is_stopped() && !self.space.is_fenced() {
            self.hear_of_losses().await;
            if self.holder.calm.is_stopped() {
                rt::sleep(Duration::from_secs(1)).await;
                continue;
            }
            match rt::random_below(20) {
                0..3 => self.grow().await,
                3 => self.release().await,
                4 => self.give_up_growing().await,
                5..12 => self.write().await,
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

    /// Takes what is reported by now.
    async fn hear_of_losses(&mut self) {
        while let Ok(loss) = rt::timeout(Duration::ZERO, self.space.lost()).await {
            assert!(!loss.sections.is_empty() || loss.reason == LossReason::Fenced, "{loss:?}");
            for id in loss.sections {
                self.held.remove(&id);
                self.holder.truth.ended(self.account, id, "loss");
            }
        }
    }

    async fn grow(&mut self) {
        self.holder.truth.operation();
        let asked = rt::now();
        let Ok(section) = self.space.grow().await else { return };
        self.hold(section, asked);
        let reading = self.space.read(section.address, SECTION as usize, BytesMut::new());
        if let Some(bytes) = self.outcome(section.id, rt::now(), reading).await {
            assert!(bytes.iter().all(|byte| *byte == 0), "zero: {} was given memory that is not", self.holder.owner);
        }
    }

    fn hold(&mut self, section: Section, asked: Instant) {
        self.holder.truth.given(self.account, section.id, asked);
        self.held.insert(section.id, Held { section, given: rt::now(), words: BTreeMap::new() });
    }

    /// Asks for a section, and does not wait for it.
    async fn give_up_growing(&mut self) {
        self.holder.truth.operation();
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
        self.holder.truth.operation();
        let Some(id) = self.pick() else { return };
        match self.space.release(id).await {
            // The donor's silence changes nothing: it is not ours any more.
            Ok(()) | Err(pool::Error::NoAnswer { .. } | pool::Error::Unconfirmed(_) | pool::Error::Refused { .. }) => {
                self.held.remove(&id);
                self.holder.truth.ended(self.account, id, "release");
                let gone = self.space.read(address_of(id), 8, BytesMut::new()).await;
                assert!(gone.is_err(), "a released section cannot be read");
            }
            Err(pool::Error::UnknownSection(_)) => {
                // Lost; we are about to hear of it.
            }
            Err(error) => panic!("a release fails: {error}"),
        }
    }

    /// Writes a few words, without waiting for one before the next is posted.
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
                    self.holder.owner,
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
            assert!(found == before, "shared: {} finds {found:x} in place of {before:x}", self.holder.owner);
        }
    }

    /// What a verb gave; a section whose verb fails is not used any more, until we hear that it is lost.
    async fn outcome<T: Unpin>(&mut self, id: SectionId, posted: Instant, verb: Completion<T>) -> Option<T> {
        match verb.await {
            Ok(value) => {
                let Some(Held { given, .. }) = self.held.get(&id) else { return Some(value) };
                let donor = self.space.donor_of(id).expect("it was given").to_owned();
                self.holder.truth.verb(self.holder.owner, self.epoch, &donor, *given, posted);
                Some(value)
            }
            Err(error) => {
                self.holder.truth.operation();
                // Else another verb has failed before.
                let held = self.held.remove(&id)?;
                self.space.note_failure(held.section.address, &error);
                let lost = self.space.read(held.section.address, 8, BytesMut::new()).await;
                assert!(lost.is_err(), "{error}: yet the section is live");
                None
            }
        }
    }
}

/// The first address of a section that was given, live or not.
fn address_of(id: SectionId) -> u64 {
    // Fresh addresses go up with fresh sections, until addresses are used again, which no seed comes to.
    u64::from(id.0) * SECTION
}
