//! Starting an executor: as a child of this process, or by asking the role *executors*. Uses the C library.
//!
//! With the role
//! 1. this process connects to the role's socket, sends the area and one end of a pair of sockets, and keeps the connection;
//! 2. the role says that the executor has started, and whether that is on another host, or why there is none;
//! 3. this process waits until the executor is ready, as for a child, or until the role says that it has ended.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use pushdown::{AREA_BYTES, Area, BeginStep, CALLER_PRIVATE, ExecutorState, RoleNotice, RoleRequest, Shape, area_file};

use crate::descriptors::keep;
use crate::executor_process::{ExecutorProcess, next_notice};
use crate::executor_storage::{ExecutorStorage, pages_of};
use crate::places::AREA;
use crate::settings::{ExecutorSource, Settings};

/// Where the program looks for the executor's program.
const EXECUTOR_VARIABLE: &str = "HEDDLE_EXECUTOR";
/// Where the program looks for the socket of the role executors.
const ROLE_VARIABLE: &str = "HEDDLE_EXECUTORS";
const EXECUTOR_NAME: &str = "heddle-executor";
/// How long the executor may take to begin.
const BEGIN_SECONDS: u64 = 30;
/// How often it is looked whether it has begun.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// An executor that can be called.
pub(crate) struct StartedExecutor {
    pub(crate) area: Area,
    /// This process's end of the pair of sockets.
    pub(crate) socket: i32,
    pub(crate) process: ExecutorProcess,
}

impl ExecutorSource {
    /// Who starts it, once the environment was asked.
    fn resolve(self) -> Result<ExecutorSource, String> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        match self {
            ExecutorSource::Usual => Ok(match (variable(ROLE_VARIABLE), variable(EXECUTOR_VARIABLE)) {
                (Some(socket), _) => ExecutorSource::Role(socket),
                (None, Some(program)) => ExecutorSource::Program(program),
                (None, None) => ExecutorSource::Program(program_beside_library()?),
            }),
            chosen => Ok(chosen),
        }
    }
}

/// The executor's program beside the library.
fn program_beside_library() -> Result<PathBuf, String> {
    // SAFETY: the structure is filled by the call; the name in it stays as long as the library.
    let library = unsafe {
        let mut found: libc::Dl_info = mem::zeroed();
        let known =
            libc::dladdr(program_beside_library as *const c_void, &mut found) != 0 && !found.dli_fname.is_null();
        known.then(|| PathBuf::from(CStr::from_ptr(found.dli_fname).to_string_lossy().into_owned()))
    };
    let folder = library.as_ref().and_then(|library| library.parent());
    folder.map(|folder| folder.join(EXECUTOR_NAME)).ok_or_else(|| {
        format!("set {EXECUTOR_VARIABLE} to the executor's path, or {ROLE_VARIABLE} to the role's socket")
    })
}

/// Starts an executor, and waits until it can be called. `vdso` is where this process has it, `shape` the link that is to be imitated.
///
/// # Errors
/// The reason, for people.
pub(crate) fn start_executor(settings: &Settings, vdso: u64, shape: Shape) -> Result<StartedExecutor, String> {
    let source = settings.source.clone().resolve()?;
    let storage = settings.storage.as_ref();
    let memory_pages = match (&source, storage) {
        (ExecutorSource::Role(path), Some(storage)) => {
            return Err(format!(
                "the program wants its pages stored in {}, and its executor is of the role executors at {}, which decides where \
                 that is: leave the option storage out; `heddle farmem executors --storage DIR` stores pages of all executors",
                storage.folder.display(),
                path.display()
            ));
        }
        (ExecutorSource::Role(_), None) => Some(settings.memory_bytes).filter(|bytes| *bytes > 0).map(pages_of),
        (_, storage) => storage.map(ExecutorStorage::memory_pages),
    };
    let file = area_file().map_err(|error| format!("shared memory: {error}"))?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE);
    // SAFETY: the kernel refuses to replace a mapping.
    let mapped = unsafe { libc::mmap(AREA as *mut c_void, AREA_BYTES, protection, flags, file.as_raw_fd(), 0) };
    if mapped as usize != AREA {
        let range = CALLER_PRIVATE;
        return Err(format!("the program uses addresses from {:#x} on, where the library has its memory", range.start));
    }
    // SAFETY: it was just mapped, and stays if the executor begins.
    let area = unsafe { Area::at(AREA) };
    area.prepare(settings.contexts, vdso, shape, memory_pages);
    let started = UnixStream::pair().map_err(|error| format!("a socket: {error}")).and_then(|(ours, theirs)| {
        let socket = keep(ours.into())?;
        let process = match &source {
            ExecutorSource::Role(path) => ask_role(path, &area, &file, &theirs.into()),
            ExecutorSource::Program(path) => start_child(path, &area, file, theirs.into(), storage),
            ExecutorSource::Usual => Err("nobody was asked for an executor".to_owned()),
        };
        if process.is_err() {
            // SAFETY: the descriptor is of no use any more.
            drop(unsafe { OwnedFd::from_raw_fd(socket) });
        }
        Ok(StartedExecutor { area, socket, process: process? })
    });
    if started.is_err() {
        // SAFETY: nothing uses the area any more, and the next try maps another one.
        unsafe { libc::munmap(AREA as *mut c_void, AREA_BYTES) };
    }
    started
}

/// Starts the executor as a child.
fn start_child(
    path: &Path,
    area: &Area,
    file: File,
    socket: OwnedFd,
    storage: Option<&ExecutorStorage>,
) -> Result<ExecutorProcess, String> {
    let mut command = Command::new(path);
    // A C library whose memory is gone must not have the kernel write to it.
    command.env_clear().env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    command.stdin(socket).stdout(file);
    let passed = storage.map(|storage| storage.pass_to(&mut command)).transpose()?;
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", path.display()))?;
    drop(passed);
    let process = descriptor_of(&child);
    let ended = |child: &mut Child| match child.try_wait() {
        Ok(Some(status)) => Some(format!("the executor has ended: {status}")),
        _ => None,
    };
    if let Err(reason) = wait_until_ready(area, || ended(&mut child)) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(reason);
    }
    process
}

/// A descriptor of a child.
fn descriptor_of(child: &Child) -> Result<ExecutorProcess, String> {
    // SAFETY: the call has no memory argument; the kernel gives the descriptor to us alone.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) };
    if descriptor < 0 {
        return Err(format!("a descriptor of the executor: {}", io::Error::last_os_error()));
    }
    // SAFETY: as above.
    let descriptor = keep(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })?;
    Ok(ExecutorProcess::Child { descriptor, number: child.id() })
}

/// Has the role start the executor.
fn ask_role(path: &Path, area: &Area, file: &File, socket: &OwnedFd) -> Result<ExecutorProcess, String> {
    let about = |error: io::Error| {
        format!("the role executors at {}: {error}; `heddle farmem executors --socket PATH` runs one", path.display())
    };
    let control = connect(path).map_err(about)?;
    let hello = RoleRequest::hello(area.contexts()).encode();
    send_with_files(&control, &hello, [file.as_raw_fd(), socket.as_raw_fd()]).map_err(about)?;
    let control = keep(control)?;
    let started = await_role(control, area);
    if started.is_err() {
        // SAFETY: the descriptor is of no use any more.
        drop(unsafe { OwnedFd::from_raw_fd(control) });
    }
    started.map_err(|reason| format!("the role executors at {}: {reason}", path.display()))
}

/// Waits for the role's answer, and for its executor.
fn await_role(control: i32, area: &Area) -> Result<ExecutorProcess, String> {
    let system = |error: bare::system_call::Errno| match error.0 {
        libc::EPIPE => "it has closed the connection".to_owned(),
        other => io::Error::from_raw_os_error(other).to_string(),
    };
    let (number, is_elsewhere) = match next_notice(control, Duration::from_secs(BEGIN_SECONDS)).map_err(system)? {
        Some(RoleNotice::Started { process, is_elsewhere }) => (process, is_elsewhere),
        Some(RoleNotice::Refused(reason) | RoleNotice::Ended(reason)) => return Err(reason),
        Some(RoleNotice::Shown(_)) => return Err("it answers something else".to_owned()),
        None => return Err(format!("it has not answered within {BEGIN_SECONDS} s")),
    };
    wait_until_ready(area, || match next_notice(control, Duration::ZERO) {
        Ok(None) => None,
        Ok(Some(RoleNotice::Ended(reason))) => Some(format!("the executor has ended: {reason}")),
        Ok(Some(_)) => Some("it answers something else".to_owned()),
        Err(error) => Some(system(error)),
    })?;
    Ok(ExecutorProcess::OfRole { control, number, is_elsewhere })
}

/// Waits until the executor says that it is ready. `has_ended` says why it will not.
#[allow(clippy::disallowed_methods)] // The program has one thread, which has nothing else to do.
fn wait_until_ready(area: &Area, mut has_ended: impl FnMut() -> Option<String>) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        // Before the state: what it has said before its end counts.
        let end = has_ended();
        match area.state() {
            ExecutorState::Ready => return Ok(()),
            ExecutorState::Failed { error, step } => {
                let (step, error) = (BeginStep::describe(step), io::Error::from_raw_os_error(error as i32));
                return Err(format!("the executor cannot begin: {step}: {error}"));
            }
            ExecutorState::Starting => {}
        }
        if let Some(reason) = end {
            return Err(reason);
        }
        if begun.elapsed() > Duration::from_secs(BEGIN_SECONDS) {
            return Err(format!("the executor did not begin within {BEGIN_SECONDS} s"));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A connection to the role.
fn connect(path: &Path) -> io::Result<OwnedFd> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: all zeros are an address.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is too long for a socket"));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = *byte as libc::c_char;
    }
    // SAFETY: the kernel gives the descriptor to us alone, and reads the address.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let bytes = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        match libc::connect(socket.as_raw_fd(), (&raw const address).cast(), bytes) {
            0 => Ok(socket),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Sends a message with two descriptors.
fn send_with_files(socket: &OwnedFd, message: &[u8], files: [i32; 2]) -> io::Result<()> {
    #[repr(C)]
    struct Passed {
        header: libc::cmsghdr,
        files: [i32; 2],
    }
    // SAFETY: all zeros are headers.
    let (mut passed, mut header): (Passed, libc::msghdr) = unsafe { (mem::zeroed(), mem::zeroed()) };
    passed.header.cmsg_level = libc::SOL_SOCKET;
    passed.header.cmsg_type = libc::SCM_RIGHTS;
    passed.header.cmsg_len = size_of::<Passed>() as _;
    passed.files = files;
    let mut part = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = ((&raw mut passed).cast(), size_of::<Passed>() as _);
    // SAFETY: the kernel reads the message and the descriptors' numbers, which live as long as the call.
    match unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
