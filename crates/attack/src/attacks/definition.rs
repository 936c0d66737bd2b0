//! The form of an attack: its name, what counts as a breach, and helpers that attacks share.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::task::JoinHandle;

use crate::pace::{AttackPace, AttackReport};
use crate::target::{TargetKind, TargetNetwork, TargetPort};
use crate::wire::grpc::{FlowControlWindows, GrpcChannel};
use crate::wire::link::LinkConnection;

/// What an attack obtained that it must not have.
pub type Breach = Option<String>;

pub(super) type AttackFuture = Pin<Box<dyn Future<Output = io::Result<Breach>> + Send>>;

/// An attack.
pub struct Attack {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a few words.
    pub what: &'static str,
    /// The ports that it is run against, one at a time.
    pub kinds: &'static [TargetKind],
    /// The unit that is counted.
    pub unit: &'static str,
    /// Units a second.
    pub pace: f64,
    /// Whether it runs without other attacks. Churn is measured separately.
    pub is_alone: bool,
    pub(super) run: fn(Arc<AttackContext>) -> AttackFuture,
}

/// The network and the port that an attack runs against.
pub struct AttackContext {
    pub target: TargetNetwork,
    pub port: TargetPort,
    pub pace: AttackPace,
    /// Whether attacks may take memory from the attackers' own organisation, whose compute nodes then end.
    pub takes_memory: bool,
}

/// Runs an attack against its target.
///
/// # Errors
/// The attack cannot be made at all, for lack of a key or a port.
pub async fn run(attack: &Attack, scene: AttackContext) -> io::Result<AttackReport> {
    let scene = Arc::new(scene);
    // Tasks that still wait for an answer when the time is over are aborted.
    let over = async {
        scene.pace.over().await;
        tokio::time::sleep(AFTER_TIME_MAX).await;
    };
    let attempts = async {
        loop {
            match (attack.run)(Arc::clone(&scene)).await {
                // Beside other attacks the network may refuse for a while; the next attempt follows at the pace.
                Err(_) if !scene.takes_memory => {
                    if !scene.pace.take(1.0).await {
                        return Ok(None);
                    }
                }
                done => return done,
            }
        }
    };
    let breach = tokio::select! {
        breach = attempts => breach?,
        () = over => None,
    };
    let mut done = scene.pace.done(attack.name, attack.unit);
    done.breach = breach;
    Ok(done)
}

/// How long an attack may continue after its time, to see the effect of its last unit.
pub(super) const AFTER_TIME_MAX: Duration = Duration::from_secs(2);

/// Tasks that an attack runs at once; starting one more ends the oldest.
pub(super) const TASKS_MAX: usize = 6_000;

impl AttackContext {
    /// The organisation to which attackers belong, if they are members: the last one. Newcomers belong to the first or the
    /// second one.
    pub(super) fn insider(&self) -> usize {
        self.target.organizations().max(1)
    }

    /// A connection to a gRPC port.
    pub(super) async fn grpc(&self, windows: FlowControlWindows) -> io::Result<GrpcChannel> {
        tokio::time::timeout(CONNECT_TIME_MAX, self.target.grpc(&self.port, windows)).await?
    }

    /// A link over TLS.
    pub(super) async fn link(&self, config: &Arc<ClientConfig>) -> io::Result<LinkConnection> {
        tokio::time::timeout(CONNECT_TIME_MAX, LinkConnection::connect(&self.port.address, config)).await?
    }

    /// Begins each unit at its time. A unit keeps what it holds (a socket, a stream) until the attack is over, or until
    /// there are `held_max` younger units.
    pub(super) async fn each<F>(
        self: Arc<Self>,
        held_max: usize,
        unit: impl Fn(Arc<AttackContext>, u64) -> F,
    ) -> io::Result<Breach>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let mut held: VecDeque<JoinHandle<io::Result<()>>> = VecDeque::new();
        let mut number = 0;
        while self.pace.take(1.0).await {
            if held.len() >= held_max.min(TASKS_MAX)
                && let Some(oldest) = held.pop_front()
            {
                oldest.abort();
            }
            held.push_back(tokio::spawn(unit(Arc::clone(&self), number)));
            number += 1;
        }
        held.into_iter().for_each(|task| task.abort());
        Ok(None)
    }
}

/// An entry of the list.
macro_rules! attack {
    ($name:literal, $what:literal, $kinds:expr, $pace:literal $unit:literal, $run:expr) => {
        Attack {
            name: $name,
            what: $what,
            kinds: $kinds,
            unit: $unit,
            pace: $pace,
            is_alone: false,
            run: |scene| Box::pin($run(scene)),
        }
    };
}
pub(super) use attack;

/// A write that the server does not accept within this time is abandoned, so that a server that makes an attacker wait does
/// not slow the attack down.
pub(super) const STALL_MAX: Duration = Duration::from_millis(250);

/// An attempt to connect that takes longer is abandoned, for the same reason.
pub(super) const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);

/// Work that may stall.
pub(super) async fn unless_stalled<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(STALL_MAX, work).await?
}

/// Holds a value until the task is aborted.
pub(super) async fn hold<T>(held: T) -> io::Result<()> {
    std::future::pending::<()>().await;
    drop(held);
    Ok(())
}
