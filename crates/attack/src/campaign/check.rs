//! Checks that a network works: it commits transactions and reports that it is healthy.

use std::io;
use std::time::{Duration, Instant};

use crate::newcomer;
use crate::target::{TargetKind, TargetNetwork};
use crate::wire::grpc::FlowControlWindows;

/// How long a network may take to commit again.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(200);
/// Organisations that are checked; later ones may be the attackers'.
const ORGANIZATIONS_MAX: usize = 2;

/// Prints a line for everything that does not work; true if everything does.
///
/// # Errors
/// The network's description cannot be read.
pub async fn check(target: &TargetNetwork) -> io::Result<bool> {
    let mut failures = Vec::new();
    for organization in 1..=target.organizations().min(ORGANIZATIONS_MAX) {
        if let Err(error) = retry_until_timeout(|| commit(target, organization)).await {
            failures.push(format!("org{organization} does not commit afterwards: {error}"));
        }
    }
    if target.organizations() == 0
        && let Err(error) = retry_until_timeout(|| newcomer::once(target, TargetKind::Kv, 1)).await
    {
        failures.push(format!("the store does not work afterwards: {error}"));
    }
    for address in target.health() {
        // In a planned network, the attackers' processes do not run.
        if target.is_planned() && tokio::net::TcpStream::connect(&address).await.is_err() {
            continue;
        }
        let page = tokio::time::timeout(Duration::from_secs(5), newcomer::get(&address, "/healthz")).await;
        match page {
            Ok(Ok(page)) if page.starts_with("HTTP/1.1 200") => {}
            Ok(Ok(page)) => {
                // The state of the attackers' own processes does not count.
                let attackers = format!("org{}", target.organizations());
                let body = page.split_once("\r\n\r\n").map_or(page.as_str(), |(_, body)| body);
                let mut lines = body.lines().map(str::trim).filter(|line| !line.is_empty());
                if let Some(line) = lines.find(|line| !line.contains(&attackers)) {
                    failures.push(format!("{address} is not healthy: {line}"));
                }
            }
            Ok(Err(error)) => failures.push(format!("{address} does not report its health: {error}")),
            Err(_) => failures.push(format!("{address} does not report its health")),
        }
    }
    failures.iter().for_each(|failure| println!("{}", failure.replace('\n', " ")));
    Ok(failures.is_empty())
}

async fn retry_until_timeout<F: Future<Output = io::Result<()>>>(work: impl Fn() -> F) -> io::Result<()> {
    let start = Instant::now();
    loop {
        let done =
            tokio::time::timeout(COMMIT_TIMEOUT, work()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match done {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > COMMIT_TIMEOUT => return Err(error),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn commit(target: &TargetNetwork, organization: usize) -> io::Result<()> {
    let port = target.ports(TargetKind::Gateway).into_iter().nth(organization - 1).ok_or(io::ErrorKind::NotFound)?;
    let (user, gateway) = (target.user(organization)?, target.grpc(&port, FlowControlWindows::default()).await?);
    let id = format!("check-{}", hex::encode(crate::wire::random::<8>()));
    let proposal = user.proposal(target.channel(), "basic", &["CreateAsset", &id, "red", "1", "me", "1"]);
    match proposal.commit(&gateway, &user).await? {
        0 => Ok(()),
        code => Err(io::Error::other(format!("a transaction got the validation code {code}"))),
    }
}
