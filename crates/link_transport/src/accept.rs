//! Accepts connections and runs their handshakes.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use base::admission::{Admission, AdmissionLimits};
use base::rt::AbortOnDrop;
use base::rt::channel::{Closed, Receiver, Sender, TrySendError, bounded};
use base::rt::net::{BACKLOG_LINKS_MAX, Link, TransportListener};
use tokio::net::{TcpListener, TcpStream};

use crate::socket::{tune, within};

/// Maximum of connections at one listener that are not links yet.
pub(super) const UNAUTHENTICATED_MAX: usize = 512;
/// Maximum of them from one address: a host may run many processes.
const UNAUTHENTICATED_PER_ADDRESS_MAX: usize = 256;

/// A connection that is not a link after this time is dropped.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);

/// The pause after `accept` fails, which it does when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listener and the task that runs its handshakes.
pub(super) struct AcceptLoop {
    address: String,
    backlog: Receiver<Link>,
    _task: AbortOnDrop<()>,
}

impl AcceptLoop {
    pub(super) async fn start<F, S>(address: &str, shake: S) -> io::Result<AcceptLoop>
    where
        S: Fn(TcpStream) -> F + Send + 'static,
        F: Future<Output = io::Result<Link>> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?.to_string();
        let (links, backlog) = bounded(BACKLOG_LINKS_MAX);
        let task = base::rt::spawn(accept(listener, links, shake)).abort_on_drop();
        Ok(AcceptLoop { address, backlog, _task: task })
    }
}

pub(super) async fn accept<F, S>(listener: TcpListener, links: Sender<Link>, shake: S)
where
    S: Fn(TcpStream) -> F,
    F: Future<Output = io::Result<Link>> + Send + 'static,
{
    let admission = Admission::new(AdmissionLimits {
        unauthenticated_max: UNAUTHENTICATED_MAX,
        unauthenticated_per_address_max: UNAUTHENTICATED_PER_ADDRESS_MAX,
        handshake_time_max: HANDSHAKE_TIME_MAX,
        // The code that serves a link accounts for it.
        ..AdmissionLimits::in_proportion(UNAUTHENTICATED_MAX, 0, 1)
    });
    loop {
        let (socket, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                base::rt::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if tune(&socket).is_err() {
            continue;
        }
        let stranger = admission.admit(address.ip());
        let (attempt, links) = (within(HANDSHAKE_TIME_MAX, shake(socket)), links.clone());
        base::rt::spawn(async move {
            let shaken = stranger.displaced().run_until_cancelled(attempt).await;
            drop(stranger);
            match shaken {
                Some(Ok(link)) => {
                    if let Err(TrySendError::Full(_)) = links.try_send(link) {
                        tracing::warn!(%address, "closed a link: {BACKLOG_LINKS_MAX} wait to be accepted");
                    }
                }
                Some(Err(error)) => tracing::debug!(%address, %error, "a connection did not become a link"),
                None => tracing::debug!(%address, "a connection made room for newer ones"),
            }
        });
    }
}

impl TransportListener for AcceptLoop {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Link, Closed>> {
        self.backlog.poll_recv(cx).map(|link| link.ok_or(Closed))
    }

    fn address(&self) -> String {
        self.address.clone()
    }
}
