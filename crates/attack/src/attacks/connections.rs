//! Connections of strangers: many, silent, slow, with garbage, or closed at once.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Attack, AttackContext, Breach, attack, hold};
use crate::target::TargetKind;
use crate::wire::grpc::FlowControlWindows;
use crate::wire::{dial, random, tls};

/// Ports that strangers can reach.
const ALL: &[TargetKind] = &TargetKind::ALL;
/// Ports that use TLS from the first byte on.
const TLS: &[TargetKind] = &[
    TargetKind::Gateway,
    TargetKind::Orderer,
    TargetKind::Blocks,
    TargetKind::Intake,
    TargetKind::Others,
    TargetKind::Kv,
];
const GRPC: &[TargetKind] = &[TargetKind::Gateway, TargetKind::Orderer, TargetKind::Kv];

pub fn attacks() -> Vec<Attack> {
    vec![
        attack!("silent-sockets", "connects and says nothing", ALL, 400.0 "connections", silent),
        attack!("slow-handshake", "says a TLS hello byte by byte", TLS, 200.0 "connections", slow_handshake),
        attack!("idle-tls", "ends a TLS handshake and says nothing", TLS, 300.0 "connections", idle_tls),
        attack!("idle-http2", "answers pings and makes no call", GRPC, 300.0 "connections", idle_http2),
        attack!("slow-http", "says an HTTP request byte by byte", &[TargetKind::Metrics], 200.0 "connections", slow_http),
        attack!("garbage", "says random bytes", ALL, 100.0 "connections", garbage),
        Attack { is_alone: true, ..attack!("churn", "connects and leaves", ALL, 5000.0 "connections", churn) },
    ]
}

async fn silent(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene
        .each(2_500, |scene, _| async move {
            let socket = dial(&scene.port.address).await?;
            scene.pace.connected();
            hold(socket).await
        })
        .await
}

async fn slow_handshake(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let hello: Arc<[u8]> = tls::client_hello(&tls::config(None, &["h2"])?)?.into();
    scene
        .each(1_500, move |scene, _| {
            let hello = Arc::clone(&hello);
            async move { slowly(&scene, &hello).await }
        })
        .await
}

async fn slow_http(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene.each(1_500, |scene, _| async move { slowly(&scene, b"GET /metrics HTTP/1.1\r\nx: ").await }).await
}

/// Sends these bytes, one every third of a second, and then others.
async fn slowly(scene: &AttackContext, bytes: &[u8]) -> io::Result<()> {
    let mut socket = dial(&scene.port.address).await?;
    scene.pace.connected();
    for byte in bytes.iter().chain(std::iter::repeat(&b'x')) {
        socket.write_all(&[*byte]).await?;
        scene.pace.sent(1);
        tokio::time::sleep(Duration::from_millis(333)).await;
    }
    Ok(())
}

async fn idle_tls(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let config = tls::config(None, &["h2"])?;
    scene
        .each(1_500, move |scene, _| {
            let config = Arc::clone(&config);
            async move {
                let socket = dial(&scene.port.address).await?;
                scene.pace.connected();
                // If the port demands a certificate, the handshake fails, but only after its cost.
                let mut stream = tls::connect(&config, socket).await?;
                stream.read_u8().await?;
                hold(stream).await
            }
        })
        .await
}

async fn idle_http2(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene
        .each(1_500, |scene, _| async move {
            let channel = scene.grpc(FlowControlWindows::default()).await?;
            scene.pace.connected();
            hold(channel).await
        })
        .await
}

async fn garbage(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene
        .each(500, |scene, number| async move {
            let mut socket = dial(&scene.port.address).await?;
            scene.pace.connected();
            let mut bytes: [u8; 4096] = random();
            // Some begin like a valid connection.
            let beginning: &[u8] = match number % 6 {
                0 => b"",
                1 => &[0x16, 3, 1, 0x0f, 0xff],
                2 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                3 => b"HDLRMATC\x01\0\0\0\x01\0\0\0\xff\xff\xff\xff",
                4 => b"HDLLINK\x01",
                _ => b"GET /metrics HTTP/1.1\r\n",
            };
            bytes[..beginning.len()].copy_from_slice(beginning);
            socket.write_all(&bytes).await?;
            scene.pace.sent(bytes.len());
            socket.read_to_end(&mut Vec::new()).await.map(|_| ())
        })
        .await
}

async fn churn(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene
        .each(500, |scene, _| async move {
            let socket = dial(&scene.port.address).await?;
            scene.pace.connected();
            // A reset, so that no local port stays in TIME_WAIT.
            socket.set_zero_linger()
        })
        .await
}
