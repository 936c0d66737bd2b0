//! The provider: it connects endpoints and starts hosts.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use base::{Bytes, rt};

use crate::sim::endpoint::{SimConnection, SimHost};
use crate::sim::fabric::{HOST_BYTES, SCHEME, SimProvider, WELCOME, unreachable_at};
use crate::sim::memory::HostMemory;
use crate::sim::wire::{ConnectRequest, HostState};
use crate::{Credential, Endpoint, Error, Host, HostConfig, Provider};

#[async_trait]
impl Provider for SimProvider {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let place = self.current_incarnation();
        let mut link =
            rt::net::connect(&format!("{SCHEME}{address}")).await.map_err(|error| unreachable_at(address, error))?;
        let number = self.locked(|state| {
            let number = state.number();
            let Credential { name, token } = credential.clone();
            state.connect_requests.insert(number, ConnectRequest { place: place.clone(), name, token });
            number
        });
        let lost = |_| unreachable_at(address, "the connection was lost");
        link.send(Bytes::copy_from_slice(&number.to_le_bytes())).await.map_err(lost)?;
        let reply = link.receive().await.map_err(lost)?;
        let Some((key, WELCOME)) = reply.split_first_chunk::<8>() else {
            return Err(Error::Rejected(format!(
                "the host does not know the name or the token of {}",
                credential.name
            )));
        };
        let key = u64::from_le_bytes(*key);
        let connection = SimConnection::take(self, key, 0, address.into());
        self.monitor_link(key, 0, link);
        Ok(Endpoint::new(Arc::new(connection)))
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        let place = self.current_incarnation();
        let mut listener =
            rt::net::listen(&format!("{SCHEME}{address}")).await.map_err(|error| Error::system("listening", &error))?;
        let host = self.locked(|state| {
            let host = state.number();
            let state_of_host = HostState {
                address: address.to_owned(),
                place,
                tokens: options.tokens,
                memory: HostMemory::new(options.node, HOST_BYTES),
                backlog: VecDeque::new(),
                accept_wakers: Vec::new(),
                acceptor: None,
            };
            state.hosts.insert(host, state_of_host);
            host
        });
        let provider = self.clone();
        let acceptor = rt::spawn(async move {
            while let Ok(link) = listener.accept().await {
                let provider = provider.clone();
                rt::spawn(async move { provider.accept_caller(host, link).await });
            }
        });
        self.update(|state, effects| match state.hosts.get_mut(&host) {
            Some(state) => state.acceptor = Some(acceptor.abort_on_drop()),
            None => effects.tasks.push(acceptor.abort_on_drop()),
        });
        Ok(Arc::new(SimHost::new(self, host, options.node, address)))
    }

    fn name(&self) -> &'static str {
        "sim"
    }
}
