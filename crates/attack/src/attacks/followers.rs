//! Attacks on the links between compute nodes: a gateway that joins as a follower, and a follower that returns false
//! results.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{Attack, AttackContext, Breach, attack};
use crate::target::{TargetKind, TargetPort};
use crate::wire::grpc::FlowControlWindows;
use crate::wire::rma::{self, Credential, RmaClient};

const PEER_NODE_PORTS: &[TargetKind] = &[TargetKind::PeerNodes];

pub fn attacks() -> Vec<Attack> {
    vec![
        attack!("gateway-joins", "a gateway's token where compute nodes meet", PEER_NODE_PORTS, 5.0 "connections", gateway),
        attack!("storage-joins", "a memory owner's token where compute nodes meet", PEER_NODE_PORTS, 5.0 "connections", owner),
        attack!("lying-follower", "a compute node calls every transaction invalid", PEER_NODE_PORTS, 10.0 "transactions", liar),
    ]
}

/// How long a primary may take to greet.
const GREETING_TIME_MAX: Duration = Duration::from_secs(2);
/// The most wrong verdicts that a lying follower may give before the primary ignores it.
const LIES_MAX: u64 = 64;

async fn gateway(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let credential = scene.target.credential(TargetKind::Compute, 1)?;
    join_as(scene, credential, "a gateway").await
}

async fn owner(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let credential = scene.target.credential(TargetKind::Memory, 1)?;
    join_as(scene, credential, "an owner of memory").await
}

/// Joins at each node of the first organisation; the one that listens is the primary.
async fn join_as(scene: Arc<AttackContext>, credential: Credential, who: &str) -> io::Result<Breach> {
    let mut breach = None;
    while scene.pace.take(1.0).await {
        for (port, _) in scene.target.peer_node_ports() {
            let joined = tokio::time::timeout(GREETING_TIME_MAX, join(&scene, &port, &credential)).await;
            if joined.is_ok_and(|joined| joined.is_ok()) {
                breach = Some(format!("{who} was admitted among the compute nodes and notified of every write"));
            }
        }
    }
    Ok(breach)
}

/// Connects, waits for the epoch, sends a join and waits for the welcome.
async fn join(scene: &AttackContext, port: &TargetPort, credential: &Credential) -> io::Result<RmaClient> {
    let mut caller = scene.target.caller(port, credential).await?;
    scene.pace.connected();
    if caller.link_message().await?.len() != 8 {
        return Err(io::Error::other("no epoch"));
    }
    caller.send_link(&[&[JOIN], b"HDLRFOLL".as_slice(), &rma::only(FOLLOWER_VERSION)].concat()).await?;
    let welcome = caller.link_message().await?;
    // A primary that speaks other versions chooses version 0.
    if welcome.starts_with(&[WELCOME, FOLLOWER_VERSION as u8]) {
        Ok(caller)
    } else {
        Err(io::Error::other("no welcome"))
    }
}

const FOLLOWER_VERSION: u32 = 2;
const JOIN: u8 = 1;
const WELCOME: u8 = 0x81;
const UPDATE: u8 = 0x83;
const IN_USE: u8 = 0x84;
const WORK: u8 = 0x85;
/// A work item begins with the rules, the block and the index of the first transaction.
const WORK_ITEM_HEADER_BYTES: usize = 44;

/// A compute node, which is an insider, answers for every transaction of its work items that the creator has not signed it.
/// Meanwhile an honest client submits transactions and counts those that the primary calls invalid.
async fn liar(scene: Arc<AttackContext>) -> io::Result<Breach> {
    let lying = tokio::spawn(lie(Arc::clone(&scene)));
    let (user, port) = (scene.target.user(1)?, scene.target.port(TargetKind::Gateway)?);
    let gateway = scene.target.grpc(&port, FlowControlWindows::default()).await?;
    let (mut invalid, mut number) = (0, 0);
    while scene.pace.take(1.0).await {
        number += 1;
        let id = format!("liar-{}-{number}", std::process::id());
        let proposal = user.proposal(scene.target.channel(), "basic", &["CreateAsset", &id, "red", "1", "me", "1"]);
        // Transactions that fail for another reason were not lied about.
        invalid += u64::from(proposal.commit(&gateway, &user).await.is_ok_and(|code| code == BAD_CREATOR_SIGNATURE));
    }
    lying.abort();
    let reason = format!("{invalid} valid transactions were called invalid, because a follower had said so");
    Ok((invalid > LIES_MAX.min(number / 2)).then_some(reason))
}

const BAD_CREATOR_SIGNATURE: u64 = 4;

async fn lie(scene: Arc<AttackContext>) {
    loop {
        for (port, credential) in scene.target.peer_node_ports() {
            if let Ok(Ok(caller)) = tokio::time::timeout(GREETING_TIME_MAX, join(&scene, &port, &credential)).await {
                drop(answer_falsely(&scene, caller).await);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn answer_falsely(scene: &AttackContext, mut caller: RmaClient) -> io::Result<()> {
    loop {
        let message = caller.link_message().await?;
        match message.first() {
            Some(&UPDATE) => {
                let number = message.get(1..9).ok_or(io::ErrorKind::InvalidData)?;
                let oldest = message.get(17..25).ok_or(io::ErrorKind::InvalidData)?;
                // Reports no load, so that it gets all the work.
                let taken = [&[2], number, &1u64.to_le_bytes(), oldest, &[0]].concat();
                caller.send_link(&taken).await?;
            }
            Some(&IN_USE) => {
                let number = message.get(1..9).ok_or(io::ErrorKind::InvalidData)?;
                let none = vec![0; (message.len() - 9) / 16];
                caller.send_link(&[&[3], number, &none].concat()).await?;
            }
            Some(&WORK) => {
                let (number, rest) = message[1..].split_at_checked(8).ok_or(io::ErrorKind::InvalidData)?;
                let (height, piece) = rest.split_at_checked(8).ok_or(io::ErrorKind::InvalidData)?;
                let (head, mut envelopes) =
                    piece.split_at_checked(WORK_ITEM_HEADER_BYTES).ok_or(io::ErrorKind::InvalidData)?;
                let mut words = Vec::new();
                while let Some((length, rest)) = envelopes.split_at_checked(4) {
                    let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
                    envelopes = rest.get(length..).ok_or(io::ErrorKind::InvalidData)?;
                    words.push(0);
                }
                scene.pace.sent(piece.len());
                caller.send_link(&[&[6], number, height, head, &words].concat()).await?;
            }
            _ => {}
        }
    }
}
