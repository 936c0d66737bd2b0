//! `heddle farmem`.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use super::executors::{FarMemoryExecutorsArguments, FarMemoryTopArguments};
use super::peer::size;
use super::relay::FarMemoryRelayArguments;

#[derive(Subcommand, Debug)]
pub enum FarMemoryCommand {
    Run(FarMemoryRunArguments),
    Profile(FarMemoryProfileArguments),
    Executors(FarMemoryExecutorsArguments),
    Relay(FarMemoryRelayArguments),
    Top(FarMemoryTopArguments),
}

// What all commands that run a program have in common. A documentation comment would replace theirs.
#[derive(Args, Debug, Clone)]
pub struct FarHeapArguments {
    /// How much of each far heap may be resident
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "256M")]
    pub budget: u64,
    /// The size of each far heap; beyond it allocations fail [default: budget, memory node and storage together]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// How much memory the memory node gives, in this process
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "4G")]
    pub memory: u64,
    /// A folder for the pages that the memory node has no room for
    #[arg(long, value_name = "FOLDER")]
    pub storage: Option<PathBuf>,
    /// How much larger each far heap is because of the storage; no limit of the file
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64G", requires = "storage")]
    pub storage_size: u64,
    /// When the program has ended, say how often it faulted, and what came from where
    #[arg(long)]
    pub stats: bool,
    /// The program and its arguments
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, required = true)]
    pub program: Vec<OsString>,
}

/// Run an unmodified program whose heap is larger than the memory that it may keep
///
/// What the program allocates (malloc, C++'s new, large anonymous mappings) lies in a far heap, of which at most
/// --budget is resident. The other pages lie in a memory node, from which they come back when the program touches
/// them, and below it in a file if there is a --storage folder. The library libheddle_farmem.so, which is preloaded,
/// asks this command for them; the program itself has none of its connections.
///
/// The program's children have a far heap too, each with a budget of its own: those that it forks with the content of
/// their parent's, those that execute another program with an empty one. Programs that are linked statically, or run
/// with the rights of another user, have none. The command ends when the program and its children have, with the
/// program's exit code.
///
/// It needs read and write access to /dev/userfaultfd, and the capability CAP_SYS_PTRACE if the program forks.
///
/// With --executor the pages lie in an executor of pushed functions instead of the memory node, and the functions that
/// the program pushes down use the heap there, in place. The executor is a child of the program, or of the role whose
/// socket is the value of HEDDLE_EXECUTORS. The heap is as large as --memory, and the storage if there is any: then
/// --memory is what the executor keeps in memory. The command becomes the program. It cannot fork then, and the programs
/// that it executes have ordinary heaps; so name the program itself, and no script that starts it.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    group = ArgGroup::new("home").args(["executor", "executors"]).multiple(true),
    after_help = "\
Examples:
  heddle farmem run --budget 256M -- redis-server --port 7000 --save ''
  heddle farmem run --budget 1G --size 16G --storage /var/tmp/pages -- python3 analyse.py
  heddle farmem run --budget 64M --executor -- ./query 9
  heddle farmem run --budget 64M --executors /run/heddle/executors -- ./query 9"
)]
pub struct FarMemoryRunArguments {
    #[command(flatten)]
    pub heap: FarHeapArguments,
    /// Have the pages in an executor, where functions that the program pushes down use them
    #[arg(long, conflicts_with = "stats")]
    pub executor: bool,
    /// As --executor, with an executor of the role at this socket (heddle farmem executors)
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["stats", "storage"])]
    pub executors: Option<PathBuf>,
    /// How many pushed functions may run at the same time in the executor [default: 1]
    #[arg(long, value_name = "COUNT", requires = "home")]
    pub contexts: Option<NonZeroU32>,
}

/// Run a program as `farmem run` does, and say which of its functions make remote accesses
///
/// A remote access is a page fault that far memory serves: the program waits for a page. When the program and its
/// children have ended, a table on standard error ranks their functions by remote accesses, all processes together, and
/// says how many each makes in a second of the time that it runs: its memory intensity. Functions that make many, at a
/// high rate, gain most from running beside the pool. An access in the C or C++ runtime (memcpy, read) counts for the
/// function that has called it.
///
/// Each access is sampled, which lets the program wait some microseconds longer for each page; --every takes fewer
/// samples. Names come from the symbol tables of the program and its libraries, or of their debug files in
/// /usr/lib/debug. A program that is stripped has the bounds of its functions instead.
///
/// It needs what `farmem run` needs, and may have to run as root if the kernel restricts ptrace.
#[derive(Args, Debug, Clone)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  heddle farmem profile --budget 64M -- ./query 9
  heddle farmem profile --callers --picture query.svg --json query.json -- ./query 9"
)]
pub struct FarMemoryProfileArguments {
    #[command(flatten)]
    pub heap: FarHeapArguments,
    /// How many functions the table, and the picture, have at most
    #[arg(long, value_name = "COUNT", default_value = "20")]
    pub top: usize,
    /// Search the stack for callers too, and count the accesses of what each function calls
    #[arg(long)]
    pub callers: bool,
    /// Sample one of this many accesses of each thread, at random
    #[arg(long, value_name = "COUNT", default_value = "1")]
    pub every: NonZeroU32,
    /// Write the profile to this file as JSON (docs/formats/farmem-profile.md)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a picture to this file, an SVG: accesses a second by function, the highest first
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
}
