//! Programs that attack a network, and newcomers that come meanwhile.
//!
//! They share no code with Heddle: each protocol's bytes are written by hand in [`wire`], from `docs/formats` alone.
//!
//! 1. `attack list` names the [attacks](attacks), `attack run NAME --dir DIR` runs one and prints what it did as a line of JSON.
//! 2. `attack newcomer --dir DIR --port KIND` is a [legitimate newcomer](newcomer) at a port.
//! 3. `attack all --dir DIR` runs many at once, each as a process of its own, for `heddle bench under-attack`.
//! 4. `attack campaign --heddle PROGRAM` starts networks, runs every attack beside newcomers, and judges: `cargo xtask attack`.

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

use attacks::{Attack, Scene};
use pace::Pace;
use target::{Kind, Target};

/// Attacks on a network of one's own.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Name the attacks
    List,
    /// Run one attack on a port, and print what it did
    Run {
        /// Its name
        name: String,
        /// The network's directory
        #[arg(long)]
        dir: PathBuf,
        /// The kind of port
        #[arg(long)]
        port: Kind,
        /// How long
        #[arg(long, default_value_t = 6.0)]
        seconds: f64,
        /// A factor on the attack's own pace
        #[arg(long, default_value_t = 1.0)]
        factor: f64,
        /// Leave the attackers' own organisation its memory: its compute nodes end where it is taken
        #[arg(long)]
        keep_memory: bool,
        /// Say `ready`, and begin once a line comes from the standard input
        #[arg(long)]
        gate: bool,
    },
    /// Visit a port as one who may, again and again until the standard input ends
    Newcomer {
        /// The network's directory
        #[arg(long)]
        dir: PathBuf,
        /// The kind of port
        #[arg(long)]
        port: Kind,
        /// The newcomer's organisation
        #[arg(long, default_value_t = 1)]
        organization: usize,
    },
    /// Say what of a network does not work
    Check {
        /// The network's directory
        #[arg(long)]
        dir: PathBuf,
    },
    /// Run all attacks at once that do not have to be alone, once a line comes from the standard input
    All(swarm::Swarm),
    /// Run every attack beside newcomers, and judge
    Campaign(campaign::Campaign),
}

/// What an attack says that waits to begin.
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
            run(&name, &dir, port, |attack| Pace::new(attack.pace * factor, time), !keep_memory).await
        }
        Task::Newcomer { dir, port, organization } => match Target::read(&dir) {
            Ok(target) => newcomer::visit(&target, port, organization).await.map(|()| true),
            Err(error) => Err(error),
        },
        Task::Check { dir } => match Target::read(&dir) {
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
    kind: Kind,
    pace: impl Fn(&Attack) -> Pace,
    takes_memory: bool,
) -> io::Result<bool> {
    let attacks = attacks::all();
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no attack {name}; `attack list` names them"));
    let attack = attacks.iter().find(|attack| attack.name == name).ok_or_else(missing)?;
    let target = Target::read(dir)?;
    let port = target.listening(kind).await?;
    let done = attacks::run(attack, Scene { target, port, pace: pace(attack), takes_memory }).await?;
    println!("{}", serde_json::to_string(&done)?);
    Ok(true)
}
