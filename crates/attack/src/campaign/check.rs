//! Whether a network works: it commits, and says that it is healthy.

use std::io;
use std::time::{Duration, Instant};

use crate::newcomer;
use crate::target::{Kind, Target};
use crate::wire::grpc::Windows;

/// A network may take this long to commit again.
const PATIENCE: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(200);
/// Organisations that are asked; those behind them may be the attackers'.
const ORGANIZATIONS_MAX: usize = 2;

/// Prints a line for everything that does not work; true when everything does.
///
/// # Errors
/// The network's description cannot be read.
pub async fn check(target: &Target) -> io::Result<bool> {
    let mut failures = Vec::new();
    for organization in 1..=target.organizations().min(ORGANIZATIONS_MAX) {
        if let Err(error) = patiently(|| commit(target, organization)).await {
            failures.push(format!("org{organization} does not commit afterwards: {error}"));
        }
    }
    if target.organizations() == 0
        && let Err(error) = patiently(|| newcomer::once(target, Kind::Kv, 1)).await
    {
        failures.push(format!("the store does not work afterwards: {error}"));
    }
    for address in target.health() {
        // Of processes that are planned, the attackers' do not run.
        if target.is_planned() && tokio::net::TcpStream::connect(&address).await.is_err() {
            continue;
        }
        let page = tokio::time::timeout(Duration::from_secs(5), newcomer::get(&address, "/healthz")).await;
        match page {
            Ok(Ok(page)) if page.starts_with("HTTP/1.1 200") => {}
            Ok(Ok(page)) => {
                // What became of the attackers' own processes is their matter.
                let attackers = format!("org{}", target.organizations());
                let body = page.split_once("\r\n\r\n").map_or(page.as_str(), |(_, body)| body);
                let mut lines = body.lines().map(str::trim).filter(|line| !line.is_empty());
                if let Some(line) = lines.find(|line| !line.contains(&attackers)) {
                    failures.push(format!("{address} is not healthy: {line}"));
                }
            }
            Ok(Err(error)) => failures.push(format!("{address} says nothing of its health: {error}")),
            Err(_) => failures.push(format!("{address} says nothing of its health")),
        }
    }
    failures.iter().for_each(|failure| println!("{}", failure.replace('\n', " ")));
    Ok(failures.is_empty())
}

async fn patiently<F: Future<Output = io::Result<()>>>(work: impl Fn() -> F) -> io::Result<()> {
    let start = Instant::now();
    loop {
        let done = tokio::time::timeout(PATIENCE, work()).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match done {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > PATIENCE => return Err(error),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn commit(target: &Target, organization: usize) -> io::Result<()> {
    let port = target.ports(Kind::Gateway).into_iter().nth(organization - 1).ok_or(io::ErrorKind::NotFound)?;
    let (user, gateway) = (target.user(organization)?, target.grpc(&port, Windows::default()).await?);
    let id = format!("check-{}", hex::encode(crate::wire::random::<8>()));
    let proposal = user.proposal(target.channel(), "basic", &["CreateAsset", &id, "red", "1", "me", "1"]);
    match proposal.commit(&gateway, &user).await? {
        0 => Ok(()),
        code => Err(io::Error::other(format!("a transaction got the validation code {code}"))),
    }
}
