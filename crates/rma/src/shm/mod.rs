//! The `shm` provider: regions are memory that processes of one machine share, and a one-sided verb is a copy or an atomic
//! instruction in the caller. The host's processor has no part in it.
//!
//! Addresses are `local:NAME`, a host within this process, or the path of a Unix socket. Both use the same memory, marks
//! and rings; a socket only hands over file descriptors, after authentication, and says when the other side has gone.
//!
//! 1. A region is a memfd whose size is sealed ([`memory`]). The host maps it, and hands it to whoever proves to hold a
//!    capability for it.
//! 2. A verb marks itself in flight, checks that its grant is in force, copies ([`copy`]), and takes the mark away
//!    ([`connection`], [`area`]). Generations lie in memory that only the host can write ([`view`]).
//! 3. A revocation raises the grant's generation, waits for marks, and kills the process that does not take its mark away
//!    ([`marks`], [`host`]).
//! 4. Messages and notices go through a ring for either direction ([`ring`], [`side`]).
//!
//! Invariants:
//! * It holds against processes that are paused or killed at any instruction, not against malice: whoever has mapped a region
//!   can write it. A region's processes are one trust domain: a capability is good for its holder's name alone, but only
//!   until its process has mapped the region does the host see to that; from then on the process itself compares the names.
//!   What is read from shared memory is checked all the same, so
//!   that a broken process breaks only itself.
//! * Verbs and notices of one endpoint take effect in the order of posting; a message that waits for room in its ring may be
//!   overtaken by later verbs.
//! * A verb that was posted before the loss of its host was noticed may take effect in memory that nobody owns any more.

mod area;
mod connection;
mod copy;
#[doc(hidden)]
pub mod fuzz;
mod host;
mod local;
mod marks;
mod memory;
mod message;
mod remote;
mod ring;
mod side;
mod socket;
mod view;
mod waiting;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Credential, Endpoint, Error, Fabric, Host, HostOptions};

/// Settings of the provider.
#[derive(Clone, Debug)]
pub struct ShmOptions {
    /// How long a revocation waits for verbs in flight before it kills the process that posted them; within one process,
    /// before it fails.
    pub drain: Duration,
}

impl Default for ShmOptions {
    fn default() -> ShmOptions {
        ShmOptions { drain: Duration::from_secs(2) }
    }
}

/// The provider. See the module's description.
#[derive(Clone, Debug, Default)]
pub struct Shm {
    options: ShmOptions,
}

impl Shm {
    /// With these settings.
    pub fn new(options: ShmOptions) -> Shm {
        Shm { options }
    }
}

/// Sockets are real ones.
fn not_simulated(address: &str) -> Result<(), Error> {
    if base::rt::is_simulation() {
        let reason = "a simulation has no sockets; use local:NAME, or the sim provider".to_owned();
        return Err(Error::Unreachable { address: address.to_owned(), reason });
    }
    Ok(())
}

#[async_trait]
impl Fabric for Shm {
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

    async fn host(&self, address: &str, options: HostOptions) -> Result<Arc<dyn Host>, Error> {
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

    fn provider(&self) -> &'static str {
        connection::PROFILE.provider
    }
}

#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;
