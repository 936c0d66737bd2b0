//! The Debian packages from which the guest is built.

use std::path::Path;
use std::process::Command;

use crate::step::{first_line, run};

/// A file that must exist, and the package that provides it.
const NEEDED: &[(&str, &str)] = &[
    ("/usr/bin/qemu-system-x86_64", "qemu-system-x86"),
    ("/bin/busybox", "busybox-static"),
    (super::image::RDMA_TOOL, "iproute2"),
    (super::image::PROVIDER, "ibverbs-providers"),
    // The binding is generated and its shim compiled when `rma` is built with the feature.
    ("/usr/bin/cmake", "cmake"),
    ("/usr/bin/cc", "gcc"),
    ("/usr/lib/llvm-14/lib/libclang.so", "libclang-dev"),
];

/// Checks that all packages are installed, and installs missing ones if that is allowed.
pub fn provide() -> Result<(), String> {
    if std::env::consts::ARCH != "x86_64" {
        return Err("the guest's packages are those of an x86-64 host".to_owned());
    }
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    let advice = format!(
        "install them with `apt-get install --no-install-recommends {names}`, or leave this step out \
                          with `--without rdma-guest`"
    );
    if first_line("id", &["-u"]).as_deref() != Some("0") || first_line("apt-get", &["--version"]).is_none() {
        return Err(format!("Debian packages are missing and only root can install them: {names}; {advice}"));
    }
    println!("rdma-guest: installing {names}");
    refresh()?;
    let mut install = apt_get();
    install.args(["install", "--yes", "--no-install-recommends"]).args(&missing);
    run(&mut install).map_err(|reason| format!("{reason}; {advice}"))?;
    match self::missing().as_slice() {
        [] => Ok(()),
        still => Err(format!("{} are installed, but one of their files is missing", still.join(" "))),
    }
}

fn missing() -> Vec<&'static str> {
    let absent = NEEDED.iter().filter(|(file, _)| !present(file));
    absent.map(|(_, package)| *package).collect()
}

/// Any version of LLVM is accepted, because Debian's releases have different ones.
fn present(file: &str) -> bool {
    if !file.ends_with("libclang.so") {
        return Path::new(file).exists();
    }
    let versions = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    versions
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("llvm-"))
        .any(|entry| entry.path().join("lib/libclang.so").exists())
}

/// Updates the package lists.
pub fn refresh() -> Result<(), String> {
    run(apt_get().arg("update"))
}

/// An `apt-get` that waits until another process has finished with the packages.
pub fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.args(["--quiet=2", "-o", "DPkg::Lock::Timeout=120"]).env("DEBIAN_FRONTEND", "noninteractive");
    command
}
