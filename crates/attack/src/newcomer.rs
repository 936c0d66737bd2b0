//! A legitimate newcomer: opens a new connection to a port, proves its identity and makes a real request.
//!
//! It repeats this visit until its standard input ends, and prints one line per visit: `served MILLISECONDS`, or
//! `refused MILLISECONDS REASON`.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::target::{TargetKind, TargetNetwork, TargetPort};
use crate::wire::fabric::SeekStart;
use crate::wire::grpc::{FlowControlWindows, framed};
use crate::wire::link::{self, LinkConnection};
use crate::wire::protobuf::{ProtobufMessage, field};
use crate::wire::{dial, random, tls};

/// Pause between two visits.
const PAUSE: Duration = Duration::from_millis(300);
/// The longest time of a visit.
const VISIT_TIME_MAX: Duration = Duration::from_secs(5);

/// Visits a port until the standard input ends.
///
/// # Errors
/// The standard output is closed.
pub async fn visit(target: &TargetNetwork, kind: TargetKind, organization: usize) -> io::Result<()> {
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
/// The port does not serve the newcomer.
pub async fn once(target: &TargetNetwork, kind: TargetKind, organization: usize) -> io::Result<()> {
    let port = target.port(kind)?;
    match kind {
        TargetKind::Gateway => gateway(target, &port, organization).await,
        TargetKind::Orderer => orderer(target, &port, organization).await,
        TargetKind::Blocks => blocks(target, &port, organization).await,
        TargetKind::Intake | TargetKind::Others => hello(target, &port, organization).await,
        TargetKind::Compute | TargetKind::Memory | TargetKind::Storage => {
            // The first storage node and compute node belong to the first organisation; all organisations use the memory
            // nodes.
            let organization = if kind == TargetKind::Memory { organization } else { 1 };
            target.caller(&port, &target.credential(kind, organization)?).await.map(drop)
        }
        TargetKind::PeerNodes => peer_nodes(target).await,
        TargetKind::Metrics => metrics(&port).await,
        TargetKind::Kv => kv(target, &port).await,
    }
}

/// Runs a transaction and follows blocks.
async fn gateway(target: &TargetNetwork, port: &TargetPort, organization: usize) -> io::Result<()> {
    let user = target.user(organization)?;
    let channel = target.grpc(port, FlowControlWindows::default()).await?;
    let proposal = user.proposal(target.channel(), "basic", &["AssetExists", "a newcomer's"]);
    let answer = proposal.evaluate(&channel).await?;
    if answer != b"false" {
        return Err(io::Error::other(format!(
            "the gateway's answer is malformed: {}",
            String::from_utf8_lossy(&answer)
        )));
    }
    let mut stream = channel.open("/protos.Deliver/DeliverFiltered", &[]).await?;
    stream
        .requests
        .send_data(framed(&user.seek(target.channel(), SeekStart::Newest)), false)
        .map_err(io::Error::other)?;
    let (message, ..) = stream.first().await?;
    // A filtered block, and not the status of a refusal.
    field(&message, 3).map(|_| ()).ok_or_else(|| io::Error::other("no block"))
}

async fn orderer(target: &TargetNetwork, port: &TargetPort, organization: usize) -> io::Result<()> {
    let user = target.user(organization)?;
    let channel = target.grpc(port, FlowControlWindows::default()).await?;
    let mut stream = channel.open("/orderer.AtomicBroadcast/Deliver", &[]).await?;
    stream
        .requests
        .send_data(framed(&user.seek(target.channel(), SeekStart::Newest)), false)
        .map_err(io::Error::other)?;
    let (message, ..) = stream.first().await?;
    field(&message, 2).map(|_| ()).ok_or_else(|| io::Error::other("no block"))
}

async fn blocks(target: &TargetNetwork, port: &TargetPort, organization: usize) -> io::Result<()> {
    let identity = target.node_tls(&format!("compute-org{organization}"))?;
    let mut link = LinkConnection::connect(&port.address, &tls::config(Some(&identity), &[])?).await?;
    link.send(&link::request_blocks(target.channel(), 0)).await?;
    let block = link.receive().await?;
    if block.first().is_none_or(|byte| *byte == 0) {
        return Err(io::Error::other(format!("no block: {}", String::from_utf8_lossy(&block))));
    }
    Ok(())
}

/// Sends the hello of a gateway to a peer of another organisation, or to the orderer.
async fn hello(target: &TargetNetwork, port: &TargetPort, organization: usize) -> io::Result<()> {
    let identity = target.node_tls(&format!("gateway-org{organization}"))?;
    let mut link = LinkConnection::connect(&port.address, &tls::config(Some(&identity), &[])?).await?;
    link.send(&link::hello()).await?;
    let answer = link.receive().await?;
    // Kind 2 of the frames of calls over links is a reply.
    if answer.first() == Some(&2) { Ok(()) } else { Err(io::Error::other("no reply to a hello")) }
}

/// The node that is currently primary has to serve.
async fn peer_nodes(target: &TargetNetwork) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for (port, credential) in target.peer_node_ports() {
        match target.caller(&port, &credential).await {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn metrics(port: &TargetPort) -> io::Result<()> {
    let page = get(&port.address, "/metrics").await?;
    if page.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(io::Error::other(page)) }
}

/// Gets a page over HTTP, head and body.
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

/// Puts a key and reads it back.
async fn kv(target: &TargetNetwork, port: &TargetPort) -> io::Result<()> {
    let channel = target.grpc(port, FlowControlWindows::default()).await?;
    let value = hex::encode(random::<8>());
    let put = ProtobufMessage::new().bytes(1, "newcomer").bytes(2, &value).done();
    channel.call_ok("/heddle.kv.KeyValues/Put", &put).await?;
    let answer =
        channel.call_ok("/heddle.kv.KeyValues/Get", &ProtobufMessage::new().bytes(1, "newcomer").done()).await?;
    let found = field(&answer, 1).and_then(|versioned| field(versioned, 1));
    if found == Some(value.as_bytes()) { Ok(()) } else { Err(io::Error::other("another value than was put")) }
}
