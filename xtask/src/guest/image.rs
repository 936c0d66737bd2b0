//! The guest's file system: busybox, the kernel's modules, the program with its libraries, and `/init`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::FOLDER;
use super::cpio::Archive;
use super::kernel::Kernel;
use super::machine::{EXIT_PORT, PASSED};

pub const RDMA_TOOL: &str = "/usr/bin/rdma";
/// The user-space half of soft-RoCE. `libibverbs` opens it by its path, so nothing is linked with it.
pub const PROVIDER: &str = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so";
/// Other files opened at run time: the library, and the line that names the provider.
const OPENED: &[&str] = &["/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "/etc/libibverbs.d/rxe.driver"];
const BUSYBOX: &str = "/bin/busybox";
const PROGRAM: &str = "/program";

/// The first process of the guest. The status that it writes to the port becomes QEMU's; a guest that dies earlier writes
/// none, and so has failed.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin:/usr/bin
/bin/busybox --install -s /bin
end() { printf "\\$(printf %o "$1")" | dd of=/dev/port bs=1 seek=@PORT@ 2>/dev/null; }
failed() { echo "rdma-guest: $1"; end 1; }
mount -t devtmpfs none /dev && mount -t proc none /proc && mount -t sysfs none /sys || failed "no /dev, /proc and /sys"
mount -t tmpfs none /tmp && mkdir -p /dev/shm && mount -t tmpfs none /dev/shm || failed "no /tmp"
for module in @MODULES@; do insmod "/modules/$module" || failed "module $module"; done
# The module has made the device itself.
ip link set lo up && ip addr add 10.7.0.1/24 dev dummy0 && ip link set dummy0 up || failed "no network device"
@RDMA@ link add rxe0 type rxe netdev dummy0 || failed "no soft-RoCE device"
@RDMA@ link
ulimit -l unlimited
ulimit -c 0
@PROGRAM@
status=$?
echo "rdma-guest: the program ended with $status"
if [ $status = 0 ]; then end @PASSED@; else end 1; fi
"#;

/// Writes the archive and returns its path.
pub fn write(kernel: &Kernel, program: &Path, arguments: &[String]) -> Result<PathBuf, String> {
    let mut tree = Tree::default();
    for folder in ["dev", "proc", "sys", "tmp", "modules"] {
        tree.folders.insert(folder.to_owned());
    }
    for path in [BUSYBOX, RDMA_TOOL, PROVIDER].iter().chain(OPENED).map(Path::new) {
        tree.add_with_libraries(path, path)?;
    }
    tree.add_with_libraries(program, Path::new(PROGRAM))?;
    let mut modules = Vec::new();
    for module in &kernel.modules {
        let name = module.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        tree.add(module, &Path::new("/modules").join(&name))?;
        modules.push(name);
    }
    let words: Vec<String> =
        std::iter::once(PROGRAM.to_owned()).chain(arguments.iter().map(|word| quote(word))).collect();
    let init = INIT
        .replace("@MODULES@", &modules.join(" "))
        .replace("@RDMA@", RDMA_TOOL)
        .replace("@PORT@", &EXIT_PORT.to_string())
        .replace("@PASSED@", &PASSED.to_string())
        .replace("@PROGRAM@", &words.join(" "));

    let mut archive = Archive::default();
    tree.folders.iter().for_each(|folder| archive.folder(folder));
    tree.files.iter().for_each(|(path, content)| archive.file(path, content));
    archive.file("init", init.as_bytes());
    let path = Path::new(FOLDER).join(format!("image-{}.cpio", std::process::id()));
    fs::write(&path, archive.finish()).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Quotes a word for the guest's shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Paths without the leading slash.
#[derive(Default)]
struct Tree {
    folders: BTreeSet<String>,
    files: Vec<(String, Vec<u8>)>,
}

impl Tree {
    /// Adds a file, and every shared library that it needs, at the path that it has on the host.
    fn add_with_libraries(&mut self, from: &Path, to: &Path) -> Result<(), String> {
        self.add(from, to)?;
        // For a file that is not a program, or a static one, `ldd` fails; such a file needs no libraries.
        let output = Command::new("ldd").arg(from).output().map_err(|error| format!("ldd: {error}"))?;
        for library in libraries(&String::from_utf8_lossy(&output.stdout))? {
            self.add(&library, &library)?;
        }
        Ok(())
    }

    fn add(&mut self, from: &Path, to: &Path) -> Result<(), String> {
        let path = to.to_string_lossy().trim_start_matches('/').to_owned();
        if self.files.iter().any(|(known, _)| *known == path) {
            return Ok(());
        }
        let content = fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
        let above = Path::new(&path).ancestors().skip(1).map(|folder| folder.to_string_lossy().into_owned());
        self.folders.extend(above.filter(|folder| !folder.is_empty()));
        self.files.push((path, content));
        Ok(())
    }
}

/// The paths in the output of `ldd`: `name => path (address)`, or `path (address)` for the loader.
fn libraries(printed: &str) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for line in printed.lines().map(str::trim) {
        if line.ends_with("not found") {
            return Err(format!("a library is missing on this host: {line}"));
        }
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        let path = path.split_once(" (").map_or("", |(path, _)| path);
        if path.starts_with('/') {
            paths.push(PathBuf::from(path));
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::{libraries, quote};
    use std::path::PathBuf;

    #[test]
    fn libraries_are_read_from_what_ldd_prints() {
        let printed = "\tlinux-vdso.so.1 (0x00007f04)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f04)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f04)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(libraries(printed), Ok(expected.to_vec()));
        assert!(libraries("\tlibx.so => not found\n").is_err());
        assert_eq!(libraries("\tnot a dynamic executable\n"), Ok(Vec::new()));
    }

    #[test]
    fn a_quoted_word_is_one_word() {
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), r"'it'\''s'");
    }
}
