//! The transport and its listener.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use base::ErrorKind;
use base::rt::channel::Closed;
use base::rt::net::{BoxFuture, Link, Transport, TransportListener};

use crate::links::link::link;
use crate::{Credential, Endpoint, Error, Host, HostConfig, NodeId, Provider, TokenLookup};

/// A transport of links over a provider. See the module.
#[derive(Clone)]
pub struct RmaTransport {
    provider: Arc<dyn Provider>,
    credential: Credential,
    tokens: TokenLookup,
}

impl RmaTransport {
    /// Connects with `credential`, and accepts clients that know one of `tokens`.
    pub fn new(provider: Arc<dyn Provider>, credential: Credential, tokens: TokenLookup) -> RmaTransport {
        RmaTransport { provider, credential, tokens }
    }
}

impl Transport for RmaTransport {
    fn listen<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Box<dyn TransportListener>>> {
        Box::pin(async move {
            let options = HostConfig { node: NodeId(0), tokens: Arc::clone(&self.tokens) };
            let host = self.provider.host(rest, options).await.map_err(io_error)?;
            Ok(Box::new(RmaListener { host, next: None }) as Box<dyn TransportListener>)
        })
    }

    fn connect<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Link>> {
        Box::pin(async move { Ok(link(self.provider.connect(rest, &self.credential).await.map_err(io_error)?)) })
    }
}

fn io_error(error: Error) -> io::Error {
    let kind = match &error {
        Error::Unreachable { .. } => io::ErrorKind::ConnectionRefused,
        Error::Rejected(_) | Error::Version(_) => io::ErrorKind::PermissionDenied,
        Error::System { .. } if error.kind() == ErrorKind::Rejected => io::ErrorKind::AddrInUse,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

type NextEndpoint = Pin<Box<dyn Future<Output = Result<Endpoint, Error>> + Send>>;

struct RmaListener {
    host: Arc<dyn Host>,
    next: Option<NextEndpoint>,
}

impl TransportListener for RmaListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Link, Closed>> {
        let host = &self.host;
        let next = self.next.get_or_insert_with(|| {
            let host = Arc::clone(host);
            Box::pin(async move { host.accept().await })
        });
        let accepted = ready!(next.as_mut().poll(cx));
        self.next = None;
        Poll::Ready(accepted.map(link).map_err(|_| Closed))
    }

    fn address(&self) -> String {
        self.host.address()
    }
}
