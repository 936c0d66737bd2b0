//! The programs of `tests/programs`, compiled once a process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The executor's program.
pub fn executor() -> PathBuf {
    let executor =
        library_folder().parent().expect("the folder of tests is in that of programs").join("heddle-executor");
    assert!(executor.exists(), "{} is missing: build the package heddle-pushdown-executor first", executor.display());
    executor
}

/// Where the library is, which cargo builds with this test: beside it.
fn library_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a file");
    let library = test.with_file_name("libheddle_pushdown.so");
    assert!(library.exists(), "{} is missing", library.display());
    test.parent().expect("it is in a folder").to_path_buf()
}

/// A folder of this process, for what `prepare` puts there. A later run removes it.
pub fn folder(prepare: impl FnOnce(&Path)) -> &'static Path {
    const PREFIX: &str = "pushdown-";
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
        for entry in fs::read_dir(parent).expect("cargo makes the folder").flatten() {
            let name = entry.file_name();
            let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let folder = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the target folder is writable");
        prepare(&folder);
        folder
    })
}

/// Compiles files of `tests/programs` to a program that has the library.
pub fn compile(compiler: &str, options: &[&str], sources: &[&str], program: &Path) {
    let libraries = library_folder();
    let package = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../pushdown_caller"));
    let mut command = Command::new(compiler);
    command.args(options).args(["-O1", "-g", "-pthread", "-Wall", "-Wextra", "-I"]).arg(package.join("include"));
    command.arg("-o").arg(program).args(sources.iter().map(|source| package.join("tests/programs").join(source)));
    command.arg("-L").arg(&libraries).arg("-lheddle_pushdown");
    command.arg(format!("-Wl,-rpath,{}", libraries.display()));
    let output = command.output().expect("compilers for C and C++ are installed, as for a dependency");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
