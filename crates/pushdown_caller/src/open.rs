//! Opening: from an ordinary program to one whose memory an executor can have.
//!
//! This is the only part of the library that uses the C library and the program's environment.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bare::PAGE_BYTES;
use bare::alarm::Alarm;
use bare::userfault::{
    self, FEATURE_EVENT_REMAP, FEATURE_EVENT_REMOVE, FEATURE_EVENT_UNMAP, FEATURE_MOVE, FEATURE_WRITE_PROTECT,
    UserFaults,
};
use pushdown::{AREA_BYTES, Area, CALLER_PRIVATE, ExecutorState, Link, STORAGE_FILE, Shape, Side, cycles};

use crate::caller::Caller;
use crate::mappings::Mappings;
use crate::pages::Pages;
use crate::places::AREA;
use crate::rseq::{RSEQ_BYTES, RSEQ_OFFSET};
use crate::times::set_rate;
use crate::variables::make_anonymous;
use crate::wait::{is_open, set_open};
use crate::watch::Watch;
use crate::{forks, handler};

/// Where the program looks for the executor.
const EXECUTOR_VARIABLE: &str = "HEDDLE_EXECUTOR";
/// The link that is to be imitated.
const LINK_VARIABLE: &str = "HEDDLE_PUSHDOWN_LINK";
const EXECUTOR_NAME: &str = "heddle-executor";
/// Descriptors of the library are at least these, so that a program which closes the low ones does not close them.
const DESCRIPTOR_MIN: i32 = 200;
/// How long the executor may take to begin.
const BEGIN_SECONDS: u64 = 30;
/// How far apart the clock is read twice, to see how fast it runs: to 0.01 %, since a reading is off by 0.1 µs.
const CLOCKS_APART: Duration = Duration::from_millis(1);
const CLOCK_READINGS: u32 = 5;
/// The main thread's stack is mapped to its limit, or so far.
const STACK_BYTES_MAX: u64 = 64 << 20;
/// After which silence the executor is given up, if the program does not say.
const SILENCE: Duration = Duration::from_secs(10);

/// What the program chose.
#[derive(Default)]
pub(crate) struct Settings {
    /// The executor's path; if none, the environment's, or that beside the library.
    pub(crate) executor: Option<String>,
    /// Functions that run at the same time.
    pub(crate) contexts: u32,
    /// After which silence the executor is given up; `None`: [`SILENCE`].
    pub(crate) silence: Option<Duration>,
    /// The folder of the executor's file for pages, and how many bytes of pages the executor keeps in memory.
    pub(crate) storage: Option<(PathBuf, usize)>,
}

/// A line of `/proc/self/maps`.
struct MapsLine {
    pages: Range<u64>,
    permissions: String,
    inode: u64,
    path: String,
}

/// Opens the library.
///
/// # Errors
/// The reason, for people.
pub(crate) fn open(settings: &Settings) -> Result<(), String> {
    if is_open() {
        return Err("the process has an executor already".to_owned());
    }
    let threads = fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 {
        return Err(format!(
            "the process has {threads} threads; open the executor first, since the program's variables are moved to \
             memory whose faults the kernel can report"
        ));
    }
    let faults = userfault::open(
        FEATURE_WRITE_PROTECT | FEATURE_MOVE | FEATURE_EVENT_REMAP | FEATURE_EVENT_REMOVE | FEATURE_EVENT_UNMAP,
    );
    let explain = |error: bare::system_call::Errno| {
        format!(
            "userfaultfd: {}; it needs Linux 6.11 and access to /dev/userfaultfd, or the setting \
             vm.unprivileged_userfaultfd=1",
            io::Error::from_raw_os_error(error.0)
        )
    };
    let faults = out_of_the_way(faults.map_err(explain)?)?;
    let outgoing = out_of_the_way(userfault::open(FEATURE_WRITE_PROTECT | FEATURE_MOVE).map_err(explain)?)?;
    let lines = maps()?;
    let maps_file = File::open("/proc/self/maps").map_err(|error| format!("/proc/self/maps: {error}"))?;
    let mappings = Mappings::new(keep(maps_file.into())?, own_segments().variables);
    let memory_file = File::open("/proc/self/mem").map_err(|error| format!("/proc/self/mem: {error}"))?;
    let memory = keep(memory_file.into())?;
    mappings.check().map_err(|error| {
        format!("the kernel does not tell one mapping, as Linux does from 6.11 on (error {})", error.0)
    })?;
    find_rseq();
    grow_stack(&lines);
    let vdso = lines.iter().filter(|line| line.path.starts_with("[vvar")).map(|line| line.pages.start).min();
    let silence = settings.silence.unwrap_or(SILENCE);
    let alarm = Alarm::new().map_err(|error| format!("an alarm: error {}", error.0))?;
    // SAFETY: the descriptor was just opened, and nobody else has it.
    let alarm = Alarm(keep(unsafe { OwnedFd::from_raw_fd(alarm.0) })?);
    let rate = cycles_per_nanosecond();
    set_rate(rate);
    let (area, socket, child) = start_executor(settings, vdso.unwrap_or(0) * PAGE_BYTES as u64, rate)?;
    move_variables(&lines)?;
    let pages = Pages::new(faults, outgoing, memory).map_err(|error| format!("pages: error {}", error.0))?;
    let link = Link::new(area, Side::Caller, socket).with_patience(silence);
    set_open(Caller::new(link, pages, mappings, Watch::new(silence, child, alarm)));
    forks::prepare(own_segments().code);
    handler::start().map_err(|error| format!("a thread: error {}", error.0))
}

fn maps() -> Result<Vec<MapsLine>, String> {
    let text = fs::read_to_string("/proc/self/maps").map_err(|error| format!("/proc/self/maps: {error}"))?;
    Ok(text.lines().filter_map(maps_line).collect())
}

fn maps_line(line: &str) -> Option<MapsLine> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok().map(|address| address / PAGE_BYTES as u64);
    let permissions = words.next()?.to_owned();
    let inode = words.nth(2)?.parse().ok()?;
    Some(MapsLine {
        pages: number(start)?..number(end)?,
        permissions,
        inode,
        path: words.next().unwrap_or("").to_owned(),
    })
}

/// Where the library lies.
#[derive(Default)]
struct OwnSegments {
    /// Its writable segments, without what the linker has protected since.
    variables: Vec<Range<u64>>,
    code: Range<u64>,
}

fn own_segments() -> OwnSegments {
    let mut found = OwnSegments::default();
    // SAFETY: the function is called with that structure, before this call returns.
    unsafe { libc::dl_iterate_phdr(Some(look_at_object), (&raw mut found).cast()) };
    found
}

/// Notes the segments of the object to which this function belongs.
unsafe extern "C" fn look_at_object(object: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> i32 {
    // SAFETY: the C library gives a structure with a table of headers; `found` is what `own_segments` has passed.
    let (object, found) = unsafe { (&*object, &mut *found.cast::<OwnSegments>()) };
    // SAFETY: as above.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let range = |header: &libc::Elf64_Phdr| {
        let start = object.dlpi_addr + header.p_vaddr;
        start..start + header.p_memsz
    };
    let segments = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    if !segments().any(|header| range(header).contains(&(look_at_object as *const () as u64))) {
        return 0;
    }
    let page = PAGE_BYTES as u64;
    let constant = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO).map_or(0..0, range);
    for segment in segments().filter(|header| header.p_flags & libc::PF_W != 0).map(range) {
        let start =
            if constant.contains(&segment.start) { constant.end / page * page } else { segment.start / page * page };
        let end = segment.end.next_multiple_of(page);
        if start < end {
            found.variables.push(start..end);
        }
    }
    let code = segments().find(|header| header.p_flags & libc::PF_X != 0);
    found.code = code.map_or(0..0, range);
    1
}

/// The executor's place: named, or in the environment, or beside the library.
fn executor(settings: &Settings) -> Result<PathBuf, String> {
    if let Some(path) = settings.executor.clone().or_else(|| std::env::var(EXECUTOR_VARIABLE).ok()) {
        return Ok(path.into());
    }
    // SAFETY: the structure is filled by the call; the name in it stays as long as the library.
    let library = unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        let known = libc::dladdr(open as *const c_void, &mut found) != 0 && !found.dli_fname.is_null();
        known.then(|| PathBuf::from(CStr::from_ptr(found.dli_fname).to_string_lossy().into_owned()))
    };
    let folder = library.as_ref().and_then(|library| library.parent());
    folder
        .map(|folder| folder.join(EXECUTOR_NAME))
        .ok_or_else(|| format!("set {EXECUTOR_VARIABLE} to the executor's path"))
}

/// Starts the executor, and waits until it can be called. `rate` is that of the clock. Returns the area, the socket and a descriptor of the process.
fn start_executor(settings: &Settings, vdso: u64, rate: f64) -> Result<(Area, i32, i32), String> {
    let path = executor(settings)?;
    let wrong = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    // SAFETY: the name is a string of C; the kernel gives the descriptor to us alone.
    let file = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"pushdown".as_ptr(), libc::MFD_CLOEXEC)) };
    let file = File::from(file);
    file.set_len(AREA_BYTES as u64).map_err(|error| wrong("shared memory", &error))?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE);
    // SAFETY: the kernel refuses to replace a mapping.
    let mapped = unsafe { libc::mmap(AREA as *mut c_void, AREA_BYTES, protection, flags, file.as_raw_fd(), 0) };
    if mapped as usize != AREA {
        let range = CALLER_PRIVATE;
        return Err(format!("the program uses addresses from {:#x} on, where the library has its memory", range.start));
    }
    // SAFETY: it was just mapped, and stays if the executor begins.
    let area = unsafe { Area::at(AREA) };
    let memory_pages = settings.storage.as_ref().map(|(_, bytes)| (bytes / PAGE_BYTES) as u64);
    area.prepare(settings.contexts, vdso, link_shape(rate)?, memory_pages);
    let storage = settings.storage.as_ref().map(|(folder, _)| storage_file(folder)).transpose()?;
    let (ours, theirs) = UnixStream::pair().map_err(|error| wrong("a socket", &error))?;
    let socket = keep(ours.into())?;
    let mut command = Command::new(&path);
    // A C library whose memory is gone must not have the kernel write to it.
    command.env_clear().env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    command.stdin(OwnedFd::from(theirs)).stdout(file);
    if let Some(storage) = storage.as_ref().map(AsRawFd::as_raw_fd) {
        let pass = move || match unsafe { libc::dup2(storage, STORAGE_FILE) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        };
        // SAFETY: the child makes one system call, before it executes the program.
        unsafe { command.pre_exec(pass) };
    }
    let started = command.spawn().map_err(|error| wrong(&path.display().to_string(), &error));
    let child = started.and_then(|mut started| {
        let child = descriptor_of(&started);
        wait_for(&area, &mut started).and(child)
    });
    match child {
        Ok(child) => Ok((area, socket, child)),
        Err(reason) => {
            // SAFETY: nothing uses the area any more, and the next try maps another one.
            unsafe { libc::munmap(AREA as *mut c_void, AREA_BYTES) };
            Err(reason)
        }
    }
}

/// A file without a name, for pages that the executor's memory has no room for.
fn storage_file(folder: &Path) -> Result<OwnedFd, String> {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE);
    let file = options.open(folder).map_err(|error| format!("a file in {}: {error}", folder.display()))?;
    let kept = keep(file.into())?;
    // SAFETY: the descriptor was just made, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(kept) })
}

/// A descriptor of a child, which means this process for ever: the program may wait for all of its children.
fn descriptor_of(child: &Child) -> Result<i32, String> {
    // SAFETY: the call has no memory argument; the kernel gives the descriptor to us alone.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, 0) };
    if descriptor < 0 {
        return Err(format!("a descriptor of the executor: {}", io::Error::last_os_error()));
    }
    // SAFETY: as above.
    keep(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// The link that is to be imitated, for measurements: its latency in nanoseconds and its bytes a second, with a comma between.
fn link_shape(per_nanosecond: f64) -> Result<Shape, String> {
    let Ok(text) = std::env::var(LINK_VARIABLE) else { return Ok(Shape::default()) };
    let numbers = text.split_once(',').and_then(|(latency, rate)| Some((latency.parse().ok()?, rate.parse().ok()?)));
    let (latency, rate): (f64, f64) =
        numbers.ok_or_else(|| format!("{LINK_VARIABLE}={text}: two numbers are expected, such as 1200,7000000000"))?;
    Ok(Shape {
        latency_cycles: (latency * per_nanosecond) as u64,
        mebibyte_cycles: (f64::from(1 << 20) / rate * 1e9 * per_nanosecond) as u64,
    })
}

/// How fast the processors' clock runs.
#[allow(clippy::disallowed_methods)] // The program has one thread, which has nothing else to do.
fn cycles_per_nanosecond() -> f64 {
    let (begun, first) = clocks();
    std::thread::sleep(CLOCKS_APART);
    let (ended, last) = clocks();
    last.saturating_sub(first) as f64 / (ended - begun).as_nanos().max(1) as f64
}

/// Both clocks at one moment: the best of several readings, since this thread may be stopped within one.
#[allow(clippy::disallowed_methods)] // As above.
fn clocks() -> (Instant, u64) {
    let read = |_| {
        let (before, now, after) = (cycles(), Instant::now(), cycles());
        (after.saturating_sub(before), (now, before / 2 + after / 2))
    };
    let (_, best) = (0..CLOCK_READINGS).map(read).min_by_key(|(apart, _)| *apart).expect("there are several");
    best
}

#[allow(clippy::disallowed_methods)] // The program has one thread, which has nothing else to do.
fn wait_for(area: &Area, executor: &mut Child) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        match area.state() {
            ExecutorState::Ready => return Ok(()),
            ExecutorState::Failed { error, step } => {
                let _ = executor.wait();
                let error = io::Error::from_raw_os_error(error as i32);
                return Err(format!("the executor cannot begin, at step {step}: {error}"));
            }
            ExecutorState::Starting => {}
        }
        if let Ok(Some(status)) = executor.try_wait() {
            return Err(format!("the executor has ended: {status}"));
        }
        if begun.elapsed() > Duration::from_secs(BEGIN_SECONDS) {
            let _ = executor.kill();
            return Err(format!("the executor did not begin within {BEGIN_SECONDS} s"));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Moves a descriptor out of the program's way.
fn keep(file: OwnedFd) -> Result<i32, String> {
    // SAFETY: the call has no memory argument.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, DESCRIPTOR_MIN) } {
        -1 => Err(format!("a descriptor: {}", io::Error::last_os_error())),
        kept => Ok(kept),
    }
}

/// As [`keep`], for a userfaultfd.
fn out_of_the_way(faults: UserFaults) -> Result<UserFaults, String> {
    // SAFETY: the descriptor was just opened, and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(faults.0) };
    keep(file).map(UserFaults)
}

/// Finds where the C library has the kernel write a thread's processor.
fn find_rseq() {
    // SAFETY: the symbols, if there are any, are numbers of the C library.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
        if !offset.is_null() && !size.is_null() && *size > 0 {
            RSEQ_OFFSET.store(*offset as usize, Ordering::Relaxed);
            RSEQ_BYTES.store(u64::from((*size).max(32)), Ordering::Relaxed);
        }
    }
}

/// Has the kernel map the main thread's stack to its limit: a function cannot make it grow.
fn grow_stack(lines: &[MapsLine]) {
    let Some(stack) = lines.iter().find(|line| line.path == "[stack]") else { return };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) } == 0;
    // The kernel keeps a gap below, and counts arguments and environment.
    let most = limit.rlim_cur.min(STACK_BYTES_MAX).saturating_sub(1 << 20);
    let lowest = (stack.pages.end * PAGE_BYTES as u64).saturating_sub(most);
    if known && most > 0 && lowest < stack.pages.start * PAGE_BYTES as u64 {
        // SAFETY: the kernel maps the page when it is touched: it lies within the limit of this thread's stack.
        let _ = unsafe { (lowest as *const u8).read_volatile() };
    }
}

/// Puts anonymous memory in place of private mappings of files that the program may write: its variables and those of its libraries.
fn move_variables(lines: &[MapsLine]) -> Result<(), String> {
    let own = own_segments().variables;
    for line in lines {
        let (start, end) = (line.pages.start * PAGE_BYTES as u64, line.pages.end * PAGE_BYTES as u64);
        if line.inode == 0
            || !line.permissions.starts_with("rw")
            || !line.permissions.ends_with('p')
            || own.contains(&(start..end))
        {
            continue;
        }
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u32;
        make_anonymous(start, end, protection)
            .map_err(|error| format!("the variables of {}: error {}", line.path, error.0))?;
    }
    Ok(())
}
