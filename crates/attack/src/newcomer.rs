//! A legitimate newcomer: comes to a port on a new connection, proves who it is and does a real thing there.
//!
//! It comes again and again until its standard input ends, and prints one line a visit: `served MILLISECONDS` or
//! `refused MILLISECONDS REASON`.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::target::{Kind, Port, Target};
use crate::wire::fabric::Seek;
use crate::wire::grpc::{Windows, framed};
use crate::wire::link::{self, Link};
use crate::wire::protobuf::{Message, field};
use crate::wire::{dial, random, tls};

/// From one visit to the next.
const PAUSE: Duration = Duration::from_millis(300);
/// A visit that takes longer is given up.
const VISIT_TIME_MAX: Duration = Duration::from_secs(5);

/// Visits a port until the standard input ends.
///
/// # Errors
/// The standard output is closed.
pub async fn visit(target: &Target, kind: Kind, organization: usize) -> io::Result<()> {
    let mut input = tokio::io::stdin();
    let mut ended = [0; 1];
    loop {
        let start = Instant::now();
        let served = tokio::time::timeout(VISIT_TIME_MAX, once(target, kind, organization)).await;
        let millis = start.elapsed().as_millis();
        let line = match served {
            Ok(Ok(())) => format!("served {millis}"),
            Ok(Err(error)) => format!("refused {millis} {}", error.to_string().replace('\n', " ")),
            Err(_) => format!("refused {millis} it took longer than {} s", VISIT_TIME_MAX.as_secs()),
        };
        let mut output = io::stdout().lock();
        writeln!(output, "{line}")?;
        output.flush()?;
        drop(output);
        if tokio::time::timeout(PAUSE, input.read(&mut ended)).await.is_ok() {
            return Ok(());
        }
    }
}

/// One visit.
///
/// # Errors
/// The port does not serve.
pub async fn once(target: &Target, kind: Kind, organization: usize) -> io::Result<()> {
    let port = target.port(kind)?;
    match kind {
        Kind::Gateway => gateway(target, &port, organization).await,
        Kind::Orderer => orderer(target, &port, organization).await,
        Kind::Blocks => blocks(target, &port, organization).await,
        Kind::Intake | Kind::Others => hello(target, &port, organization).await,
        Kind::Compute | Kind::Memory | Kind::Storage => {
            // The first storage node and compute node are the first organisation's, memory nodes are of all.
            let organization = if kind == Kind::Memory { organization } else { 1 };
            target.caller(&port, &target.credential(kind, organization)?).await.map(drop)
        }
        Kind::Among => among(target).await,
        Kind::Metrics => metrics(&port).await,
        Kind::Kv => kv(target, &port).await,
    }
}

/// A transaction is run, and blocks are followed.
async fn gateway(target: &Target, port: &Port, organization: usize) -> io::Result<()> {
    let user = target.user(organization)?;
    let channel = target.grpc(port, Windows::default()).await?;
    let proposal = user.proposal(target.channel(), "basic", &["AssetExists", "a newcomer's"]);
    let answer = proposal.evaluate(&channel).await?;
    if answer != b"false" {
        return Err(io::Error::other(format!("an answer that is no answer: {}", String::from_utf8_lossy(&answer))));
    }
    let mut stream = channel.open("/protos.Deliver/DeliverFiltered", &[]).await?;
    stream.requests.send_data(framed(&user.seek(target.channel(), Seek::Newest)), false).map_err(io::Error::other)?;
    let (message, ..) = stream.first().await?;
    // A filtered block, and not the status that refuses.
    field(&message, 3).map(|_| ()).ok_or_else(|| io::Error::other("no block"))
}

async fn orderer(target: &Target, port: &Port, organization: usize) -> io::Result<()> {
    let user = target.user(organization)?;
    let channel = target.grpc(port, Windows::default()).await?;
    let mut stream = channel.open("/orderer.AtomicBroadcast/Deliver", &[]).await?;
    stream.requests.send_data(framed(&user.seek(target.channel(), Seek::Newest)), false).map_err(io::Error::other)?;
    let (message, ..) = stream.first().await?;
    field(&message, 2).map(|_| ()).ok_or_else(|| io::Error::other("no block"))
}

async fn blocks(target: &Target, port: &Port, organization: usize) -> io::Result<()> {
    let identity = target.node_tls(&format!("compute-org{organization}"))?;
    let mut link = Link::connect(&port.address, &tls::config(Some(&identity), &[])?).await?;
    link.send(&link::request_blocks(target.channel(), 0)).await?;
    let block = link.receive().await?;
    if block.first().is_none_or(|byte| *byte == 0) {
        return Err(io::Error::other(format!("no block: {}", String::from_utf8_lossy(&block))));
    }
    Ok(())
}

/// A gateway says hello to a peer of another organisation, or to the orderer.
async fn hello(target: &Target, port: &Port, organization: usize) -> io::Result<()> {
    let identity = target.node_tls(&format!("gateway-org{organization}"))?;
    let mut link = Link::connect(&port.address, &tls::config(Some(&identity), &[])?).await?;
    link.send(&link::hello()).await?;
    let answer = link.receive().await?;
    // Kind 2 of calls over links is a reply.
    if answer.first() == Some(&2) { Ok(()) } else { Err(io::Error::other("no reply to a hello")) }
}

/// Whichever node is the primary has to serve.
async fn among(target: &Target) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for (port, credential) in target.among() {
        match target.caller(&port, &credential).await {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn metrics(port: &Port) -> io::Result<()> {
    let page = get(&port.address, "/metrics").await?;
    if page.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(io::Error::other(page)) }
}

/// A page over HTTP, head and body.
///
/// # Errors
/// The port does not answer.
pub async fn get(address: &str, path: &str) -> io::Result<String> {
    let mut socket = dial(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut page = Vec::new();
    socket.read_to_end(&mut page).await?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// A key is put and read again.
async fn kv(target: &Target, port: &Port) -> io::Result<()> {
    let channel = target.grpc(port, Windows::default()).await?;
    let value = hex::encode(random::<8>());
    let put = Message::new().bytes(1, "newcomer").bytes(2, &value).done();
    channel.call_ok("/heddle.kv.KeyValues/Put", &put).await?;
    let answer = channel.call_ok("/heddle.kv.KeyValues/Get", &Message::new().bytes(1, "newcomer").done()).await?;
    let found = field(&answer, 1).and_then(|versioned| field(versioned, 1));
    if found == Some(value.as_bytes()) { Ok(()) } else { Err(io::Error::other("another value than was put")) }
}
