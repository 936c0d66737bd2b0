//! The `sim` provider: remote memory in a simulated world. It delays, loses and tears verbs as far as the guarantees
//! allow.
//!
//! 1. A host lives on the simulated node whose task called `Provider::host`; an endpoint lives on the node of its
//!    caller. A crash of the host's node loses the host's regions. While that node is paused, one-sided verbs still
//!    take effect, because they need no task of the node; messages wait for its tasks.
//! 2. A verb leaves its node, arrives at the host, and completes, each at a random time. If the sender's node crashes,
//!    verbs that have not left it are lost. Verbs of one endpoint take effect in the order of posting, whatever happens
//!    to their sender meanwhile. Messages and immediate data arrive in order, after the writes posted before them;
//!    verbs posted later may overtake them.
//! 3. A read or a write takes effect in bursts of words. Other endpoints' verbs, revocations and crashes may come
//!    between two bursts.
//! 4. A network partition delays verbs and completions. Each connection is represented by a link of the simulated
//!    network: when the link breaks, verbs in flight complete as ambiguous. A random prefix of the posted verbs still
//!    takes effect: perhaps at once, perhaps seconds later, long after another node has started to use the memory. Only
//!    a revocation rules out such a late effect.
//! 5. A revocation first rejects verbs that have not started, and returns once no started verb can continue. A write
//!    that is cut off between two bursts completes as ambiguous.
//!
//! Fault points: `rma.sim.lose_verb` and `rma.sim.lose_completion` (each also loses the connection),
//! `rma.sim.delay_verb`, `rma.sim.tear` (a long time between two bursts), `rma.sim.delay_revocation`,
//! `rma.sim.exhausted` (a host has no memory left).
//!
//! Invariant: no word lands under a grant whose revocation has returned. The provider asserts this, and a violation
//! fails the run.
//!
//! Not simulated: failures within the provider's own process or host, such as a lack of memory for a message.

mod config;
mod connection;
mod counts;
mod endpoint;
mod fabric;
mod incarnation;
mod memory;
mod provider;
mod verb;
mod wire;

pub use config::{SimDelays, WEAKEST};
pub use counts::VerbCounts;
pub use fabric::SimProvider;
use fabric::poll_accept;
use incarnation::NodeIncarnation;
