//! The provider: it connects endpoints and starts hosts.

use std::sync::Arc;

use async_trait::async_trait;

use crate::tcp::config::TcpConfig;
use crate::tcp::profile::PROFILE;
use crate::tcp::{client, host};
use crate::{Credential, Endpoint, Error, Host, HostConfig, Provider};

/// The provider. See the module's description.
#[derive(Clone, Debug, Default)]
pub struct TcpProvider {
    options: TcpConfig,
}

impl TcpProvider {
    /// With these settings.
    pub fn new(options: TcpConfig) -> TcpProvider {
        TcpProvider { options }
    }
}

#[async_trait]
impl Provider for TcpProvider {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let (address, credential, options) = (address.to_owned(), credential.clone(), self.options.clone());
        let connected = base::rt::blocking(move || client::connect(&address, &credential, &options)).await?;
        Ok(connected.endpoint(&self.options))
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        let (address, tcp) = (address.to_owned(), self.options.clone());
        let host = base::rt::blocking(move || host::TcpHost::start(&address, options, tcp)).await?;
        Ok(Arc::new(host.watching()))
    }

    fn name(&self) -> &'static str {
        PROFILE.provider
    }
}
