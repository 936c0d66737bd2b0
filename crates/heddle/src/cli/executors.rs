//! `heddle farmem executors` and `heddle farmem top`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::peer::size;
use super::relay::RelayListenArguments;

/// Where the role listens, if nothing else is said.
const SOCKET: &str = "/run/heddle/executors";

/// Run executors of pushed-down functions, confined and limited, for programs of this host
///
/// A program that is linked with libheddle_pushdown.so and has the socket in HEDDLE_EXECUTORS, or in its options, runs
/// its functions in an executor of this role, and not in a child of its own. Each executor has one program's memory and
/// nothing else: no files, no network, no other processes, within --memory and --processor. One that does not answer
/// for --silence is killed. The program is told why its executor has ended, and no other program notices.
///
/// SIGTERM and Ctrl-C let functions go on for --grace, and admit nobody meanwhile. As root, executors have the user of
/// their program; otherwise that of the role, in namespaces of their own.
///
/// It needs namespaces, cgroups, and access to /dev/userfaultfd (which executors get from the role), and says by name
/// what is missing.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle farmem executors --socket /run/heddle/executors --any-owner --metrics 127.0.0.1:9444
  HEDDLE_EXECUTORS=/run/heddle/executors ./analyse
  heddle farmem top --socket /run/heddle/executors"
)]
pub struct FarMemoryExecutorsArguments {
    /// Where programs connect: a path, whose folder exists
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub socket: PathBuf,
    /// The program of executors [default: heddle-executor beside this program]
    #[arg(long, value_name = "PROGRAM")]
    pub executor: Option<PathBuf>,
    /// A user, by number, that may have executors beside root and the role's user; may be repeated
    #[arg(long, value_name = "UID", conflicts_with = "any_owner")]
    pub owner: Vec<u32>,
    /// Every user of this host may have executors
    #[arg(long)]
    pub any_owner: bool,
    /// The most executors at the same time
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub executors_max: usize,
    /// The most executors of one owner
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub per_owner: usize,
    /// The most functions that run at the same time in an executor
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub contexts: u32,
    /// The memory of an executor
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "512M")]
    pub memory: u64,
    /// The processors of an executor, at least 0.1
    #[arg(long, value_name = "PROCESSORS", value_parser = processors, default_value = "1")]
    pub processor: u32,
    /// The memory of all executors of one owner together, at least that of one executor
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub owner_memory: Option<u64>,
    /// The processors of all executors of one owner together, at least those of one executor
    #[arg(long, value_name = "PROCESSORS", value_parser = processors)]
    pub owner_processor: Option<u32>,
    /// A folder on a disk, for pages that an executor has no memory for; without it none are stored
    #[arg(long, value_name = "DIR", conflicts_with = "without_limits")]
    pub storage: Option<PathBuf>,
    /// The bytes that an executor may store there [default: 8 times --memory]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "storage")]
    pub storage_bytes: Option<u64>,
    /// After how many seconds without an answer an executor is killed; after a quarter of that it is sick
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..), default_value = "10")]
    pub silence: u64,
    /// For how many seconds functions may go on when the role stops
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub grace: u64,
    /// Serve metrics and health over HTTP
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<SocketAddr>,
    /// Where no namespaces can be made: leave only the filter of system calls between executors and the host
    #[arg(long)]
    pub without_namespaces: bool,
    /// Where no cgroups can be made: do not limit memory and processors of executors
    #[arg(long, conflicts_with_all = ["memory", "processor", "owner_memory", "owner_processor"])]
    pub without_limits: bool,
    #[command(flatten)]
    pub relay: RelayListenArguments,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub bound: bool,
}

/// Show the executors of a role, live
///
/// Of each: its owner, its process, the program, its state, functions that run of those that may, calls that wait, calls
/// a second, memory, processors, and for how long it has not answered. Root and the role's user see all executors,
/// others their own. Ctrl-C ends it.
#[derive(Args, Debug, Clone)]
#[command(verbatim_doc_comment)]
pub struct FarMemoryTopArguments {
    /// Where the role listens
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub socket: PathBuf,
    /// Print once and end, as happens where standard output is no terminal
    #[arg(long)]
    pub once: bool,
    /// Print JSON, once
    #[arg(long)]
    pub json: bool,
}

/// Processors as a number with a fraction, in percent.
fn processors(text: &str) -> Result<u32, String> {
    let number: f64 = text.parse().map_err(|_| "write a number of processors, such as 0.5".to_owned())?;
    // What is too little is refused with the other settings.
    match number.is_finite() && (0.0..=1024.0).contains(&number) {
        true => Ok((number * 100.0).round() as u32),
        false => Err("it is no number of processors".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_have_a_fraction() {
        assert_eq!((processors("0.5"), processors("2")), (Ok(50), Ok(200)));
        assert!(processors("-1").is_err() && processors("NaN").is_err() && processors("half").is_err());
    }
}
