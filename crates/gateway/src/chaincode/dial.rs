//! The peer as the client of a chaincode that listens.
//!
//! 1. [`ChaincodeDialer::connect`] makes a TCP connection and, if the configuration says so, a TLS session in which the
//!    chaincode proves the name of its host, and the peer its own identity if the chaincode asks for one.
//! 2. It opens one stream. The connection lives as long as the stream's sending half.
//!
//! The dialer keeps nothing: `contract` decides when to connect again.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use contract::shim::{ChaincodeConnector, ChaincodeStream, MessageReceiver, MessageSender};

use super::framing::framed;
use crate::grpc::client::{ClientIdentity, ClientTls, ConnectTarget, GrpcConnection, RequestStream, ResponseStream};

const CONNECT: &str = "/protos.Chaincode/Connect";

/// Where a chaincode listens, and how the two sides prove who they are.
#[derive(Clone)]
pub struct DialConfig {
    /// Host and port.
    pub address: String,
    /// How long an attempt to connect may take.
    pub dial_timeout: Duration,
    /// Certificates of the authorities that the chaincode's certificate comes from, in PEM, and their revocation lists, if there are
    /// any; `None` without TLS.
    pub roots_pem: Option<Vec<u8>>,
    /// The peer's own identity, for a chaincode that asks for one. Without TLS it is not used.
    pub identity: Option<ClientIdentity>,
}

/// Opens streams to one chaincode.
pub struct ChaincodeDialer {
    target: ConnectTarget,
    identity: Option<ClientIdentity>,
    dial_timeout: Duration,
}

impl ChaincodeDialer {
    /// A dialer that has not dialed yet.
    pub fn new(config: DialConfig) -> ChaincodeDialer {
        let host = config.address.rsplit_once(':').map_or(config.address.as_str(), |(host, _)| host);
        // An IPv6 address stands in brackets before its port, and without them in a certificate.
        let server_name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = config.roots_pem.map(|roots_pem| ClientTls { roots_pem, server_name });
        ChaincodeDialer {
            target: ConnectTarget { address: config.address, tls },
            identity: config.identity,
            dial_timeout: config.dial_timeout,
        }
    }
}

#[async_trait]
impl ChaincodeConnector for ChaincodeDialer {
    async fn connect(&self) -> Result<ChaincodeStream, String> {
        let connection = GrpcConnection::connect_as(&self.target, self.identity.as_ref(), self.dial_timeout).await;
        let connection = connection.map_err(|error| error.to_string())?;
        let opened = connection.open(CONNECT, None).await;
        let (requests, responses) = opened.map_err(|status| status.to_string())?;
        Ok(ChaincodeStream {
            receiver: Box::new(DialedReceiver(responses)),
            sender: Box::new(DialedSender { requests, _connection: connection }),
        })
    }
}

struct DialedReceiver(ResponseStream);

#[async_trait]
impl MessageReceiver for DialedReceiver {
    async fn receive(&mut self) -> Result<Option<Bytes>, String> {
        self.0.next_bytes().await.map_err(|status| status.to_string())
    }
}

struct DialedSender {
    requests: RequestStream,
    _connection: GrpcConnection,
}

#[async_trait]
impl MessageSender for DialedSender {
    async fn send(&mut self, message: Bytes) -> Result<(), String> {
        self.requests.send_framed(framed(&message)).await.map_err(|status| status.to_string())
    }
}

impl Drop for DialedSender {
    fn drop(&mut self) {
        self.requests.close();
    }
}
