//! Address schemes.

use std::sync::Arc;

use crate::tcp::TcpTransport;
use crate::tls::TlsTransport;

/// The scheme of [`TcpTransport`].
pub const TCP_SCHEME: &str = "tcp";
/// The scheme of [`TlsTransport`].
pub const TLS_SCHEME: &str = "tls";

/// Registers [`TcpTransport`] and, if this process has a certificate, `tls` for their schemes.
pub fn register(tls: Option<TlsTransport>) {
    base::rt::net::register(TCP_SCHEME, Arc::new(TcpTransport));
    if let Some(tls) = tls {
        base::rt::net::register(TLS_SCHEME, Arc::new(tls));
    }
}
