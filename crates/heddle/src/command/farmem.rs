//! `heddle farmem run` and `profile`: a program with a far heap, and the memory node that has its pages.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Epoch;
use base::rt::CancellationToken;
use base::rt::disk::Directory;
use farmem::{
    AccessProfile, FileStorage, PAGE_BYTES, PoolStore, ProfileConfig, ProgramServer, ProgramServerConfig, StorageTier,
};
use pool::{AddressSpace, AddressSpaceConfig, Donor, MemoryNode, MemoryNodeConfig, SECTION_BYTES_DEFAULT};
use rma::shm::ShmProvider;
use rma::{HostConfig, NodeId, Provider as _, Token};
use tokio::signal::unix::{SignalKind, signal};

use super::farmem_preloading::{LIBRARY, find_library, preloading};
use super::{farmem_at_executor, farmem_profile};
use crate::cli::farmem::{FarHeapArguments, FarMemoryCommand};
use crate::failure::CommandError;

/// How often it is checked whether children of the program live.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The file of the storage.
const STORAGE_FILE: &str = "farmem-pages";
/// What shells return for a program that a signal has ended, less the signal's number.
const SIGNAL_CODE: i32 = 128;

pub async fn run(command: &FarMemoryCommand) -> Result<(), CommandError> {
    match command {
        FarMemoryCommand::Run(arguments) if arguments.executor || arguments.executors.is_some() => {
            farmem_at_executor::become_program(arguments)
        }
        FarMemoryCommand::Run(arguments) => exit(&run_program(&arguments.heap, None).await?),
        FarMemoryCommand::Profile(arguments) => {
            farmem_profile::check_files(arguments)?;
            let config = ProfileConfig { every: arguments.every, callers: arguments.callers };
            let run = run_program(&arguments.heap, Some(config)).await?;
            farmem_profile::show(arguments, &run.profile, run.time)?;
            exit(&run)
        }
        FarMemoryCommand::Executors(arguments) => super::executors::run(arguments).await,
        FarMemoryCommand::Relay(arguments) => super::executors_relay::run(arguments).await,
        FarMemoryCommand::Top(arguments) => super::executors_top::run(arguments).await,
    }
}

/// A program that has run to its end.
struct FarMemoryRun {
    status: ExitStatus,
    /// Until its last child had ended.
    time: Duration,
    /// Empty if it was not asked for.
    profile: AccessProfile,
}

/// Exits as the program did.
fn exit(run: &FarMemoryRun) -> Result<(), CommandError> {
    match run.status.code().unwrap_or_else(|| SIGNAL_CODE + run.status.signal().unwrap_or_default()) {
        0 => Ok(()),
        code => Err(CommandError::silent(u8::try_from(code).unwrap_or(u8::MAX))),
    }
}

async fn run_program(
    arguments: &FarHeapArguments,
    profile: Option<ProfileConfig>,
) -> Result<FarMemoryRun, CommandError> {
    node::logging::start("warn").map_err(CommandError::new)?;
    let library = find_library(LIBRARY)?;
    let (node, space) = open_pool(arguments.memory).await?;
    let storage = open_storage(arguments).await?;
    let stored = if arguments.storage.is_some() { arguments.storage_size } else { 0 };
    let region_bytes =
        arguments.size.unwrap_or(arguments.budget.saturating_add(arguments.memory).saturating_add(stored));
    let pages = u32::try_from(region_bytes.div_ceil(PAGE_BYTES as u64)).unwrap_or(u32::MAX);
    let store = PoolStore::new(space.clone(), pages, storage).map_err(CommandError::new)?;
    let config = ProgramServerConfig { region_bytes, budget_bytes: arguments.budget, store, profile };
    let server = ProgramServer::start(config).map_err(CommandError::new)?;
    let start = Instant::now();
    let status = supervise(arguments, &library, &server).await?;
    let run = FarMemoryRun { status, time: start.elapsed(), profile: server.profile().unwrap_or_default() };
    drop(server);
    space.close().await;
    node.stop().await;
    Ok(run)
}

/// Runs the program, and waits for it and its children.
async fn supervise(
    arguments: &FarHeapArguments,
    library: &Path,
    server: &ProgramServer,
) -> Result<ExitStatus, CommandError> {
    // A terminal sends it to the program too, whose matter it is. Others send only this process a signal.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CommandError::new)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(CommandError::new)?;
    let child = start(arguments, library, server)?;
    let number = child.id().cast_signed();
    let mut ended = tokio::task::spawn_blocking(move || wait(child));
    let status = loop {
        tokio::select! {
            status = &mut ended => break status.map_err(CommandError::new)?.map_err(CommandError::new)?,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => terminate_process(number),
        }
    };
    if server.connected() == 0 {
        eprintln!(
            "heddle: {} had no far heap: is it linked statically, or does it run as another user?",
            Path::new(&arguments.program[0]).display()
        );
    }
    while !server.is_idle() {
        tokio::select! {
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
    if arguments.stats {
        print_stats(server);
    }
    Ok(status)
}

#[allow(clippy::needless_pass_by_value)] // It ends here.
fn wait(mut child: Child) -> std::io::Result<ExitStatus> {
    child.wait()
}

fn start(arguments: &FarHeapArguments, library: &Path, server: &ProgramServer) -> Result<Child, CommandError> {
    let (mut command, program) = preloading(arguments, &[library.to_path_buf()])?;
    let child = command.envs(server.variables()).spawn();
    child.map_err(|error| CommandError::about(Path::new(program), error))
}

fn terminate_process(number: i32) {
    if let Some(process) = rustix::process::Pid::from_raw(number) {
        // It may have ended.
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
    }
}

/// A memory node in this process, and its memory.
async fn open_pool(bytes: u64) -> Result<(Arc<MemoryNode>, AddressSpace), CommandError> {
    let mut secret = [0; 32];
    base::rt::fill_random(&mut secret);
    let token = Token::new(secret);
    let provider = Arc::new(ShmProvider::default());
    let known = token.clone();
    let config = HostConfig { node: NodeId(0), tokens: Arc::new(move |_| Some(known.clone())) };
    let host = provider.host("local:", config).await.map_err(CommandError::new)?;
    let section_bytes = SECTION_BYTES_DEFAULT;
    let budget_bytes = bytes.next_multiple_of(section_bytes);
    let stop = CancellationToken::new();
    let node = MemoryNode::start(MemoryNodeConfig { host, budget_bytes, section_bytes, stop }).await;
    let node = node.map_err(CommandError::new)?;
    let donors = vec![Donor { address: node.address(), token }];
    let (owner, epoch) = ("farmem".to_owned(), Epoch(1));
    let config = AddressSpaceConfig { owner, epoch, provider, donors, section_bytes, budget_bytes };
    Ok((node, AddressSpace::open(config).await.map_err(CommandError::new)?))
}

async fn open_storage(arguments: &FarHeapArguments) -> Result<Option<Arc<dyn StorageTier>>, CommandError> {
    let Some(folder) = &arguments.storage else { return Ok(None) };
    let about = |error: std::io::Error| CommandError::about(folder, error);
    std::fs::create_dir_all(folder).map_err(about)?;
    let directory = Directory::open(folder).await.map_err(about)?;
    let storage = FileStorage::create(&directory, STORAGE_FILE).map_err(about)?;
    // It ends with this process, which has it open.
    std::fs::remove_file(folder.join(STORAGE_FILE)).map_err(about)?;
    Ok(Some(Arc::new(storage)))
}

fn print_stats(server: &ProgramServer) {
    let stats = server.totals();
    eprintln!("heddle: {} faults of {} programs:", stats.faults, server.connected());
    for (count, what) in [
        (stats.zero_pages, "pages were new"),
        (stats.fills, "pages came from the memory node because the program needed them"),
        (stats.prefetched_pages, "pages came ahead of a stream"),
        (stats.first_writes, "pages were written for the first time since they came"),
        (stats.evicted_pages, "pages left"),
        (stats.written_pages, "pages of these were written back"),
        (stats.lost_pages, "pages were lost"),
    ] {
        eprintln!("{count:>16} {what}");
    }
}
