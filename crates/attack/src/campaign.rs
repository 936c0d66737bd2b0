//! Runs every attack against every form of network. A legitimate newcomer uses the network at the same time. The result
//! is a table and a verdict.
//!
//! For each attack and each of its ports:
//! 1. A newcomer, which is a separate process, visits that port and must be served.
//! 2. The attack, another process, runs for some seconds. Meanwhile the newcomer visits again and again, each time on a
//!    new connection, and must be served within [`Campaign::patience_ms`]. The memory of each process of the network is
//!    sampled.
//! 3. After the end of the attack the newcomer must be served once more.
//! 4. The network must commit transactions of the first two organisations and report that it is healthy. Its processes
//!    must be the same as before, and none of them may have grown by more than [`Campaign::growth_mib`].
//!
//! Attackers that are members belong to the last organisation, so the health of that organisation's processes is not
//! checked. A broken network is replaced before the next attack.

mod check;
mod network;
mod trial;

use std::io;
use std::path::PathBuf;

use clap::Args;

use crate::attacks;
use network::{AttackedNetwork, NetworkMode};
use trial::{Trial, TrialLimits};

pub use check::check;

/// `attack campaign`.
#[derive(Args)]
pub struct Campaign {
    /// The program to attack
    #[arg(long, value_name = "PROGRAM")]
    heddle: PathBuf,
    /// Run only these attacks
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Attack only these forms of network
    #[arg(long, value_name = "FORM", value_delimiter = ',')]
    form: Vec<NetworkMode>,
    /// Attack only these kinds of ports
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    port: Vec<crate::target::TargetKind>,
    /// How long each attack runs, in seconds
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// How soon a newcomer must be served, in milliseconds
    #[arg(long, default_value_t = 1_000)]
    patience_ms: u64,
    /// How much a process may grow during an attack, in MiB
    #[arg(long, default_value_t = 192)]
    growth_mib: u64,
}

impl Campaign {
    /// Runs the campaign; true if every attack failed.
    ///
    /// # Errors
    /// A network does not start, or an attack's name is unknown.
    pub fn run(&self) -> io::Result<bool> {
        let attacks = attacks::all();
        if let Some(name) = self.only.iter().find(|name| attacks.iter().all(|attack| attack.name != **name)) {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no attack {name}; `attack list` names them")));
        }
        let bounds = TrialLimits { seconds: self.seconds, visit_ms_max: self.patience_ms, growth_mib: self.growth_mib };
        println!("{}", Trial::head());
        let (mut count, mut broken) = (0, Vec::new());
        for form in NetworkMode::ALL.into_iter().filter(|form| self.form.is_empty() || self.form.contains(form)) {
            let mut network: Option<AttackedNetwork> = None;
            for attack in
                attacks.iter().filter(|attack| self.only.is_empty() || self.only.contains(&attack.name.to_owned()))
            {
                for kind in attack.kinds.iter().filter(|kind| self.port.is_empty() || self.port.contains(kind)) {
                    if !form.has(*kind) {
                        continue;
                    }
                    let running = match network.take() {
                        Some(running) => running,
                        None => AttackedNetwork::start(&self.heddle, form)?,
                    };
                    let trial = Trial::run(&running, attack, *kind, &bounds)?;
                    println!("{trial}");
                    count += 1;
                    if trial.failures.is_empty() {
                        network = Some(running);
                    } else {
                        broken.push(format!("{form} {} {kind}", attack.name));
                    }
                }
            }
        }
        println!("\n{count} attacks, {} succeeded{}", broken.len(), if broken.is_empty() { "" } else { ":" });
        broken.iter().for_each(|name| println!("  {name}"));
        Ok(broken.is_empty() && count > 0)
    }
}
