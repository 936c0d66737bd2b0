//! Runs at once all attacks that need not run alone, each in a separate child process that inherits the resource limits
//! of this process.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use clap::Args;

use crate::attacks;
use crate::pace::AttackReport;
use crate::target::TargetNetwork;

/// `attack all`.
#[derive(Args)]
pub struct Swarm {
    /// The network's directory
    #[arg(long)]
    dir: PathBuf,
    /// How long each of them runs
    #[arg(long)]
    seconds: f64,
    /// A factor on the pace of each
    #[arg(long, default_value_t = 1.0)]
    factor: f64,
    /// Run only these attacks
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
}

impl Swarm {
    /// Waits for a line, starts the attacks, prints `begun` once all of them run, and prints the results of each as a line
    /// of JSON.
    ///
    /// # Errors
    /// An attack could not be run.
    pub fn run(&self) -> io::Result<bool> {
        let target = TargetNetwork::read(&self.dir)?;
        let mut go = String::new();
        io::stdin().lock().read_line(&mut go)?;
        let mut children: Vec<(String, Child)> = Vec::new();
        for attack in attacks::all().iter().filter(|attack| !attack.is_alone) {
            if !self.only.is_empty() && !self.only.iter().any(|name| name == attack.name) {
                continue;
            }
            // Each attack runs once, at one of its ports that the network has; successive attacks take different ports.
            let kinds: Vec<_> = attack.kinds.iter().filter(|kind| target.port(**kind).is_ok()).collect();
            let Some(kind) = kinds.get(children.len() % kinds.len().max(1)) else { continue };
            let child = Command::new(std::env::current_exe()?)
                .args(["run", attack.name, "--port", kind.name(), "--dir"])
                .arg(&self.dir)
                .args([
                    "--seconds",
                    &self.seconds.to_string(),
                    "--factor",
                    &self.factor.to_string(),
                    "--keep-memory",
                    "--gate",
                ])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            children.push((attack.name.to_owned(), child));
        }
        // Starting the programs costs more than running them, so the attacks wait until all programs have started.
        let mut waiting = Vec::new();
        for (name, mut child) in children {
            let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
            output.read_line(&mut String::new())?;
            waiting.push((name, child, output));
        }
        for (_, child, _) in &mut waiting {
            child.stdin.take().expect("it is piped").write_all(b"go\n")?;
        }
        println!("begun");
        for (name, mut child, mut output) in waiting {
            let mut said = String::new();
            output.read_to_string(&mut said)?;
            let status = child.wait()?;
            match serde_json::from_str::<AttackReport>(&said) {
                Ok(done) => println!("{}", serde_json::to_string(&done)?),
                Err(error) => return Err(io::Error::other(format!("{name}: {status}, {error}"))),
            }
        }
        Ok(true)
    }
}
