//! What a provider promises beyond the minimum. A protocol states what it needs and is simulated on the weakest profile
//! that it claims to run on.

/// Among whom atomic verbs are atomic. One region has one domain; processor and adapter atomics are never mixed on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomicity {
    /// Executed by the host's adapter, or by one thread that stands for it: atomic among verbs of that kind only.
    Adapter,
    /// Instructions of the processors that share the memory: atomic with anything that these processors do.
    Processor,
}

/// In which order the bytes of one verb, and several verbs of one endpoint, take effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Ordering {
    /// Words of one verb land in any order; verbs of one endpoint take effect in the order of posting.
    Verbs,
    /// The words of one verb, too, land from low addresses to high ones.
    Words,
}

/// A provider's promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// The provider's name, for logs and reports.
    pub provider: &'static str,
    /// Of atomic verbs.
    pub atomicity: Atomicity,
    /// Of bytes and verbs.
    pub ordering: Ordering,
    /// Whether writes may carry immediate data.
    pub immediate: bool,
    /// Whether verbs complete while they are posted, so that waiting for them costs nothing. The first under a capability
    /// may be pending all the same, and with it those that are posted behind it.
    pub synchronous: bool,
    /// Whether the host's own processor has a part in one-sided verbs.
    pub host_progress: bool,
}
