//! Starts the process of an executor: in new namespaces, with no descriptors but its own, and waiting until its limits are in force.
//!
//! 1. The role copies itself (`clone3`) into new namespaces. The copy waits for a byte.
//! 2. The role moves the copy into its cgroup, and says which user of the host its only user is.
//! 3. The byte comes. The copy becomes that user, has the kernel kill it when the role's thread ends, may gain no rights any more, gets bounds,
//!    leaves the session, arranges its descriptors, and becomes `heddle-executor`. What fails is written to a second pipe, which otherwise
//!    ends here.
//!
//! The copy is that of a process with several threads, so it makes system calls alone, and touches nothing but what was prepared before.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::path::Path;
use std::ptr;

use bare::PAGE_BYTES;
use bare::system_call::{Errno, exit_group, system_call};
use cgroup::LimitedGroup;
use pushdown::{
    AREA_FILE, CONTEXTS_ARGUMENT, DEVICE_ARGUMENT, DEVICE_FILE, MEMORY_PAGES_ARGUMENT, NAMESPACES_ARGUMENT, SOCKET,
    STORAGE_FILE, STORAGE_PAGES_ARGUMENT,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::ending::ExitStatus;
use crate::error::ExecutorsError;
use crate::peer::ClientIdentity;
use crate::settings::ExecutorsSettings;
use crate::storage::StorageFolder;

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP;
/// Descriptors are moved above these before they are arranged.
const DESCRIPTOR_MIN: RawFd = 128;
/// The numbers of an executor's files are below this.
const FILES_MAX: u64 = 128;
const _: () = assert!(STORAGE_FILE < DESCRIPTOR_MIN && (STORAGE_FILE as u64) < FILES_MAX);
const DEVICE: &str = "/dev/userfaultfd";
/// A C library whose memory is gone must not have the kernel write to it.
const ENVIRONMENT: &std::ffi::CStr = c"GLIBC_TUNABLES=glibc.pthread.rseq=0";

/// `struct clone_args`.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// What the copy does before it becomes an executor, for messages.
const STEPS: [&str; 8] = [
    "becoming its user",
    "being ended with the role",
    "giving up to gain rights",
    "bounding what it may use",
    "leaving the session",
    "having descriptors close at the end",
    "arranging its own",
    "executing heddle-executor",
];

/// All that the copy needs.
struct ChildPlan {
    /// The ends of the pipe on which the byte comes, and that of the pipe for failures.
    go: RawFd,
    go_writer: RawFd,
    failures: RawFd,
    /// Each descriptor, and what it shall be.
    files: [(RawFd, RawFd); 5],
    files_count: usize,
    program: RawFd,
    /// The user and the group that the copy becomes, by their numbers in its namespace.
    user: Option<(u32, u32)>,
    /// Bytes that a file of the copy may have.
    file_bytes: u64,
    arguments: *const *const c_char,
    environment: *const *const c_char,
}

/// Starts executors.
pub(crate) struct Launcher {
    program: OwnedFd,
    device: Option<OwnedFd>,
    null: OwnedFd,
    /// The folder of files for pages, and the bytes of a file.
    storage: Option<(StorageFolder, u64)>,
    has_namespaces: bool,
    own: (u32, u32),
    arguments: Vec<CString>,
}

/// The process of an executor. It is killed when this is dropped.
pub(crate) struct ExecutorProcess {
    descriptor: OwnedFd,
    number: u32,
    has_ended: bool,
}

/// A copy that waits for its byte, without which it ends.
struct HeldProcess {
    process: ExecutorProcess,
    go: File,
    failures: File,
}

impl Launcher {
    /// # Errors
    /// The program is not there, or the machine forbids what the settings want.
    pub(crate) fn new(settings: &ExecutorsSettings) -> Result<Launcher, ExecutorsError> {
        let open = |path: &Path, flags: OFlags| {
            rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
                .map_err(|error| ExecutorsError::File { path: path.to_path_buf(), source: error.into() })
        };
        let program = open(&settings.program, OFlags::PATH)?;
        let null = open(Path::new("/dev/null"), OFlags::RDWR)?;
        // Without it the executor makes the system call, which some machines allow.
        let device = open(Path::new(DEVICE), OFlags::RDWR).ok();
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut arguments = vec!["heddle-executor".to_owned(), format!("{CONTEXTS_ARGUMENT}{}", settings.contexts_max)];
        if device.is_some() {
            arguments.push(DEVICE_ARGUMENT.to_owned());
        }
        if settings.has_namespaces {
            arguments.push(NAMESPACES_ARGUMENT.to_owned());
        }
        if let Some((storage, memory_pages)) = settings.storage.as_ref().zip(settings.memory_pages()) {
            arguments.push(format!("{MEMORY_PAGES_ARGUMENT}{memory_pages}"));
            arguments.push(format!("{STORAGE_PAGES_ARGUMENT}{}", storage.pages()));
        }
        let storage = settings.storage.as_ref().map(|storage| {
            StorageFolder::open(&storage.folder).map(|folder| (folder, storage.pages() * PAGE_BYTES as u64))
        });
        let storage = storage.transpose()?;
        let arguments = arguments.into_iter().map(|argument| CString::new(argument).expect("it has no zero byte"));
        let arguments = arguments.collect();
        let has_namespaces = settings.has_namespaces;
        let launcher = Launcher { program, device, null, storage, has_namespaces, own, arguments };
        if settings.has_namespaces {
            launcher.try_namespaces().map_err(ExecutorsError::Namespaces)?;
        }
        Ok(launcher)
    }

    /// The user of the role.
    pub(crate) fn own_user(&self) -> u32 {
        self.own.0
    }

    /// Whether a process can be started as executors are; it ends at once.
    fn try_namespaces(&self) -> Result<(), String> {
        let held = self.hold(&self.null, &self.null, None, self.own)?;
        self.name_user(held.process.number, self.own)
    }

    /// Starts an executor for a program, in a group.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub(crate) fn launch(
        &self,
        client: &ClientIdentity,
        area: &OwnedFd,
        socket: &OwnedFd,
        group: Option<&LimitedGroup>,
    ) -> Result<ExecutorProcess, String> {
        // A role that is not root cannot have its executors be others.
        let user = if self.own.0 == 0 { (client.user, client.group) } else { self.own };
        let storage = self.storage.as_ref().map(|(folder, _)| folder.file()).transpose()?;
        let mut held = self.hold(area, socket, storage.as_ref(), user)?;
        if let Some(group) = group {
            group.add(held.process.number)?;
        }
        if self.has_namespaces {
            self.name_user(held.process.number, user)?;
        }
        held.go.write_all(&[1]).map_err(|error| format!("the executor's process: {error}"))?;
        let mut failure = Vec::new();
        held.failures.read_to_end(&mut failure).map_err(|error| format!("the executor's process: {error}"))?;
        match failure[..] {
            [] => Ok(held.process),
            [step, ref error @ ..] => {
                let step = STEPS.get(usize::from(step)).copied().unwrap_or("an unknown step");
                let error = error.try_into().map_or(0, i32::from_le_bytes);
                Err(format!("{step}: {}", io::Error::from_raw_os_error(error)))
            }
        }
    }

    /// Says which user of the host is the only one of a process's namespace.
    fn name_user(&self, process: u32, (user, group): (u32, u32)) -> Result<(), String> {
        let write = |name: &str, text: &str| {
            let path = format!("/proc/{process}/{name}");
            let file = std::fs::OpenOptions::new().write(true).open(&path);
            let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
            written.map_err(|error| format!("{path}: {error}"))
        };
        if self.own.0 != 0 {
            write("setgroups", "deny")?;
        }
        write("gid_map", &format!("0 {group} 1"))?;
        write("uid_map", &format!("0 {user} 1"))
    }

    /// A copy of this process that waits.
    fn hold(
        &self,
        area: &OwnedFd,
        socket: &OwnedFd,
        storage: Option<&OwnedFd>,
        user: (u32, u32),
    ) -> Result<HeldProcess, String> {
        let system = |error: rustix::io::Errno| format!("the executor's process: {}", io::Error::from(error));
        let (go, go_writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
        let (failures, failures_writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
        let wanted = [
            Some((socket, SOCKET)),
            Some((area, AREA_FILE)),
            Some((&self.null, libc::STDERR_FILENO)),
            self.device.as_ref().map(|device| (device, DEVICE_FILE)),
            storage.map(|storage| (storage, STORAGE_FILE)),
        ];
        // Out of the way of what they shall be.
        let moved = |file: &OwnedFd| fcntl_dupfd_cloexec(file, DESCRIPTOR_MIN).map_err(system);
        let kept = [moved(&go)?, moved(&failures_writer)?, moved(&self.program)?];
        let mut sources = Vec::new();
        let (mut files, mut files_count) = ([(0, 0); 5], 0);
        for (file, target) in wanted.into_iter().flatten() {
            let source = moved(file)?;
            files[files_count] = (source.as_raw_fd(), target);
            files_count += 1;
            sources.push(source);
        }
        let ended = |strings: &mut Vec<*const c_char>| strings.push(ptr::null());
        let mut arguments: Vec<*const c_char> = self.arguments.iter().map(|argument| argument.as_ptr()).collect();
        let mut environment = vec![ENVIRONMENT.as_ptr()];
        ended(&mut arguments);
        ended(&mut environment);
        let user = match self.has_namespaces {
            true => Some((0, 0)),
            false => Some(user).filter(|_| self.own.0 == 0),
        };
        let plan = ChildPlan {
            go: kept[0].as_raw_fd(),
            go_writer: go_writer.as_raw_fd(),
            failures: kept[1].as_raw_fd(),
            files,
            files_count,
            program: kept[2].as_raw_fd(),
            user,
            file_bytes: storage.and(self.storage.as_ref()).map_or(0, |(_, bytes)| *bytes),
            arguments: arguments.as_ptr(),
            environment: environment.as_ptr(),
        };
        let mut descriptor: RawFd = -1;
        let namespaces = if self.has_namespaces { NAMESPACES } else { 0 };
        let clone = CloneArguments {
            flags: (namespaces | libc::CLONE_PIDFD) as u64,
            pidfd: (&raw mut descriptor).addr() as u64,
            exit_signal: libc::SIGCHLD as u64,
            ..CloneArguments::default()
        };
        // SAFETY: the kernel reads one structure and writes one number. The child, which has a copy of all memory, calls one function, which
        // makes system calls alone and never returns.
        let number = unsafe {
            match system_call(libc::SYS_clone3, [(&raw const clone).addr(), size_of::<CloneArguments>()]) {
                Ok(0) => become_executor(&plan),
                other => other,
            }
        };
        let number = number.map_err(|Errno(error)| {
            let what = if self.has_namespaces { "starting a process in new namespaces" } else { "starting a process" };
            format!("{what}: {}", io::Error::from_raw_os_error(error))
        })?;
        // SAFETY: the kernel has just opened it, for this process alone.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let process = ExecutorProcess { descriptor, number: number as u32, has_ended: false };
        Ok(HeldProcess { process, go: go_writer.into(), failures: failures.into() })
    }
}

impl ExecutorProcess {
    /// Its number at this host.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Becomes readable when it has ended.
    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Ends it. It may have ended already.
    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
    }

    /// How it ended, once it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        let status = waitid(WaitId::PidFd(self.descriptor.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        let status = match status {
            Ok(None) => return None,
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => ExitStatus::Exited(code),
                (None, Some(signal)) => ExitStatus::Signalled(signal),
                (None, None) => ExitStatus::Unknown,
            },
            // Somebody else has asked.
            Err(_) => ExitStatus::Unknown,
        };
        self.has_ended = true;
        Some(status)
    }
}

impl Drop for ExecutorProcess {
    fn drop(&mut self) {
        if !self.has_ended {
            self.kill();
            let _ = waitid(WaitId::PidFd(self.descriptor.as_fd()), WaitIdOptions::EXITED);
        }
    }
}

/// What the copy does. It never returns.
///
/// # Safety
/// To be called in a copy of this process that has one thread. What the plan points to is there.
unsafe fn become_executor(plan: &ChildPlan) -> ! {
    let mut byte = 0_u8;
    // SAFETY: the kernel reads and writes variables of this function, and strings of the plan. All descriptors are this process's.
    unsafe {
        // Else the end of the role would not be the end of the pipe.
        let _ = system_call(libc::SYS_close, [plan.go_writer as usize]);
        if system_call(libc::SYS_read, [plan.go as usize, (&raw mut byte).addr(), 1]) != Ok(1) {
            exit_group(0);
        }
        let error = match prepare(plan) {
            Ok(()) => {
                let empty = c"".as_ptr().addr();
                let arguments = [
                    plan.program as usize,
                    empty,
                    plan.arguments.addr(),
                    plan.environment.addr(),
                    libc::AT_EMPTY_PATH as usize,
                ];
                (STEPS.len() - 1, system_call(libc::SYS_execveat, arguments).err())
            }
            Err((step, error)) => (step, Some(error)),
        };
        let number = error.1.map_or(0, |error| error.0).to_le_bytes();
        let message = [error.0 as u8, number[0], number[1], number[2], number[3]];
        let _ = system_call(libc::SYS_write, [plan.failures as usize, message.as_ptr().addr(), message.len()]);
    }
    exit_group(1)
}

/// The steps of the copy, up to the last one.
///
/// # Safety
/// As for [`become_executor`].
unsafe fn prepare(plan: &ChildPlan) -> Result<(), (usize, Errno)> {
    let at = |step: usize| move |error: Errno| (step, error);
    // SAFETY: as for the caller.
    unsafe {
        if let Some((user, group)) = plan.user {
            let (user, group) = (user as usize, group as usize);
            // In a namespace of a role that is not root there are no groups to give up, and this is refused.
            let _ = system_call(libc::SYS_setgroups, [0, 0]);
            system_call(libc::SYS_setresgid, [group, group, group]).map_err(at(0))?;
            system_call(libc::SYS_setresuid, [user, user, user]).map_err(at(0))?;
        }
        // After that, since a change of the user forgets it.
        let end = [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0, 0];
        system_call(libc::SYS_prctl, end).map_err(at(1))?;
        let mut poll = libc::pollfd { fd: plan.go, events: 0, revents: 0 };
        let polled = system_call(libc::SYS_poll, [(&raw mut poll).addr(), 1, 0]).map_err(at(1))?;
        if polled != 0 {
            // The role has ended meanwhile.
            exit_group(0);
        }
        system_call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0]).map_err(at(2))?;
        for (resource, most) in [
            (libc::RLIMIT_CORE, 0),
            (libc::RLIMIT_NOFILE, FILES_MAX),
            (libc::RLIMIT_FSIZE, plan.file_bytes),
            (libc::RLIMIT_MEMLOCK, 0),
            (libc::RLIMIT_MSGQUEUE, 0),
        ] {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            let arguments = [0, resource as usize, (&raw const limit).addr(), 0];
            system_call(libc::SYS_prlimit64, arguments).map_err(at(3))?;
        }
        system_call(libc::SYS_setsid, []).map_err(at(4))?;
        // All of them, before those that stay are made.
        let at_the_end = libc::CLOSE_RANGE_CLOEXEC as usize;
        system_call(libc::SYS_close_range, [0, u32::MAX as usize, at_the_end]).map_err(at(5))?;
        for (source, target) in plan.files.iter().take(plan.files_count) {
            system_call(libc::SYS_dup2, [*source as usize, *target as usize]).map_err(at(6))?;
        }
    }
    Ok(())
}
