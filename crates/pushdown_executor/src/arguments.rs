//! What the role *executors* says to an executor that it starts. One that a program's library starts has no arguments.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use pushdown::{
    CONTEXTS_ARGUMENT, CONTEXTS_MAX, DEVICE_ARGUMENT, MEMORY_PAGES_ARGUMENT, MEMORY_PAGES_MIN, NAMESPACES_ARGUMENT,
    STORAGE_PAGES_ARGUMENT,
};

use crate::storage::StorageBounds;

static HAS_NAMESPACES: AtomicBool = AtomicBool::new(false);
static HAS_DEVICE: AtomicBool = AtomicBool::new(false);
static CONTEXTS: AtomicU32 = AtomicU32::new(CONTEXTS_MAX);
static IS_OF_ROLE: AtomicBool = AtomicBool::new(false);
static MEMORY_PAGES: AtomicU64 = AtomicU64::new(0);
static STORAGE_PAGES: AtomicU64 = AtomicU64::new(0);

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    /// Its namespaces are its own, the mounts too.
    pub(crate) has_namespaces: bool,
    /// It was given `/dev/userfaultfd`.
    pub(crate) has_device: bool,
    /// Most functions that run at the same time.
    pub(crate) contexts_max: u32,
    /// The role has started it.
    is_of_role: bool,
    /// Most pages in memory, and in the file for others; without such a file none.
    memory_pages: u64,
    storage_pages: u64,
}

impl Arguments {
    /// Reads the arguments, which uses the C library.
    pub(crate) fn note() {
        let number = |argument: &str, name: &str| argument.strip_prefix(name).map(|number| number.parse().unwrap_or(0));
        for argument in std::env::args().skip(1) {
            IS_OF_ROLE.store(true, Ordering::Relaxed);
            if let Some(pages) = number(&argument, MEMORY_PAGES_ARGUMENT) {
                MEMORY_PAGES.store(pages, Ordering::Relaxed);
                continue;
            }
            if let Some(pages) = number(&argument, STORAGE_PAGES_ARGUMENT) {
                STORAGE_PAGES.store(pages, Ordering::Relaxed);
                continue;
            }
            match argument.as_str() {
                NAMESPACES_ARGUMENT => HAS_NAMESPACES.store(true, Ordering::Relaxed),
                DEVICE_ARGUMENT => HAS_DEVICE.store(true, Ordering::Relaxed),
                other => {
                    let contexts = other.strip_prefix(CONTEXTS_ARGUMENT).and_then(|number| number.parse().ok());
                    CONTEXTS.store(contexts.unwrap_or(1), Ordering::Relaxed);
                }
            }
        }
    }

    /// What was read.
    pub(crate) fn noted() -> Arguments {
        Arguments {
            has_namespaces: HAS_NAMESPACES.load(Ordering::Relaxed),
            has_device: HAS_DEVICE.load(Ordering::Relaxed),
            contexts_max: CONTEXTS.load(Ordering::Relaxed),
            is_of_role: IS_OF_ROLE.load(Ordering::Relaxed),
            memory_pages: MEMORY_PAGES.load(Ordering::Relaxed),
            storage_pages: STORAGE_PAGES.load(Ordering::Relaxed),
        }
    }

    /// How pages are stored, if they are. `wanted` is how many pages the program wants in memory: of the role's it may have less kept there, not
    /// more, and where the role has no storage there is none.
    pub(crate) fn storage(&self, wanted: Option<u64>) -> Option<StorageBounds> {
        if !self.is_of_role {
            return wanted.map(|memory_pages| StorageBounds { memory_pages, file_pages: None });
        }
        let wanted = wanted.unwrap_or(u64::MAX).max(MEMORY_PAGES_MIN);
        (self.memory_pages > 0).then(|| StorageBounds {
            memory_pages: self.memory_pages.min(wanted),
            file_pages: Some(self.storage_pages),
        })
    }
}
