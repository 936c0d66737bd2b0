//! What the role *executors* says to an executor that it starts. One that a program's library starts has no arguments.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pushdown::{CONTEXTS_ARGUMENT, CONTEXTS_MAX, DEVICE_ARGUMENT, NAMESPACES_ARGUMENT};

static HAS_NAMESPACES: AtomicBool = AtomicBool::new(false);
static HAS_DEVICE: AtomicBool = AtomicBool::new(false);
static CONTEXTS: AtomicU32 = AtomicU32::new(CONTEXTS_MAX);

/// The arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    /// Its namespaces are its own, the mounts too.
    pub(crate) has_namespaces: bool,
    /// It was given `/dev/userfaultfd`.
    pub(crate) has_device: bool,
    /// Most functions that run at the same time.
    pub(crate) contexts_max: u32,
}

impl Arguments {
    /// Reads the arguments, which uses the C library.
    pub(crate) fn note() {
        for argument in std::env::args().skip(1) {
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
        }
    }
}
