//! Debian's full kernel and the modules of soft-RoCE, extracted from the package without installing it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{FOLDER, packages};
use crate::step::run;

/// The package that depends on the current kernel; `linux-image-cloud-amd64` would depend on one without `rdma_rxe`.
const NEWEST: &str = "linux-image-amd64";
/// The modules to load, each after its dependencies. `crc32_generic` is requested by name at run time, so no dependency
/// lists it.
const MODULES: &[&str] = &["dummy", "crc32_generic", "ib_uverbs", "rdma_rxe"];
/// A file in the folder of a kernel: the modules to load, one per line.
const ORDER: &str = "modules";

pub struct Kernel {
    pub image: PathBuf,
    /// Paths, in loading order.
    pub modules: Vec<PathBuf>,
}

/// The kernel that an earlier run kept, otherwise Debian's newest.
pub fn provide() -> Result<Kernel, String> {
    let folder = Path::new(FOLDER).join("kernel");
    if !folder.join(ORDER).exists() {
        download(&folder)?;
    }
    let order = fs::read_to_string(folder.join(ORDER)).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(Kernel { image: folder.join("vmlinuz"), modules: order.lines().map(|name| folder.join(name)).collect() })
}

/// Puts the kernel at `folder`, completely or not at all.
fn download(folder: &Path) -> Result<(), String> {
    let scratch = Path::new(FOLDER).join(format!("download-{}", std::process::id()));
    let outcome = fetch(&scratch).and_then(|tree| keep(&tree, &scratch.join("kept")));
    let outcome = outcome.and_then(|()| {
        // Another run may have been faster; its kernel is equivalent.
        let moved = fs::rename(scratch.join("kept"), folder);
        moved.or_else(|error| if folder.join(ORDER).exists() { Ok(()) } else { Err(format!("{error}")) })
    });
    fs::remove_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display())).and(outcome)
}

/// Downloads and unpacks the package into `scratch`; returns the root of its files.
fn fetch(scratch: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let package = match newest() {
        Some(package) => package,
        None => {
            packages::refresh()?;
            newest().ok_or(format!("no package {NEWEST}: the guest's kernel is Debian's"))?
        }
    };
    println!("rdma-guest: downloading {package} into {FOLDER}, once");
    let get = || {
        let mut command = packages::apt_get();
        // Otherwise apt, run by root, downloads as a user that cannot write here.
        command.args(["-o", "APT::Sandbox::User=root", "download", &package]).current_dir(scratch);
        command
    };
    // Outdated package lists name versions that no longer exist.
    run(&mut get()).or_else(|_| packages::refresh().and_then(|()| run(&mut get())))?;
    let archive = files(scratch).into_iter().find(|path| path.extension().is_some_and(|end| end == "deb"));
    let archive = archive.ok_or_else(|| format!("apt-get left no package in {}", scratch.display()))?;
    let tree = scratch.join("tree");
    run(Command::new("dpkg-deb").arg("--extract").args([&archive, &tree]))?;
    Ok(tree)
}

/// The name of the kernel's own package.
fn newest() -> Option<String> {
    let output = Command::new("apt-cache").args(["depends", "--important", NEWEST]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().find_map(|line| line.trim().strip_prefix("Depends: ")).map(str::to_owned)
}

/// Copies the files of an unpacked package that the guest needs to `kept`.
fn keep(tree: &Path, kept: &Path) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(kept).map_err(|error| failed(kept, error))?;
    let boot = files(&tree.join("boot"));
    let image = boot.iter().find(|path| name(path).starts_with("vmlinuz")).ok_or("the package has no kernel")?;
    fs::copy(image, kept.join("vmlinuz")).map_err(|error| failed(image, error))?;

    // On systems where /lib is a link, modules are below /usr.
    let roots = ["lib/modules", "usr/lib/modules"].map(|root| tree.join(root));
    let available: BTreeMap<String, PathBuf> =
        roots.iter().flat_map(|root| files(root)).map(|path| (module(&path), path)).collect();
    let mut order = Vec::new();
    for wanted in MODULES {
        depend(wanted, &available, &mut order)?;
    }
    for module in &order {
        let (from, to) = (&available[module], kept.join(module));
        fs::copy(from, &to).map_err(|error| failed(from, error))?;
    }
    fs::write(kept.join(ORDER), order.join("\n")).map_err(|error| failed(kept, error))
}

/// Appends `module` to `order`, after all its dependencies.
fn depend(module: &str, available: &BTreeMap<String, PathBuf>, order: &mut Vec<String>) -> Result<(), String> {
    if order.iter().any(|known| known == module) {
        return Ok(());
    }
    let path = available.get(module).ok_or_else(|| format!("the kernel's package lacks the module {module}"))?;
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    for below in dependencies(&bytes) {
        depend(&below, available, order)?;
    }
    order.push(module.to_owned());
    Ok(())
}

/// The entry `depends` in a module's `.modinfo`: names between commas, ended by a zero byte.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[start + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = value.split(|byte| *byte == b',').filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).replace('-', "_")).collect()
}

/// A module's name: that of its file without the ending, with the kernel's spelling of the hyphen.
fn module(path: &Path) -> String {
    let name = name(path);
    name.split_once(".ko").map_or(name.as_str(), |(stem, _)| stem).replace('-', "_")
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{dependencies, module};
    use std::path::Path;

    #[test]
    fn dependencies_are_read_from_the_modinfo_section() {
        let section = b"license=GPL\0depends=ib_uverbs,udp-tunnel\0retpoline=Y\0";
        assert_eq!(dependencies(section), ["ib_uverbs", "udp_tunnel"]);
        assert!(dependencies(b"license=GPL\0depends=\0intree=Y\0").is_empty());
        assert!(dependencies(b"no section at all").is_empty());
    }

    #[test]
    fn a_module_is_named_as_the_kernel_names_it() {
        assert_eq!(module(Path::new("kernel/crypto/crc32-generic.ko")), "crc32_generic");
    }
}
