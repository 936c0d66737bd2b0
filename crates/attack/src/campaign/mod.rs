//! Every attack against every form of network, each beside a newcomer; a table and a verdict.
//!
//! For each attack and each port that it is for:
//! 1. A newcomer, a process of its own, comes to that port and must be served.
//! 2. The attack, another process, runs for some seconds. The newcomer comes again and again, on a new connection each time,
//!    and must be served within [`Campaign::patience_ms`]; what memory each process of the network has is sampled.
//! 3. The attack has ended. The newcomer must be served once more.
//! 4. The network must commit transactions of the first two organisations, say that it is healthy, and consist of the
//!    processes that it did before, none of which may have grown by more than [`Campaign::growth_mib`] meanwhile.
//!
//! Attackers that are members belong to the last organisation; what becomes of its own processes is not judged. A network
//! that was broken is replaced before the next attack.

mod check;
mod network;
mod trial;

use std::io;
use std::path::PathBuf;

use clap::Args;

use crate::attacks;
use network::{Form, Network};
use trial::{Bounds, Trial};

pub use check::check;

/// `attack campaign`.
#[derive(Args)]
pub struct Campaign {
    /// The program that is attacked
    #[arg(long, value_name = "PROGRAM")]
    heddle: PathBuf,
    /// Only these attacks
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Only these forms of network
    #[arg(long, value_name = "FORM", value_delimiter = ',')]
    form: Vec<Form>,
    /// Only these kinds of ports
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    port: Vec<crate::target::Kind>,
    /// How long each attack goes on
    #[arg(long, default_value_t = 6.0)]
    seconds: f64,
    /// How soon a newcomer must be served, in milliseconds
    #[arg(long, default_value_t = 1_000)]
    patience_ms: u64,
    /// How much a process may grow during an attack
    #[arg(long, default_value_t = 192)]
    growth_mib: u64,
}

impl Campaign {
    /// Runs it; true when every attack failed.
    ///
    /// # Errors
    /// A network does not start, or there is no attack of a name.
    pub fn run(&self) -> io::Result<bool> {
        let attacks = attacks::all();
        if let Some(name) = self.only.iter().find(|name| attacks.iter().all(|attack| attack.name != **name)) {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("no attack {name}; `attack list` names them")));
        }
        let bounds = Bounds { seconds: self.seconds, patience_ms: self.patience_ms, growth_mib: self.growth_mib };
        println!("{}", Trial::head());
        let (mut count, mut broken) = (0, Vec::new());
        for form in Form::ALL.into_iter().filter(|form| self.form.is_empty() || self.form.contains(form)) {
            let mut network: Option<Network> = None;
            for attack in
                attacks.iter().filter(|attack| self.only.is_empty() || self.only.contains(&attack.name.to_owned()))
            {
                for kind in attack.kinds.iter().filter(|kind| self.port.is_empty() || self.port.contains(kind)) {
                    if !form.has(*kind) {
                        continue;
                    }
                    let running = match network.take() {
                        Some(running) => running,
                        None => Network::start(&self.heddle, form)?,
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
