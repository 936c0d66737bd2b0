//! `heddle bench rma`: measures the cost of each verb of remote memory and compares each provider with its floor. The
//! *floor* of a provider is the least that the same batch can cost.
//!
//! 1. [`target`] makes a host and a caller's connection to it, in this process.
//! 2. [`verbs`] calls a batch of one verb, sequentially or with many in flight.
//! 3. The floor performs the same batch. For `shm` it is a copy or an atomic instruction ([`copy`]). For `tcp` it is a
//!    request and a reply of the same sizes over a bare socket ([`echo`]); both ends poll and sleep as the provider's
//!    do, and [`cpu_affinity`] pins both to cores.
//! 4. Batches of the verb and of the floor alternate; for `tcp` this is repeated with several pairs of connections.
//!    [`samples`] computes percentiles of the single verbs and medians of the batches' rates.
//!
//! `shm` reads and writes are measured warm (at one offset) and cold (all over a large region), and the floor uses the
//! same pattern of offsets. The provider `shaped` delays another provider as a network would; its floor is that of the
//! other provider, so the rest of its cost is the network's.

mod config;
mod copy;
mod cpu_affinity;
mod echo;
mod floor;
mod provider;
mod samples;
mod suite;
mod target;
mod verbs;

pub use config::RmaConfig;
pub use suite::run;
