//! The attacks. Each is a program of its own: `attack run NAME`.
//!
//! An attack goes at a **pace**: so many units a second, which its list entry names. Its own pace is the one that broke Heddle
//! before there was admission control, or nearly so; a factor makes it slower where all of them share a processor. A unit is
//! begun at its time whatever became of those before, so that a server that lets an attacker wait does not slow him down.
//!
//! An attack **succeeds** when a newcomer at the same port is not served in time, a process dies or grows beyond its bound,
//! the network does not commit afterwards, or the attack gets hold of what it must not have: a [`Breach`].

mod amplification;
mod certificates;
mod connections;
mod followers;
mod frames;
mod memory;
mod messages;
mod streams;

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::task::JoinHandle;

use crate::pace::{Done, Pace};
use crate::target::{Kind, Port, Target};
use crate::wire::grpc::{Channel, Windows};
use crate::wire::link::Link;

/// What an attack got hold of that it must not have.
pub type Breach = Option<String>;

type Running = Pin<Box<dyn Future<Output = io::Result<Breach>> + Send>>;

/// An attack.
pub struct Attack {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a few words.
    pub what: &'static str,
    /// The ports that it is run against, each by itself.
    pub kinds: &'static [Kind],
    /// What is counted.
    pub unit: &'static str,
    /// Units a second.
    pub pace: f64,
    /// Whether it runs beside others. Churn is measured by itself.
    pub is_alone: bool,
    run: fn(Arc<Scene>) -> Running,
}

/// Where an attack takes place.
pub struct Scene {
    pub target: Target,
    pub port: Port,
    pub pace: Pace,
    /// Whether attacks may take memory from the attackers' own organisation, whose compute nodes then end.
    pub takes_memory: bool,
}

/// Every attack, in the order to be run.
pub fn all() -> Vec<Attack> {
    let mut all = Vec::new();
    all.extend(connections::attacks());
    all.extend(frames::attacks());
    all.extend(streams::attacks());
    all.extend(messages::attacks());
    all.extend(amplification::attacks());
    all.extend(certificates::attacks());
    all.extend(memory::attacks());
    all.extend(followers::attacks());
    all
}

/// Runs an attack where it is to take place.
///
/// # Errors
/// The attack cannot be made at all, for lack of a key or a port.
pub async fn run(attack: &Attack, scene: Scene) -> io::Result<Done> {
    let scene = Arc::new(scene);
    // Tasks that still wait for an answer when the time is over are ended.
    let over = async {
        scene.pace.over().await;
        tokio::time::sleep(AFTER_TIME_MAX).await;
    };
    let attempts = async {
        loop {
            match (attack.run)(Arc::clone(&scene)).await {
                // Beside other attacks the network may refuse for a while; another attempt follows at the pace.
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

/// How long an attack may go on after its time, to see what its last unit does.
const AFTER_TIME_MAX: Duration = Duration::from_secs(2);

/// Tasks that an attack runs at once; starting one more ends the oldest.
const TASKS_MAX: usize = 6_000;

impl Scene {
    /// The organisation that attackers belong to, where they are members: the last one. Newcomers are the first one's or the
    /// second one's.
    fn insider(&self) -> usize {
        self.target.organizations().max(1)
    }

    /// A connection to a gRPC port.
    async fn grpc(&self, windows: Windows) -> io::Result<Channel> {
        tokio::time::timeout(CONNECT_TIME_MAX, self.target.grpc(&self.port, windows)).await?
    }

    /// A link over TLS.
    async fn link(&self, config: &Arc<ClientConfig>) -> io::Result<Link> {
        tokio::time::timeout(CONNECT_TIME_MAX, Link::connect(&self.port.address, config)).await?
    }

    /// Begins a unit at each of its times. What a unit holds (a socket, a stream) it holds until the attack is over, or until
    /// there are `held_max` younger ones.
    async fn each<F>(self: Arc<Self>, held_max: usize, unit: impl Fn(Arc<Scene>, u64) -> F) -> io::Result<Breach>
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
use attack;

/// A write that the server does not take in this time is given up, so that a server that makes an attacker wait does not make
/// it slower than it is meant to be.
const STALL_MAX: Duration = Duration::from_millis(250);

/// A connection that is not made in this time is given up, for the same reason.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);

/// Work that may stall.
async fn unless_stalled<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(STALL_MAX, work).await?
}

/// For ever, until the task is aborted.
async fn hold<T>(held: T) -> io::Result<()> {
    std::future::pending::<()>().await;
    drop(held);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_have_names_of_their_own_and_a_port() {
        let mut names: Vec<&str> = all().iter().map(|attack| attack.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(all().iter().all(|attack| !attack.kinds.is_empty() && attack.pace > 0.0));
    }
}
