//! The provider: it finds hosts by their addresses.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use crate::shm::config::ShmConfig;
use crate::shm::{connection, host, local, remote};
use crate::{Credential, Endpoint, Error, Host, HostConfig, Provider};

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
            let host = host::HOSTS.find(address).ok_or_else(|| Error::Unreachable {
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
            host::HOSTS.insert(&host.inner.address, &host.inner)?;
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
