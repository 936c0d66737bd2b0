//! What a profile of remote accesses consists of.

use std::num::NonZeroU32;
use std::time::Duration;

/// How remote accesses are sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileConfig {
    /// One of this many accesses of a thread is sampled, at random distances with this mean. 1 samples each.
    pub every: NonZeroU32,
    /// Whether the callers of each access are searched for, and not only those of libraries that run on behalf of others.
    pub callers: bool,
}

impl Default for ProfileConfig {
    /// Each access, without callers.
    fn default() -> ProfileConfig {
        ProfileConfig { every: NonZeroU32::MIN, callers: false }
    }
}

/// Something that has code of a program.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CodeObject {
    /// The thread's position could not be read, or no mapping has the address.
    Unknown,
    /// Memory that is no file's: code that the program has made itself.
    Anonymous,
    /// Code of the kernel's, such as `[vdso]`.
    Kernel(String),
    /// A file.
    File {
        /// Its path, as the kernel showed it.
        path: String,
        /// The number of its inode: another file of that path has another one.
        inode: u64,
    },
}

/// The beginnings of names of libraries that run on behalf of their callers: the C and C++ runtimes, and the allocator of
/// far heaps.
const RUNTIMES: [&str; 11] = [
    "libc.so",
    "libc-2.",
    "libc.musl",
    "ld-linux",
    "ld-musl",
    "libm.so",
    "libpthread",
    "libstdc++.so",
    "libc++",
    "libgcc_s.so",
    "libheddle_farmem.so",
];

impl CodeObject {
    /// Whether the code runs on behalf of its caller, so that its accesses are its caller's.
    pub fn is_runtime(&self) -> bool {
        match self {
            CodeObject::Kernel(_) => true,
            CodeObject::File { path, .. } => {
                let name = path.rsplit('/').next().unwrap_or_default();
                RUNTIMES.iter().any(|runtime| name.starts_with(runtime))
            }
            CodeObject::Unknown | CodeObject::Anonymous => false,
        }
    }
}

/// A place in code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CodeAddress {
    /// The index of the object in [`AccessProfile::objects`].
    pub object: u32,
    /// The offset in the object's file; 0 in code that has none.
    pub offset: u64,
}

/// What looks like a return address on the stack: the code before it is a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ReturnAddress {
    /// The last byte of the call.
    pub address: CodeAddress,
    /// What it calls, if the instruction says that.
    pub target: Option<CodeAddress>,
}

/// The code of an access.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CodeSite {
    /// The instruction.
    pub leaf: CodeAddress,
    /// What the stack had above it, innermost first, without [runtimes](CodeObject::is_runtime). Some may be leftovers of
    /// calls that have returned.
    pub callers: Vec<ReturnAddress>,
}

/// The accesses of one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteAccesses {
    /// The code.
    pub site: CodeSite,
    /// Remote accesses: samples, each times the accesses that it stands for.
    pub accesses: u64,
    /// Pages that were asked for ahead of streams, likewise.
    pub pages_ahead: u64,
}

/// Accesses of threads at one site that came next after accesses at another one, or the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AccessRun {
    /// The index of the first in [`AccessProfile::sites`].
    pub from: u32,
    /// The index of the second.
    pub to: u32,
    /// The time between, in all.
    pub time: Duration,
    /// The same, if no time between two samples is counted as more than a millisecond.
    pub short_time: Duration,
}

/// The remote accesses of all programs of a server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessProfile {
    /// How it was sampled.
    pub config: ProfileConfig,
    /// What has code; addresses name them by index. The first is [`CodeObject::Unknown`].
    pub objects: Vec<CodeObject>,
    /// The first is that of all code that is unknown.
    pub sites: Vec<SiteAccesses>,
    /// The times between accesses.
    pub runs: Vec<AccessRun>,
    /// Remote accesses, those that were not sampled included.
    pub accesses: u64,
    /// How many of them were sampled.
    pub samples: u64,
    /// The first reason why code is unknown.
    pub failure: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_of_the_c_library_are_its_callers() {
        let file = |path: &str| CodeObject::File { path: path.to_owned(), inode: 1 };
        for path in ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/lib/libc-2.31.so"] {
            assert!(file(path).is_runtime(), "{path}");
        }
        for path in ["/usr/bin/libc", "/usr/lib/libcrypto.so.3", "/opt/libc.so.6/query", ""] {
            assert!(!file(path).is_runtime(), "{path}");
        }
    }
}
