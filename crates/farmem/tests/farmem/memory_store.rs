//! A store in this process's own memory, whose reads and writes fail when a test says so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::{Bytes, BytesMut};
use farmem::{PAGE_BYTES, PageNumber, PageRange, PageStore, StoreError, StoreFuture};

#[derive(Default)]
pub struct MemoryStore {
    pages: Mutex<BTreeMap<PageNumber, Bytes>>,
    /// Every third operation fails.
    pub is_flaky: AtomicBool,
    operations: AtomicU64,
}

impl MemoryStore {
    fn pages(&self) -> MutexGuard<'_, BTreeMap<PageNumber, Bytes>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fails(&self) -> bool {
        self.is_flaky.load(Ordering::Relaxed) && self.operations.fetch_add(1, Ordering::Relaxed).is_multiple_of(3)
    }

    /// Loses these pages.
    pub fn lose(&self, range: PageRange) {
        range.iter().for_each(|page| drop(self.pages().remove(&page)));
    }

    pub fn read_now(&self, range: PageRange, mut into: BytesMut) -> Result<BytesMut, StoreError> {
        if self.fails() {
            return Err(StoreError::Unavailable("the test says so".to_owned()));
        }
        for page in range.iter() {
            match self.pages().get(&page) {
                Some(bytes) => into.extend_from_slice(bytes),
                None => {
                    return Err(StoreError::Lost {
                        range: PageRange::of(page),
                        node: "the node of the test".to_owned(),
                    });
                }
            }
        }
        Ok(into)
    }

    fn write_now(&self, range: PageRange, bytes: &Bytes) -> Result<(), StoreError> {
        if self.fails() {
            self.lose(range);
            return Err(StoreError::Unavailable("the test says so".to_owned()));
        }
        for (index, page) in range.iter().enumerate() {
            self.pages().insert(page, bytes.slice(index * PAGE_BYTES..(index + 1) * PAGE_BYTES));
        }
        Ok(())
    }
}

impl PageStore for MemoryStore {
    fn read(&self, range: PageRange, into: BytesMut) -> StoreFuture<'_, BytesMut> {
        Box::pin(std::future::ready(self.read_now(range, into)))
    }

    fn write(&self, range: PageRange, bytes: Bytes) -> StoreFuture<'_, ()> {
        Box::pin(std::future::ready(self.write_now(range, &bytes)))
    }

    fn holds(&self, page: PageNumber) -> bool {
        self.pages().contains_key(&page)
    }

    fn discard(&self, range: PageRange) {
        self.lose(range);
    }
}
