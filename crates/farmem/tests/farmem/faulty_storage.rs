//! Storage that takes its time, fails now and then, and loses pages if the test wants it to.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt;
use base::rt::simulation::Prng;
use base::{Bytes, BytesMut};
use farmem::{FileStorage, PageNumber, PageRange, StorageTier, StoreError, StoreFuture};

/// The name of the storage in reports of losses.
pub const NAME: &str = "the storage of the test";

pub struct FaultyStorage {
    file: FileStorage,
    state: Mutex<StorageState>,
    loses_pages: bool,
}

struct StorageState {
    rng: Prng,
    lost: BTreeSet<PageNumber>,
}

impl FaultyStorage {
    pub fn new(file: FileStorage, rng: Prng, loses_pages: bool) -> FaultyStorage {
        FaultyStorage { file, state: Mutex::new(StorageState { rng, lost: BTreeSet::new() }), loses_pages }
    }

    fn state(&self) -> MutexGuard<'_, StorageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up to a millisecond, in which other tasks go on.
    async fn pass_time(&self) {
        let duration = Duration::from_micros(self.state().rng.below(1000));
        rt::sleep(duration).await;
    }

    fn fails(&self) -> Result<(), StoreError> {
        match self.state().rng.one_in(24) {
            true => Err(StoreError::Unavailable("the test says so".to_owned())),
            false => Ok(()),
        }
    }

    /// A page of the range that is lost, for good until it is written again.
    fn lost_page(&self, range: PageRange) -> Option<PageNumber> {
        let mut state = self.state();
        if self.loses_pages && state.rng.one_in(40) {
            state.lost.insert(range.first);
        }
        state.lost.iter().copied().find(|page| range.contains(PageRange::of(*page)))
    }
}

impl StorageTier for FaultyStorage {
    fn read(&self, range: PageRange, into: BytesMut) -> StoreFuture<'_, BytesMut> {
        Box::pin(async move {
            self.pass_time().await;
            self.fails()?;
            match self.lost_page(range) {
                Some(page) => Err(StoreError::Lost { range: PageRange::of(page), node: NAME.to_owned() }),
                None => self.file.read(range, into).await,
            }
        })
    }

    fn write(&self, range: PageRange, bytes: Bytes) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.pass_time().await;
            // A write that fails may have taken effect, or not.
            self.fails()?;
            self.file.write(range, bytes).await?;
            self.state().lost.retain(|page| !range.contains(PageRange::of(*page)));
            self.fails()
        })
    }
}
