//! A port of the peer that chaincodes connect to.
//!
//! 1. The TLS handshake demands a client certificate from an authority that the operator has chosen
//!    ([`tls_for_chaincodes`]). Fabric's shims present one if they are started with `CORE_TLS_CLIENT_CERT_FILE` and
//!    `CORE_TLS_CLIENT_KEY_FILE`; they support no other proof.
//! 2. The chaincode calls `protos.ChaincodeSupport/Register` and sends REGISTER. If its certificate is for the package that it
//!    names, and the package is installed, the stream becomes the connection of its service.
//! 3. The call ends with the connection.
//!
//! A certificate is for the packages whose label, hash or id is its common name, so a chaincode cannot take the place of
//! another one. Fabric's peers bind a certificate to one package too, by a list: they issue the certificates themselves.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use base::admission::Principal;
use base::rt::channel::{Receiver, Sender, bounded};
use bytes::Bytes;
use contract::shim::{
    ChaincodeService, ChaincodeStream, MESSAGE_BYTES_MAX, MessageReceiver, MessageSender, Registration,
};
use futures_util::future::{Either, select};
use identity::{Certificate, Revocations};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

use super::framing::framed;
use super::revocation::UnrevokedClients;
use crate::grpc::connection::GrpcService;
use crate::grpc::{GrpcCode, GrpcStatus, IncomingCall, MessageStream, PresentedCertificate, Responder};

const REGISTER: &str = "/protos.ChaincodeSupport/Register";
/// Messages between the call and the connection, each way.
const STREAM_MESSAGES: usize = 1;

/// Finds the service of an installed package.
pub trait ChaincodeRegistrar: Send + Sync + 'static {
    /// The service; `None` if no such package is installed.
    fn service(&self, package_id: &str) -> Option<Arc<ChaincodeService>>;
}

/// The service of the port.
#[derive(Clone)]
pub struct ChaincodeListener {
    registrar: Arc<dyn ChaincodeRegistrar>,
}

impl ChaincodeListener {
    /// A listener for the packages of one peer.
    pub fn new(registrar: Arc<dyn ChaincodeRegistrar>) -> ChaincodeListener {
        ChaincodeListener { registrar }
    }
}

/// The only method of the port.
#[derive(Clone, Copy)]
pub struct RegisterMethod;

impl GrpcService for ChaincodeListener {
    type Method = RegisterMethod;

    fn method(&self, path: &str) -> Option<RegisterMethod> {
        (path == REGISTER).then_some(RegisterMethod)
    }

    fn message_bytes_max(&self, _method: RegisterMethod) -> usize {
        MESSAGE_BYTES_MAX
    }

    async fn call(&self, _method: RegisterMethod, call: IncomingCall) {
        // The TLS handshake has verified the certificate.
        call.caller().authenticate(|| Principal::new("chaincodes", "chaincode"));
        let registrar = self.registrar.clone();
        let certificate = call.caller().certificate().and_then(PresentedCertificate::der).cloned();
        call.streaming(async |messages, responder| {
            let (to_peer, received) = bounded(STREAM_MESSAGES);
            let (to_chaincode, queued) = bounded(STREAM_MESSAGES);
            let stream = ChaincodeStream {
                receiver: Box::new(CallReceiver(received)),
                sender: Box::new(CallSender(to_chaincode)),
            };
            let carried = pin!(carry(messages, responder, to_peer, queued));
            let served = pin!(serve(registrar.as_ref(), certificate, stream));
            match select(carried, served).await {
                Either::Left((status, _)) | Either::Right((status, _)) => status,
            }
        })
        .await;
    }
}

/// Step 2, until the connection ends.
async fn serve(registrar: &dyn ChaincodeRegistrar, certificate: Option<Bytes>, stream: ChaincodeStream) -> GrpcStatus {
    let refused = |problem: String| GrpcStatus::new(GrpcCode::FailedPrecondition, problem);
    let registration = match Registration::read(stream).await {
        Ok(registration) => registration,
        Err(error) => return refused(error.to_string()),
    };
    if let Err(problem) = check_certificate(certificate, &registration) {
        return GrpcStatus::new(GrpcCode::PermissionDenied, problem);
    }
    let Some(service) = registrar.service(registration.package_id()) else {
        return refused(format!("package {:?} is not installed at this peer; install it first", registration.shown()));
    };
    match service.attach(registration).await {
        Ok(connection) => {
            connection.ended().await;
            let reason = connection.closed().unwrap_or_default();
            GrpcStatus::new(GrpcCode::Unavailable, format!("the peer ended the connection: {reason}"))
        }
        Err(error) => refused(error.to_string()),
    }
}

/// Checks that the chaincode's certificate is for the package as which it registers.
fn check_certificate(certificate: Option<Bytes>, registration: &Registration) -> Result<(), String> {
    let der = certificate.ok_or("the chaincode has presented no certificate")?;
    let certificate = Certificate::from_der(der);
    let certificate = certificate.map_err(|error| format!("the chaincode's certificate cannot be used: {error}"))?;
    let name = certificate.common_name();
    match is_for(name, registration.package_id()) {
        true => Ok(()),
        false => Err(format!(
            "the chaincode's certificate is for {name:?}, not for package {:?}; issue one whose common name is the package's label \
             or hash",
            registration.shown()
        )),
    }
}

/// Whether a certificate with this common name is for this package. A common name has at most 64 characters, as many as a hash.
fn is_for(name: &str, package_id: &str) -> bool {
    let parts = package_id.rsplit_once(':');
    !name.is_empty() && (name == package_id || parts.is_some_and(|(label, hash)| name == label || name == hash))
}

/// Carries messages between the call and the connection, both ways, until either ends.
async fn carry(
    messages: &mut MessageStream,
    responder: &mut Responder,
    to_peer: Sender<Bytes>,
    mut queued: Receiver<Bytes>,
) -> GrpcStatus {
    let receiving = pin!(async {
        loop {
            match messages.next().await {
                Ok(Some(message)) => {
                    if to_peer.send(message).await.is_err() {
                        return std::future::pending().await;
                    }
                }
                Ok(None) => return GrpcStatus::ok(),
                Err(status) => return status,
            }
        }
    });
    let sending = pin!(async {
        while let Some(message) = queued.recv().await {
            if responder.send(framed(&message)).await.is_err() {
                break;
            }
        }
        // The connection says why it ended.
        std::future::pending().await
    });
    match select(receiving, sending).await {
        Either::Left((status, _)) | Either::Right((status, _)) => status,
    }
}

struct CallReceiver(Receiver<Bytes>);

#[async_trait]
impl MessageReceiver for CallReceiver {
    async fn receive(&mut self) -> Result<Option<Bytes>, String> {
        Ok(self.0.recv().await)
    }
}

struct CallSender(Sender<Bytes>);

#[async_trait]
impl MessageSender for CallSender {
    async fn send(&mut self, message: Bytes) -> Result<(), String> {
        self.0.send(message).await.map_err(|_| "the chaincode's call has ended".to_owned())
    }
}

/// TLS with the peer's certificate, for clients that have a certificate from one of the authorities in `roots_pem` and that is on no
/// revocation list in there.
///
/// # Errors
/// If a PEM or a list cannot be read, or the key does not match the certificate.
pub fn tls_for_chaincodes(
    certificate_pem: &[u8],
    key_pem: &[u8],
    roots_pem: &[u8],
) -> io::Result<Arc<rustls::ServerConfig>> {
    let wrong = |problem: String| io::Error::new(io::ErrorKind::InvalidInput, problem);
    let chain = CertificateDer::pem_slice_iter(certificate_pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| wrong(format!("the peer's certificate: {error}")))?;
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|error| wrong(format!("the peer's key: {error}")))?;
    let mut roots = rustls::RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(roots_pem) {
        let root = root.map_err(|error| wrong(format!("the authorities of chaincodes: {error}")))?;
        roots.add(root).map_err(|error| wrong(format!("the authorities of chaincodes: {error}")))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = verifier.build().map_err(|error| wrong(format!("the authorities of chaincodes: {error}")))?;
    let revocations = Revocations::of_pem(roots_pem);
    let revocations =
        revocations.map_err(|error| wrong(format!("the revocation lists of chaincodes' authorities: {error}")))?;
    let verifier = Arc::new(UnrevokedClients { verifier, revocations });
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| wrong(format!("the peer's key: {error}")))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_for_the_packages_that_its_common_name_names() {
        for (name, package_id, expected) in [
            ("assets_1.0", "assets_1.0:ab", true),
            ("ab", "assets_1.0:ab", true),
            ("assets_1.0:ab", "assets_1.0:ab", true),
            ("configured", "configured", true),
            ("assets", "assets_1.0:ab", false),
            ("assets_1.0:a", "assets_1.0:ab", false),
            ("assets_1.0", "assets_1.0", true),
            ("b", "a:b:c", false),
            ("a:b", "a:b:c", true),
            ("", "", false),
            ("", ":ab", false),
            ("", "assets_1.0:", false),
        ] {
            assert_eq!(is_for(name, package_id), expected, "{name:?} {package_id:?}");
        }
    }
}
