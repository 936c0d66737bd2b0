//! The `shm` provider: regions are memory that the processes of one machine share, and a one-sided verb is a copy or an atomic
//! instruction in the caller. The host's process takes no part in it.
//!
//! An address is `local:NAME` for a host within this process, or the path of a Unix socket. Hosts at both kinds of address use
//! the same memory, marks and rings; a socket only passes file descriptors, after authentication, and reports when the other
//! end has gone.
//!
//! 1. A region is a memfd whose size is sealed ([`memory`]). The host maps it, and passes it to every process that proves that
//!    it holds a capability for the region.
//! 2. A verb sets a mark, which shows that it is in flight, checks that its grant is in force, copies ([`copy`]), and clears
//!    the mark ([`connection`], [`segment`]). Generations lie in memory that only the host can write ([`view`]).
//! 3. A revocation raises the grant's generation, waits for marks, and kills a process that does not clear its mark
//!    ([`hazards`], [`host`]).
//! 4. Messages and notices go through one ring per direction ([`ring`], [`segment`]).
//!
//! Invariants:
//! * The protocol is safe against processes that are paused or killed at any instruction, but not against malice: a process
//!   that has mapped a region can write it. The processes that share a region are one trust domain. A capability is valid only
//!   for its holder's name. The host enforces this until the holder's process has mapped the region; from then on the process
//!   itself compares the names. Data read from shared memory is checked nevertheless, so that a broken process breaks only
//!   itself.
//! * Verbs and notices of one endpoint take effect in the order of posting; a message that waits for space in its ring may be
//!   overtaken by later verbs.
//! * A caller may notice the loss of its host late. A verb that it posts before then may take effect in memory that no host
//!   owns any more.

mod connection;
mod connection_end;
mod copy;
#[doc(hidden)]
pub mod fuzz;
mod hazards;
mod host;
mod local;
mod memory;
mod message;
mod remote;
mod ring;
mod segment;
mod socket;
mod view;
mod waiting;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Credential, Endpoint, Error, Host, HostConfig, Provider};

/// Options of the provider.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// How long a revocation waits for verbs in flight before it kills the process that posted them. For a caller within the
    /// host's own process, how long it waits before it fails.
    pub drain: Duration,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig { drain: Duration::from_secs(2) }
    }
}

/// The provider. See the module's description.
#[derive(Clone, Debug, Default)]
pub struct ShmProvider {
    options: ShmConfig,
}

impl ShmProvider {
    /// With these settings.
    pub fn new(options: ShmConfig) -> ShmProvider {
        ShmProvider { options }
    }
}

/// Sockets are real ones, so a simulation must not use them.
fn not_simulated(address: &str) -> Result<(), Error> {
    if base::rt::is_simulation() {
        let reason = "a simulation has no sockets; use local:NAME, or the sim provider".to_owned();
        return Err(Error::Unreachable { address: address.to_owned(), reason });
    }
    Ok(())
}

#[async_trait]
impl Provider for ShmProvider {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        if address.starts_with(local::PREFIX) {
            let host = local::find(address).ok_or_else(|| Error::Unreachable {
                address: address.to_owned(),
                reason: "this process has no such host".to_owned(),
            })?;
            return host.connect_local(credential).await;
        }
        not_simulated(address)?;
        remote::connect(Path::new(address), credential).await
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        if let Some(name) = address.strip_prefix(local::PREFIX) {
            let address = match name {
                "" => format!("{}{:016x}", local::PREFIX, base::rt::random_u64()),
                _ => address.to_owned(),
            };
            let host = host::ShmHost::new(address, options, self.options.clone())?;
            local::insert(&host.inner)?;
            return Ok(Arc::new(host));
        }
        not_simulated(address)?;
        let host = host::ShmHost::new(address.to_owned(), options, self.options.clone())?;
        remote::serve(&host.inner, Path::new(address))?;
        Ok(Arc::new(host))
    }

    fn name(&self) -> &'static str {
        connection::PROFILE.provider
    }
}

#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;
