//! The setting that chooses how many tasks [apply](super::apply) a block.

/// How many tasks apply the writes of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ApplyWorkers {
    /// The largest number of tasks; powers of two are used.
    pub workers_max: usize,
    /// The number of keys for which one more task is started. With 0 all tasks are always started.
    pub keys_per_worker: usize,
}

impl ApplyWorkers {
    /// Everything in one task.
    pub const ONE: ApplyWorkers = ApplyWorkers { workers_max: 1, keys_per_worker: 0 };

    /// As many tasks as there are processors, up to 8. Waking a processor takes tens of microseconds, twice a block: a
    /// second task pays from about a thousand keys on.
    pub fn of_machine() -> ApplyWorkers {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        ApplyWorkers { workers_max: processors.min(8), keys_per_worker: 512 }
    }

    /// The number of tasks for a block that writes `keys` keys: a power of two.
    pub(super) fn of_block(self, keys: usize) -> usize {
        let workers = self.workers_max.min(keys.checked_div(self.keys_per_worker).unwrap_or(usize::MAX)).max(1);
        1 << workers.ilog2()
    }
}
