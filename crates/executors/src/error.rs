//! Why the role cannot start.

use std::io;
use std::path::PathBuf;

/// Why the role cannot start, or cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorsError {
    /// A setting.
    #[error("{0}")]
    Setting(String),
    /// A file or a socket.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The machine forbids namespaces.
    #[error(
        "no process can be started in new namespaces: {0}. Start the role as root, or allow them: sysctl \
         user.max_user_namespaces=10000, kernel.unprivileged_userns_clone=1 and, with AppArmor, \
         kernel.apparmor_restrict_unprivileged_userns=0. --without-namespaces does without them: executors then see the \
         host's processes, network and files as far as their filter of system calls lets them"
    )]
    Namespaces(String),
    /// The machine has no cgroups for the role.
    #[error(
        "executors cannot be limited: {0}. Start the role as root, or in a cgroup that is delegated to its user (systemd-run \
         --user --property=Delegate=yes). --without-limits does without: an executor then takes what memory and processors \
         there are"
    )]
    Limits(String),
    /// The operating system.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it says.
        source: io::Error,
    },
    /// What is there shows nothing.
    #[error("{}: {reason}", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The role answers with something else than it should.
    #[error("{}: {problem}; is a role of another release there?", path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl ExecutorsError {
    /// For `map_err` of system calls.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> ExecutorsError {
        move |error| ExecutorsError::System { what, source: error.into() }
    }
}
