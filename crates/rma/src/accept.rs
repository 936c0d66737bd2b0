//! The accept loop of servers on a host, such as the two kinds of memory nodes.

use std::time::Duration;

use base::rt::sync::{Semaphore, SemaphorePermit};
use base::{ErrorKind, rt};

use crate::{Endpoint, Host};

/// A pause after a connection could not be accepted, for example because there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until the host has ended: `serve` gets each with its permit, `reject` each for which there is no
/// permit, already closed. Dropping the future loses no connection.
pub async fn accept_connections(
    host: &dyn Host,
    permits: &Semaphore,
    serve: impl Fn(Endpoint, SemaphorePermit) + Send + Sync,
    reject: impl Fn() + Send + Sync,
) {
    loop {
        match host.accept().await {
            Ok(endpoint) => match permits.try_acquire() {
                Some(permit) => serve(endpoint, permit),
                None => {
                    endpoint.close();
                    reject();
                }
            },
            Err(error) if error.kind() == ErrorKind::Closed => return,
            Err(error) => {
                tracing::warn!(address = host.address(), %error, "a connection could not be accepted");
                rt::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
