//! The transports of a process, by the schemes of addresses.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use identity::Revocations;
use identity::issue::TlsIdentity;
use ledger::{Block, ChannelConfig};
use rma::links::RmaLinks;
use rma::shm::Shm;
use rma::tcp::{Tcp, TcpOptions};
use rma::{Credential, Endpoint, Error, Fabric, Host, HostOptions, Token};

use super::file::{GENESIS, Secret, TRUST};
use crate::network::NodeError;
use crate::transport::{self, Organisation, TlsTransport};

const SHM: &str = "shm";
const TCP: &str = "tcp";

/// The providers of remote memory access, told apart by the schemes of addresses.
pub(crate) struct Fabrics {
    shm: Shm,
    tcp: Tcp,
}

impl Fabrics {
    pub(crate) fn new() -> Fabrics {
        Fabrics { shm: Shm::default(), tcp: Tcp::default() }
    }

    fn of<'a>(&self, address: &'a str) -> Result<(&dyn Fabric, &'a str), Error> {
        match address.split_once(':') {
            Some((SHM, rest)) => Ok((&self.shm, rest)),
            // A host within this process.
            Some(("local", _)) => Ok((&self.shm, address)),
            Some((TCP, rest)) => Ok((&self.tcp, rest)),
            _ => {
                let reason = "its scheme is neither shm nor tcp".to_owned();
                Err(Error::Unreachable { address: address.to_owned(), reason })
            }
        }
    }
}

#[async_trait]
impl Fabric for Fabrics {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let (fabric, rest) = self.of(address)?;
        fabric.connect(rest, credential).await
    }

    async fn host(&self, address: &str, options: HostOptions) -> Result<Arc<dyn Host>, Error> {
        let (fabric, rest) = self.of(address)?;
        fabric.host(rest, options).await
    }

    fn provider(&self) -> &'static str {
        "shm and tcp"
    }
}

/// Makes links within the organisation known: this process proves itself with `own`, and lets those in who bear one of
/// `accepted`.
pub(crate) fn register(name: &str, own: Option<&Secret>, accepted: &BTreeMap<String, Secret>) {
    let accepted: BTreeMap<String, Token> =
        accepted.iter().map(|(name, secret)| (name.clone(), secret.token())).collect();
    register_for(name, own, Arc::new(move |name| accepted.get(name).cloned()));
}

/// The same for a group whose members all bear one token, and of which there may be more one day.
pub(crate) fn register_group(name: &str, token: &Secret) {
    let shared = token.token();
    register_for(name, Some(token), Arc::new(move |_| Some(shared.clone())));
}

fn register_for(name: &str, own: Option<&Secret>, tokens: rma::Tokens) {
    // Who only answers connects to nobody; its own token opens no door.
    let token = own.map_or_else(Token::random, Secret::token);
    let credential = Credential { name: name.to_owned(), token };
    // Links wait for long: whoever waits sleeps at once.
    let tcp = Tcp::new(TcpOptions { spin: Duration::ZERO, ..TcpOptions::default() });
    let fabrics: [(&str, Arc<dyn Fabric>); 2] = [(SHM, Arc::new(Shm::default())), (TCP, Arc::new(tcp))];
    for (scheme, fabric) in fabrics {
        let links = RmaLinks::new(fabric, credential.clone(), Arc::clone(&tokens));
        base::rt::net::register(scheme, Arc::new(links));
    }
}

/// What the organisations of the channel took back by its configuration, where the process has that.
fn revocations(folder: &Path) -> Result<Revocations, NodeError> {
    let path = folder.join(GENESIS);
    if !path.exists() {
        return Ok(Revocations::default());
    }
    let bytes = std::fs::read(&path).map_err(NodeError::file("reading", &path))?;
    let config = ChannelConfig::from_block(&Block::parse(&bytes.into())?)?;
    Ok(config.msps().msps().fold(Revocations::default(), |all, msp| all.and(msp.all_revocations().clone())))
}

/// Makes links between organisations known: this process shows `identity` and trusts the authorities below `folder`.
pub(crate) fn register_tls(folder: &Path, identity: &TlsIdentity) -> Result<(), NodeError> {
    let trust = folder.join(TRUST);
    let mut organisations = Vec::new();
    for entry in std::fs::read_dir(&trust).map_err(NodeError::file("reading", &trust))?.flatten() {
        let path = entry.path();
        // What a loss of power left of a file that was being written.
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let roots_pem = std::fs::read(&path).map_err(NodeError::file("reading", &path))?;
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        organisations.push(Organisation { name, roots_pem });
    }
    let own = transport::TlsIdentity {
        certificate_pem: identity.certificate_pem.to_vec(),
        key_pem: identity.key_pem.to_vec(),
    };
    let tls = TlsTransport::new(&own, &organisations).map_err(NodeError::LinkTls)?.revoking(&revocations(folder)?);
    base::rt::net::register(transport::TLS_SCHEME, Arc::new(tls));
    Ok(())
}
