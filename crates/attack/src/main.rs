//! Programs that attack a network, and legitimate newcomers that use it at the same time.
//!
//! The programs share no code with Heddle: [`wire`] implements each protocol from `docs/formats` alone, with public
//! libraries for TLS and HTTP/2.
//!
//! 1. `attack list` lists the [`attacks`]. `attack run NAME --dir DIR` runs one attack and prints its results as a line
//!    of JSON.
//! 2. `attack newcomer --dir DIR --port KIND` runs a [legitimate newcomer](newcomer) at a port.
//! 3. `attack all --dir DIR` runs many attacks at once, each as a separate process; `heddle bench under-attack` calls
//!    it.
//! 4. `attack campaign --heddle PROGRAM` starts networks, runs every attack beside newcomers, and gives a verdict;
//!    `cargo xtask attack` calls it.

mod attacks;
mod campaign;
mod newcomer;
mod pace;
mod swarm;
mod target;
mod wire;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use attacks::{Attack, AttackContext};
use pace::AttackPace;
use target::{TargetKind, TargetNetwork};

/// Attacks on one's own network.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// List the attacks
    List,
    /// Run one attack on a port, and print its results
    Run {
        /// The attack's name
        name: String,
        /// The network's directory
        #[arg(long)]
        dir: PathBuf,
        /// The kind of port
        #[arg(long)]
        port: TargetKind,
        /// How long it runs, in seconds
        #[arg(long, default_value_t = 6.0)]
        seconds: f64,
        /// A factor on the attack's pace
        #[arg(long, default_value_t = 1.0)]
        factor: f64,
        /// Leave the attackers' own organisation its memory: its compute nodes end if an attack takes it
        #[arg(long)]
        keep_memory: bool,
        /// Print `ready`, and begin once a line comes from the standard input
        #[arg(long)]
        gate: bool,
    },
    /// Visit a port as a legitimate client, again and again until the standard input ends
    Newcomer {
        /// The network's directory
        #[arg(long)]
        dir: PathBuf,
        /// The kind of port
        #[arg(long)]
        port: TargetKind,
        /// The newcomer's organisation
        #[arg(long, default_value_t = 1)]
        organization: usize,
    },
    /// Report which parts of a network do not work
    Check {
        /// The network's directory
        #[arg(long)]
        dir: PathBuf,
    },
    /// Run all attacks concurrently, except those that must run alone, once a line comes from the standard input
    All(swarm::Swarm),
    /// Run every attack beside newcomers, and give a verdict
    Campaign(campaign::Campaign),
}

/// What a waiting attack prints before it begins.
const READY: &str = "ready";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let passed = match Arguments::parse().command {
        Task::List => {
            list();
            Ok(true)
        }
        Task::Run { name, dir, port, seconds, factor, keep_memory, gate } => {
            if gate {
                println!("{READY}");
                let _ = io::stdin().read_line(&mut String::new());
            }
            let time = Duration::from_secs_f64(seconds);
            run(&name, &dir, port, |attack| AttackPace::new(attack.pace * factor, time), !keep_memory).await
        }
        Task::Newcomer { dir, port, organization } => match TargetNetwork::read(&dir) {
            Ok(target) => newcomer::visit(&target, port, organization).await.map(|()| true),
            Err(error) => Err(error),
        },
        Task::Check { dir } => match TargetNetwork::read(&dir) {
            Ok(target) => campaign::check(&target).await,
            Err(error) => Err(error),
        },
        Task::All(swarm) => swarm.run(),
        Task::Campaign(campaign) => campaign.run(),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("attack: {error}");
            ExitCode::from(2)
        }
    }
}

fn list() {
    for Attack { name, what, kinds, unit, pace, is_alone, .. } in attacks::all() {
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        let alone = if is_alone { ", alone" } else { "" };
        println!("{name:<24} {what}; {pace} {unit} a second{alone}: {}", kinds.join(" "));
    }
}

async fn run(
    name: &str,
    dir: &Path,
    kind: TargetKind,
    pace: impl Fn(&Attack) -> AttackPace,
    takes_memory: bool,
) -> io::Result<bool> {
    let attacks = attacks::all();
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no attack {name}; `attack list` names them"));
    let attack = attacks.iter().find(|attack| attack.name == name).ok_or_else(missing)?;
    let target = TargetNetwork::read(dir)?;
    let port = target.listening(kind).await?;
    let done = attacks::run(attack, AttackContext { target, port, pace: pace(attack), takes_memory }).await?;
    println!("{}", serde_json::to_string(&done)?);
    Ok(true)
}
