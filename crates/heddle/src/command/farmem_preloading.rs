//! Programs that preload libraries of this release: which they are, and where.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use farmem::FAR_HEAP_VARIABLES;

use crate::cli::farmem::FarHeapArguments;
use crate::failure::CommandError;

/// The library that programs preload, and the package that has it.
pub(super) const LIBRARY: (&str, &str) = ("libheddle_farmem.so", "heddle-farmem-preload");
/// Where else it may be than beside this program, seen from there: where packages install it, and where cargo leaves it.
const LIBRARY_FOLDERS: [&str; 4] = [".", "../lib", "../lib/heddle", "deps"];

/// The program, with libraries that it preloads, and without the far heap that this process may have.
pub(super) fn preloading<'a>(
    arguments: &'a FarHeapArguments,
    libraries: &[PathBuf],
) -> Result<(Command, &'a OsStr), CommandError> {
    let [program, rest @ ..] = &arguments.program[..] else {
        return Err(CommandError::new("name a program"));
    };
    // What else the user preloads comes first, and calls the libraries' functions.
    let set = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let others =
        set.as_bytes().split(|byte| matches!(byte, b':' | b' ')).map(|path| Path::new(OsStr::from_bytes(path)));
    let is_ours = |path: &Path| libraries.iter().any(|library| library.file_name() == path.file_name());
    let others = others.filter(|path| !path.as_os_str().is_empty() && !is_ours(path));
    let preloaded: Vec<&OsStr> = others.chain(libraries.iter().map(PathBuf::as_path)).map(Path::as_os_str).collect();
    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", preloaded.join(OsStr::new(":")));
    for variable in FAR_HEAP_VARIABLES {
        command.env_remove(variable);
    }
    Ok((command, program))
}

/// Finds a library that was built with this program.
pub(super) fn find_library((name, package): (&str, &str)) -> Result<PathBuf, CommandError> {
    let program = std::env::current_exe().map_err(CommandError::new)?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let places = LIBRARY_FOLDERS.map(|place| folder.join(place).join(name));
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    found.ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        CommandError::new(format!(
            "the library {name} is missing; build it with `cargo build --release --package {package}`, or put it at one of {}",
            places.join(", ")
        ))
    })
}
