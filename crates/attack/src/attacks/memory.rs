//! Attacks on memory nodes: strangers at their port, a tenant's malformed frames, and a tenant's use of another
//! tenant's capabilities.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Semaphore;

use super::{Attack, AttackContext, Breach, CONNECT_TIME_MAX, attack, hold, unless_stalled};
use crate::target::TargetKind;
use crate::wire::rma::{self, GrantedSection, PoolOwner, READ, RmaClient, Verb, WRITE};
use crate::wire::{dial, dial_narrow, random, tls};

const MEMORY: &[TargetKind] = &[TargetKind::Memory];
const ACCESS: &[TargetKind] = &[TargetKind::Compute, TargetKind::PeerNodes, TargetKind::Memory, TargetKind::Storage];

pub fn attacks() -> Vec<Attack> {
    vec![
        attack!("other-version", "a hello of version 9", ACCESS, 1500.0 "connections", other_version),
        attack!("half-hello", "half a hello, then nothing", ACCESS, 300.0 "connections", half_hello),
        attack!("connections-of-a-tenant", "a tenant takes every place", MEMORY, 900.0 "connections", many),
        attack!("overflow", "a write whose end overflows", MEMORY, 20.0 "writes", overflow),
        attack!("forged-frames", "verbs, messages and credits that cannot be", MEMORY, 200.0 "frames", forged),
        attack!("pipelined-reads", "always has reads outstanding", MEMORY, 4000.0 "reads of 64 KiB", reads),
        attack!("deaf-reader", "asks for 1 GiB and reads nothing", MEMORY, 2000.0 "reads of 64 KiB", deaf),
        attack!("unread-messages", "64 MiB of a message of 128, again and again", MEMORY, 100.0 "MiB", unread),
        attack!("anothers-capability", "a capability on another tenant's connection", MEMORY, 20.0 "reads", anothers),
        attack!("revoked-capability", "a capability after its memory was given back", MEMORY, 20.0 "reads", revoked),
    ]
}

/// Bytes of a section that an attack takes.
const SECTION_BYTES: u64 = 16 << 20;
const CHUNK_BYTES: u64 = 64 << 10;

/// A connection of an organisation that has memory on this node.
async fn tenant(scene: &AttackContext, organization: usize) -> io::Result<RmaClient> {
    let credential = scene.target.credential(TargetKind::Memory, organization)?;
    let connecting = scene.target.caller(&scene.port, &credential);
    let caller = tokio::time::timeout(CONNECT_TIME_MAX, connecting).await??;
    scene.pace.connected();
    Ok(caller)
}

async fn hello_bytes(scene: &AttackContext, bytes: &[u8]) -> io::Result<Box<dyn rma::ByteStream>> {
    let socket = dial(&scene.port.address).await?;
    scene.pace.connected();
    let organization = if scene.port.kind == TargetKind::Memory { scene.insider() } else { 1 };
    let credential = scene.target.credential(scene.port.kind, organization)?;
    let mut stream: Box<dyn rma::ByteStream> = match scene.target.memory_tls(&credential)? {
        Some(config) => Box::new(tls::connect(&config, socket).await?),
        None => Box::new(socket),
    };
    stream.write_all(bytes).await?;
    scene.pace.sent(bytes.len());
    Ok(stream)
}

async fn other_version(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene
        .each(6_000, |scene, _| async move {
            let stream = hello_bytes(&scene, &rma::hello(9, "org1", &random())).await?;
            hold(stream).await
        })
        .await
}

async fn half_hello(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene
        .each(2_000, |scene, _| async move {
            let stream = hello_bytes(&scene, &rma::hello(rma::VERSION, "org1", &random())[..50]).await?;
            hold(stream).await
        })
        .await
}

async fn many(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene
        .each(5_000, |scene, _| async move {
            let caller = tenant(&scene, scene.insider()).await?;
            hold(caller).await
        })
        .await
}

async fn overflow(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let offsets = [u64::MAX - 7, u64::MAX, 1 << 63, u64::MAX - (1 << 20) + 1];
    scene
        .each(50, move |scene, number| async move {
            let mut caller = tenant(&scene, scene.insider()).await?;
            let offset = offsets[number as usize % offsets.len()];
            let verb = Verb::range(&[0; 40], offset, 1 << 20);
            // In two pieces, so that the second arrives after the first.
            caller.post(WRITE, &verb, &vec![7; 512 << 10]).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
            caller.write(&vec![7; 512 << 10]).await?;
            scene.pace.sent(1 << 20);
            caller.reply().await.map(|_| ())
        })
        .await
}

async fn forged(scene: Arc<AttackContext>) -> io::Result<Breach> {
    scene
        .each(100, |scene, number| async move {
            let mut caller = tenant(&scene, scene.insider()).await?;
            let lengths = [0, 1, 7, 8, 9, 1 << 20, 64 << 20, (64 << 20) + 1, 1 << 40, u64::MAX];
            let kinds = [0, READ, WRITE, 3, rma::COMPARE_SWAP, rma::FETCH_ADD, rma::MESSAGE, 7, 8, 0x81, 0x82, 0xff];
            let length = lengths[number as usize % lengths.len()];
            let kind = kinds[number as usize / lengths.len() % kinds.len()];
            let capability: [u8; 40] = random();
            let offset = [0, u64::MAX, 1 << 63, 3][number as usize % 4];
            let frame = Verb::range(&capability, offset, length).frame(kind, number as u32);
            caller.write(&frame).await?;
            caller.write(&[0x5a; 4096]).await?;
            scene.pace.sent(frame.len() + 4096);
            let answer = tokio::time::timeout(Duration::from_secs(1), caller.receive()).await?;
            answer.map(|_| ())
        })
        .await
}

/// A section of the attackers' organisation. If its memory is left to it, a section that does not exist: the verbs are
/// refused, at their usual cost.
async fn section(scene: &AttackContext, owner: &mut PoolOwner) -> io::Result<GrantedSection> {
    if scene.takes_memory {
        owner.grant(SECTION_BYTES).await
    } else {
        Ok(GrantedSection { number: 0, capability: [0; 40] })
    }
}

/// Newer than any epoch of the organisation's own compute nodes and of earlier attacks, whose memory this epoch takes over:
/// a memory node serves one holder per epoch. The attackers' organisation does not have to work afterwards.
fn newest_epoch() -> io::Result<u64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(io::Error::other)?;
    u64::try_from(now.as_millis()).map_err(io::Error::other)
}

async fn owner(scene: &AttackContext, organization: usize) -> io::Result<PoolOwner> {
    let caller = tenant(scene, organization).await?;
    let mut owner = PoolOwner::hello(caller, scene.target.section_bytes()).await?;
    if scene.takes_memory {
        owner.fence(newest_epoch()?).await?;
    }
    Ok(owner)
}

async fn reads(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let capability = readable(&scene).await?;
    // When the node ends a connection, or stops taking verbs from it, the attack opens the next one.
    while !matches!(read_ahead(&scene, &capability).await, Ok(())) {
        if !scene.pace.take(1.0).await {
            break;
        }
    }
    Ok(None)
}

/// Takes replies only while enough further reads are posted, so that the node's queue of replies never runs empty.
async fn read_ahead(scene: &Arc<AttackContext>, capability: &[u8; 40]) -> io::Result<()> {
    let credential = scene.target.credential(TargetKind::Memory, scene.insider())?;
    let tls = scene.target.memory_tls(&credential)?;
    let caller = RmaClient::over(dial_narrow(&scene.port.address).await?, tls.as_ref(), &credential).await?;
    scene.pace.connected();
    let (mut reader, mut writer) = tokio::io::split(caller.into_stream());
    let surplus = Arc::new(Semaphore::new(0));
    let (posted, counted) = (Arc::clone(&surplus), Arc::clone(scene));
    let mut reading = tokio::task::JoinSet::new();
    reading.spawn(async move {
        let mut head = [0; 16];
        let mut bytes = vec![0; CHUNK_BYTES as usize];
        while let Ok(permit) = posted.acquire().await {
            permit.forget();
            reader.read_exact(&mut head).await?;
            let length = u64::from_le_bytes(head[8..].try_into().expect("eight bytes")) as usize;
            let bytes = bytes.get_mut(..length).ok_or(io::ErrorKind::InvalidData)?;
            reader.read_exact(bytes).await?;
            counted.pace.sent(length + 16);
        }
        io::Result::Ok(())
    });
    let mut sequence = 0;
    while scene.pace.take(1.0).await {
        sequence += 1;
        unless_stalled(writer.write_all(&Verb::range(capability, 0, CHUNK_BYTES).frame(READ, sequence))).await?;
        if sequence > READS_AHEAD {
            surplus.add_permits(1);
        }
    }
    Ok(())
}

const READS_AHEAD: u32 = 256;

/// A readable capability.
async fn readable(scene: &AttackContext) -> io::Result<[u8; 40]> {
    let mut owner = owner(scene, scene.insider()).await?;
    let section = section(scene, &mut owner).await?;
    // The connection is kept, because its end may release the memory.
    tokio::spawn(hold(owner));
    Ok(section.capability)
}

async fn deaf(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let capability = readable(&scene).await?;
    scene
        .each(64, move |scene, number| async move {
            let mut caller = tenant(&scene, scene.insider()).await?;
            for sequence in 0..256 {
                if number > 0 && !scene.pace.take(1.0).await {
                    break;
                }
                caller.write(&Verb::range(&capability, 0, CHUNK_BYTES).frame(READ, sequence)).await?;
            }
            hold(caller).await
        })
        .await
}

async fn unread(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let scene = Arc::clone(&scene);
        tasks.spawn(async move {
            while scene.pace.take(1.0).await {
                let sent = async {
                    let mut caller = tenant(&scene, scene.insider()).await?;
                    caller.write(&message_head(128 << 20)).await?;
                    let piece = vec![0x5a; 1 << 20];
                    for _ in 0..64 {
                        if !scene.pace.take(1.0).await {
                            break;
                        }
                        unless_stalled(caller.write(&piece)).await?;
                        scene.pace.sent(piece.len());
                    }
                    scene.pace.over().await;
                    io::Result::Ok(())
                };
                // An owner's control messages are short; the node closes the connection on longer ones.
                drop(sent.await);
            }
        });
    }
    scene.pace.over().await;
    Ok(None)
}

fn message_head(length: u64) -> Vec<u8> {
    let mut bytes = vec![rma::MESSAGE, 0, 0, 0, 1, 0, 0, 0];
    bytes.extend(length.to_le_bytes());
    bytes
}

const SECRET: &[u8] = b"anothers secret!";

/// An organisation has memory and writes into it; the first organisation presents that organisation's capability.
async fn anothers(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let mut owner = owner(&scene, scene.insider()).await?;
    let given = section(&scene, &mut owner).await?;
    let range = Verb::range(&given.capability, 0, SECRET.len() as u64);
    owner.caller.post(WRITE, &range, SECRET).await?;
    owner.caller.reply().await?;
    let mut thief = tenant(&scene, 1).await?;
    let mut breach = None;
    while scene.pace.take(1.0).await {
        thief.post(READ, &range, &[]).await?;
        let reply = thief.reply().await?;
        scene.pace.sent(reply.bytes.len());
        if reply.status == 0 && reply.bytes == SECRET {
            breach = Some("org1 read the memory of another organisation".to_owned());
        }
        thief.post(WRITE, &range, b"overwritten !!!!").await?;
        if thief.reply().await?.status == 0 {
            breach = Some("org1 overwrote the memory of another organisation".to_owned());
        }
        owner.caller.post(WRITE, &range, SECRET).await?;
        owner.caller.reply().await?;
    }
    if scene.takes_memory {
        owner.release(given.number).await?;
    }
    Ok(breach)
}

/// Memory is released; its capability is presented on the same connection, and on a new one of the same name.
async fn revoked(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let mut owner = owner(&scene, scene.insider()).await?;
    let given = section(&scene, &mut owner).await?;
    if scene.takes_memory {
        owner.release(given.number).await?;
    }
    let range = Verb::range(&given.capability, 0, SECRET.len() as u64);
    let mut again = tenant(&scene, scene.insider()).await?;
    let mut breach = None;
    while scene.pace.take(1.0).await {
        for caller in [&mut owner.caller, &mut again] {
            caller.post(READ, &range, &[]).await?;
            if caller.reply().await?.status == 0 {
                breach = Some("a revoked capability was good".to_owned());
            }
        }
    }
    Ok(breach)
}
