//! Profiles: what a provider guarantees beyond the minimum. Each protocol states which of these guarantees it needs,
//! and tests simulate the protocol on the weakest profile on which it claims to run.

/// Which accesses to a region the atomic verbs are atomic with. Atomics of the adapter and of the processors are never
/// mixed on one region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomicity {
    /// Executed by the host's adapter, or by one thread in its place: atomic among verbs of that kind only.
    Adapter,
    /// Instructions of the processors that share the memory: atomic with every instruction of these processors.
    Processor,
}

/// In which order the bytes of one verb, and several verbs of one endpoint, take effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum VerbOrdering {
    /// Words of one verb land in any order; verbs of one endpoint take effect in the order of posting.
    Verbs,
    /// The words of one verb, too, land from low addresses to high ones.
    Words,
}

/// The guarantees of a provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProviderProfile {
    /// The provider's name, for logs and reports.
    pub provider: &'static str,
    /// The atomicity of atomic verbs.
    pub atomicity: Atomicity,
    /// The order of bytes and verbs.
    pub ordering: VerbOrdering,
    /// Whether writes may carry immediate data.
    pub immediate: bool,
    /// Whether verbs complete while they are posted, so that waiting for them costs nothing. The first verb under a capability
    /// may still be pending, and with it those that are posted behind it.
    pub synchronous: bool,
    /// Whether the host's own processor takes part in one-sided verbs.
    pub host_progress: bool,
}
