//! The role *executors*: runs the executors of programs that push functions down (TELEPORT, section 3), beside memory nodes.
//!
//! The role starts `heddle-executor` for a program, which otherwise would start it as its child. The executor has the program's memory and
//! nothing else of the host; the role limits and supervises it. [`pushdown`] has what the program and its executor say to each other; the
//! role reads nothing of that but the head of their area.
//!
//! ```no_run
//! use executors::{ExecutorsRole, ExecutorsSettings};
//!
//! let settings = ExecutorsSettings::new("/run/heddle/executors".into(), "/usr/lib/heddle/heddle-executor".into());
//! let role = ExecutorsRole::start(settings)?;
//! for executor in role.view().executors {
//!     println!("{} of user {}: {} calls", executor.process, executor.owner, executor.begun);
//! }
//! role.stop();
//! # Ok::<(), executors::ExecutorsError>(())
//! ```
//!
//! # Steps
//!
//! 1. **Connecting.** A program connects to the role's socket. The kernel says which user and which process it is; the user is the *owner* of
//!    what follows. Until its hello a connection is a stranger: there are at most [`STRANGERS_MAX`], the oldest gives way to a newer one, that
//!    of the same owner first, and each has 5 s.
//! 2. **Hello.** The program sends [`RoleRequest::Hello`](pushdown::RoleRequest) with two descriptors: the area, and the executor's end of its
//!    pair of sockets. The role checks versions, the processor's extensions, the owner, the bounds, and the descriptors: the area is memory of its
//!    exact size that can never shrink. What does not hold is refused by name, and the connection is closed.
//! 3. **Starting.** The role makes a cgroup with the limits, within that of the owner if owners are limited, and a process in new namespaces
//!    (user, process, network, mount, IPC, name, cgroup). The process waits until it is in its cgroup and has its user: the owner, or the role's own user if the role is not root. It keeps
//!    the two descriptors, `/dev/userfaultfd`, and a file for pages that it has no memory for if the settings have a folder for that. It loses the environment, and becomes `heddle-executor`, which leaves the file system, gives its
//!    rights up and filters its system calls before it runs a function. The role answers with the process's number.
//! 4. **Serving.** The program and its executor talk without the role. The connection stays: its end is the executor's. The role looks at the
//!    area's head and at the cgroup ten times a second at most, and answers [`RoleRequest::Show`](pushdown::RoleRequest).
//! 5. **Sickness.** Messages wait for the executor, and it takes none. After a quarter of the silence that is allowed it is *sick*, which health,
//!    metrics and `heddle farmem top` show; after all of it the role kills it. Time counts only as far as the role itself ran. An executor
//!    that waits for room, since its program takes nothing, is not sick.
//! 6. **Ending.** An executor ends when the connection ends, when the program does, when it has broken a rule, when the kernel ends it for its
//!    memory, when it is silent, or with the role: the kernel kills it when the role's thread is gone. The role learns of it by the process's
//!    descriptor, says why ([`RoleNotice::Ended`](pushdown::RoleNotice)) on the connection, and removes the cgroup. The owner's cgroup goes
//!    with the last one in it.
//! 7. **Stopping.** The role admits nobody any more. Executors go on until no function runs and none waits, for the grace of the settings at most.
//!    Then the role kills all executors, and tells their programs why.
//!
//! | message | direction | what the receiver does |
//! |---|---|---|
//! | hello | program to role | steps 2 and 3 |
//! | started, refused | role to program | waits for its executor to begin, or fails with the reason |
//! | ended | role to program | its calls are lost, for this reason |
//! | show, shown | command to role and back | the executors of the caller's user; root and the role's user see all |
//!
//! # Invariants
//!
//! 1. No owner has more executors than its bound, and all owners together no more than theirs; a refusal changes nothing.
//! 2. A process runs no instruction of `heddle-executor` before its limits are in force.
//! 3. The role maps nothing that a client has sent: it reads the area's head by `pread`, so no client can end it by SIGBUS or have it pay for a page.
//! 4. What the area says is a claim of its owner. It moves counts of that owner, within bounds, and ends that owner's executor; nothing else.
//! 5. One thread does all of this, and never waits for a client.
//!
//! # What it needs around it
//!
//! - Linux 6.11 on x86-64; namespaces that the role's user may make, and cgroups that it may make groups in, unless the settings do without.
//! - Above: `heddle farmem executors` is the command, with metrics and health; a memory node's file has it run beside that node.
//! - Programs of other hosts come by the relay (`heddle-executor-relay`), which is a program to the role. Root's and the role's own
//!   processes alone may ask for another user ([`ProgramElsewhere`](pushdown::ProgramElsewhere)), who is never root.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![deny(missing_docs)]

mod admission;
mod area_file;
mod client;
mod ending;
mod error;
pub mod events;
#[doc(hidden)]
pub mod fuzz;
mod groups;
#[cfg(test)]
mod hostile_tests;
mod launch;
mod member;
mod owners;
mod peer;
mod published;
pub mod relay;
mod role;
mod server;
mod settings;
mod settings_file;
mod socket;
mod storage;
mod strangers;
mod supervision;
mod view;

pub use client::show;
pub use error::ExecutorsError;
pub use owners::{OWNER_METRICS, OwnerMetric};
pub use role::ExecutorsRole;
pub use settings::{ExecutorsSettings, OwnersAllowed};
pub use settings_file::ExecutorsFile;
pub use storage::StorageSettings;
pub use strangers::STRANGERS_MAX;
pub use view::{EndCount, ExecutorCondition, ExecutorView, RoleView};
