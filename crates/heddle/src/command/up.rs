//! `heddle up`: creates or opens a network and runs it.
//!
//! 1. Read the settings: those with which the network was created, or the file of `--config`, or the defaults. Flags
//!    override them.
//! 2. With `--detach`: create or check the network here, where errors can be shown. Then start this program again in
//!    the background and wait until it is ready.
//! 3. Otherwise: run the network, in this process or with one process per role ([`super::isolate`]), print its
//!    addresses, and wait for a signal or a failure.
//!
//! The first signal stops the network in order. A second one ends it at once, which loses nothing that was
//! acknowledged.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use heddle_cli::log_tail::tail;
use node::config::organization_names;
use node::{Endpoints, HeddleConfig, Network, ProcessEnd};

use super::elastic::{self, ManagerProcess};
use super::isolate::IsolatedNetwork;
use super::pool;
use crate::cli::exit;
use crate::cli::network::UpArguments;
use crate::failure::CommandError;
use crate::signals::StopSignals;
use crate::{instance, output};

/// Time limit for a detached network to become ready: it may have blocks to replay.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for an orderly end of a network that has lost an essential part.
const DEFECT_STOP_TIMEOUT: Duration = Duration::from_secs(5);

pub async fn run(arguments: UpArguments) -> Result<(), CommandError> {
    let start = Instant::now();
    let dir = arguments.directory.dir.clone();
    let is_new = !instance::exists(&dir);
    instance::expect_not_planned(&dir)?;
    let config = settings(&arguments)?;
    let limits = pool::limits(&arguments.limits)?;
    if let (false, Some(given)) = (arguments.elastic, arguments.limits.command_line().first()) {
        return Err(CommandError::new(format!("{given} limits a manager: it needs --elastic")));
    }
    if arguments.session {
        // The terminal that started this network may be closed.
        rustix::process::setsid().map_err(|error| CommandError::new(format!("no session of its own: {error}")))?;
    }
    if arguments.bound {
        super::end_with_parent()?;
    }
    let mut signals = StopSignals::listen()?;
    node::logging::start(&config.log).map_err(CommandError::new)?;
    let mut network = Network::open_or_create(&dir, Some(&config)).await?;
    if arguments.detach {
        drop(network);
        return detach(&dir, is_new, arguments.elastic, start).await;
    }
    instance::sign_lock(&dir);
    if arguments.elastic {
        // Opened again: the settings file keeps the settings without the quotas of elastic nodes.
        drop(network);
        network = Network::open_or_create(&dir, Some(&elastic::settings(&config, &limits))).await?;
        instance::sign_lock(&dir);
    }
    if arguments.isolate || arguments.elastic {
        let manager = arguments.elastic.then(|| ManagerProcess::new(&dir, &arguments.limits));
        return isolate(network, &dir, is_new, start, &mut signals, manager).await;
    }
    let running = network.run().await?;
    output::print(&banner(&dir, &Endpoints::load(&dir)?, is_new, start.elapsed()))?;
    let failed = tokio::select! {
        () = signals.received() => None,
        reason = running.failed() => Some(reason),
    };
    let stopping = async {
        tokio::select! {
            stopped = running.stop() => stopped.map_err(CommandError::from),
            () = signals.received() => Err(CommandError::interrupted()),
        }
    };
    if failed.as_ref().is_some_and(|ended| ended.is_defect) {
        // The remaining parts may never end; the data on disk is as after a crash, from which the next start recovers.
        let _ = tokio::time::timeout(DEFECT_STOP_TIMEOUT, stopping).await;
    } else {
        stopping.await?;
    }
    match failed {
        None => Ok(()),
        Some(ProcessEnd { reason, is_defect }) => {
            let code = if is_defect { exit::DEFECT } else { exit::FAILURE };
            Err(CommandError::with_code(code, format!("the network has ended: {reason}")))
        }
    }
}

/// Runs a process for each role.
async fn isolate(
    network: Network,
    dir: &Path,
    is_new: bool,
    start: Instant,
    signals: &mut StopSignals,
    mut manager: Option<ManagerProcess>,
) -> Result<(), CommandError> {
    let Some(mut isolated) = IsolatedNetwork::start(network, signals).await? else {
        return Err(CommandError::interrupted());
    };
    let mut text = banner(dir, &Endpoints::load(dir)?, is_new, start.elapsed());
    if manager.is_some() {
        text += &elastic::advice(dir);
    }
    output::print(&text)?;
    let managing = async {
        match &mut manager {
            Some(manager) => match manager.watch().await {},
            None => std::future::pending::<Option<CommandError>>().await,
        }
    };
    let failed = tokio::select! {
        () = signals.received() => None,
        failure = isolated.watch() => Some(failure),
        never = managing => never,
    };
    if let Some(manager) = manager {
        manager.stop().await;
    }
    output::print("stopping the processes: gateways, orderer, compute, storage, memory\n")?;
    let clean = isolated.stop(signals).await;
    match failed {
        Some(failure) => Err(failure),
        None if clean => output::print("all processes have ended\n"),
        None => Err(CommandError::new("not all processes ended in order; nothing that was acknowledged is lost")),
    }
}

/// The settings with which the network is to run.
pub fn settings(arguments: &UpArguments) -> Result<HeddleConfig, CommandError> {
    let dir = &arguments.directory.dir;
    let network = &arguments.network;
    let mut config = match &network.config {
        Some(path) => {
            let config = HeddleConfig::load(path).map_err(CommandError::new)?;
            let text = std::fs::read_to_string(path).unwrap_or_default();
            for (old, new) in HeddleConfig::renamed_keys(&text) {
                eprintln!("heddle: warning: {}: `{old}` is now `{new}`", path.display());
            }
            config
        }
        None if instance::exists(dir) => super::config(dir)?,
        None => HeddleConfig::default(),
    };
    apply(arguments, &mut config);
    if let (Some(orderers @ 2..), node::config::OrderingEngine::Solo) = (network.orderers, config.ordering.engine) {
        let message = format!("--orderers {orderers} needs a group: add --ordering raft, or --ordering sift");
        return Err(CommandError::new(message));
    }
    // Flags are checked like a file, since they become part of one.
    HeddleConfig::parse(&config.to_text(), "the command line").map_err(CommandError::new)
}

fn apply(arguments: &UpArguments, config: &mut HeddleConfig) {
    let network = &arguments.network;
    if let Some(organizations) = network.orgs {
        config.network.organizations = organization_names(usize::from(organizations));
    }
    if let Some(policy) = network.policy {
        config.network.policy = policy.name().to_owned();
    }
    if let Some(channel) = &network.channel {
        config.network.channel.clone_from(channel);
    }
    let ports = &network.ports;
    if let Some(address) = ports.address {
        config.ports.host = address;
    }
    let any = ports.any_ports.then_some(0);
    for (asked, port) in [
        (ports.gateway_port, &mut config.ports.gateway),
        (ports.orderer_port, &mut config.ports.orderer),
        (ports.links_port, &mut config.ports.links),
        (ports.metrics_port, &mut config.ports.metrics),
    ] {
        if let Some(asked) = asked.or(any) {
            *port = asked;
        }
    }
    if arguments.no_tls {
        config.tls = false;
    }
    if arguments.monolithic {
        config.pool.form = node::config::PeerMode::Monolithic;
        // The settings of the other form stay in the network's file.
        config.pool.compute_nodes = 1;
    }
    if let Some(nodes) = network.storage_nodes {
        config.pool.storage_nodes = usize::from(nodes);
    }
    if let Some(copies) = network.storage_copies {
        config.pool.storage_copies = usize::from(copies);
    }
    if let Some(nodes) = network.memory_nodes {
        config.pool.memory_nodes = usize::from(nodes);
    }
    if let Some(ordering) = network.ordering {
        config.ordering.engine = ordering.engine();
    }
    if let Some(orderers) = network.orderers {
        config.ordering.orderers = usize::from(orderers);
    }
    if let Some(nodes) = network.compute_nodes {
        config.pool.compute_nodes = usize::from(nodes);
    }
}

async fn detach(dir: &Path, is_new: bool, is_elastic: bool, start: Instant) -> Result<(), CommandError> {
    let log = dir.join("heddle.log");
    let mut child = spawn_detached(&log)?;
    let process = child.id();
    let ready = instance::ready(dir, process, READY_TIMEOUT, || {
        let ended = child.try_wait().map_err(|error| CommandError::new(format!("process {process}: {error}")))?;
        Ok(ended.is_some())
    });
    match ready.await? {
        Some(endpoints) => {
            let mut text = banner(dir, &endpoints, is_new, start.elapsed());
            if is_elastic {
                text += &elastic::advice(dir);
            }
            output::print(&format!(
                "{text}\nIt runs in the background as process {process} and logs to {}. `heddle down --dir {}` stops it.\n",
                log.display(),
                dir.display()
            ))
        }
        None => {
            // It may be alive but slow; without endpoints no command would find it again.
            let _ = child.kill();
            let _ = child.wait();
            Err(CommandError::new(format!("the network did not start; {} ends with:\n{}", log.display(), tail(&log))))
        }
    }
}

fn spawn_detached(log: &Path) -> Result<Child, CommandError> {
    let open = || OpenOptions::new().create(true).append(true).open(log);
    let failed = |what: &str, error: std::io::Error| CommandError::new(format!("{what}: {error}"));
    let (out, error_out): (File, File) =
        open().and_then(|out| Ok((out, open()?))).map_err(|error| failed(&log.display().to_string(), error))?;
    let program = std::env::current_exe().map_err(|error| failed("the program's own path", error))?;
    // The same command line again, with one flag changed.
    let arguments = std::env::args_os().skip(1).map(|argument| match argument.to_str() {
        Some("--detach") => "--session".into(),
        _ => argument,
    });
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(error_out)
        .spawn()
        .map_err(|error| failed("the network cannot be started in the background", error))
}

/// The network's addresses and files, and suggestions for what to do next.
fn banner(dir: &Path, endpoints: &Endpoints, is_new: bool, took: Duration) -> String {
    let made = if is_new { "made in" } else { "opened in" };
    let policy = match endpoints.policy.as_str() {
        "any" => "any one organisation endorses",
        "majority" => "a majority of the organisations endorses",
        "all" => "all organisations endorse",
        other => other,
    };
    let mut lines = vec![
        format!("Heddle {}: the network is ready after {:.1} s.", env!("CARGO_PKG_VERSION"), took.as_secs_f64()),
        format!("  {made:<14} {}", dir.display()),
        format!("  {:<14} {}, {policy}", "channel", endpoints.channel),
    ];
    let scheme = if endpoints.tls { "grpcs" } else { "grpc" };
    for gateway in &endpoints.gateways {
        lines.push(format!("  {:<14} {scheme}://{}", gateway.msp_id, gateway.address));
    }
    lines.push(format!("  {:<14} {scheme}://{}", "orderer", endpoints.orderer));
    lines.push(format!("  {:<14} http://{}/metrics", "metrics", endpoints.metrics));
    for process in &endpoints.processes {
        let name = &process.name;
        lines.push(format!("  {name:<14} process {}, {}", process.process, process.address));
    }
    let shown = |path: PathBuf| path.display().to_string();
    lines.push(format!("  {:<14} {}", "certificates", shown(dir.join("organizations"))));
    if let Some(first) = endpoints.gateways.first() {
        let profile = format!("profiles/connection-{}.json", first.name.to_ascii_lowercase());
        lines.push(format!("  {:<14} {}", "profile", shown(dir.join(profile))));
    }
    let client = dir.join("client");
    lines.push(format!("  {:<14} {}", "client", shown(client.clone())));
    lines.push(String::new());
    lines.push("Next, in another terminal:".to_owned());
    lines.push(format!("  cd {} && npm install && node app.js", client.display()));
    lines.push(format!("  heddle status --dir {}", dir.display()));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn settings_of(line: &str) -> Result<HeddleConfig, CommandError> {
        match Cli::try_parse_from(line.split_whitespace()).expect("a command line").command {
            Command::Up(up) => settings(&up),
            other => panic!("not up: {other:?}"),
        }
    }

    #[test]
    fn flags_go_before_the_file_and_the_file_before_what_is_remembered() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir = folder.path().display();
        let defaults = settings_of(&format!("heddle up --dir {dir}")).expect("the defaults");
        assert_eq!(defaults, HeddleConfig::default());

        let mut remembered = HeddleConfig::default();
        remembered.network.organizations = organization_names(2);
        remembered.batch.messages = 77;
        std::fs::write(folder.path().join("heddle.toml"), remembered.to_text()).expect("it can be written");
        std::fs::write(folder.path().join("genesis.block"), "").expect("it can be written");
        let opened = settings_of(&format!("heddle up --dir {dir} --any-ports")).expect("what is remembered");
        assert_eq!((opened.network.organizations.len(), opened.batch.messages, opened.ports.gateway), (2, 77, 0));

        let file = folder.path().join("other.toml");
        std::fs::write(&file, "[batch]\nmessages = 9\n").expect("it can be written");
        let line = format!("heddle up --dir {dir} --config {} --orgs 4 --policy all --no-tls", file.display());
        let config = settings_of(&line).expect("file and flags");
        assert_eq!((config.network.organizations.len(), config.batch.messages), (4, 9));
        assert_eq!(config.network.policy, "all");
        assert!(!config.tls);
    }

    #[test]
    fn several_orderers_need_an_engine_of_several() {
        let refused = settings_of("heddle up --dir /nonexistent --orderers 5").expect_err("one would order alone");
        assert!(refused.message().is_some_and(|message| message.contains("--ordering raft")), "{refused:?}");
        let config = settings_of("heddle up --dir /nonexistent --orderers 5 --ordering sift").expect("it has several");
        assert_eq!(config.ordering.count(), 5);
        settings_of("heddle up --dir /nonexistent --orderers 1").expect("that many there are");
    }

    #[test]
    fn flags_are_checked_like_a_file() {
        let failure = settings_of("heddle up --dir /nonexistent --channel Not_A_Channel").expect_err("refused");
        assert!(failure.message().is_some_and(|message| message.contains("channel")), "{failure:?}");
    }
}
