//! Opening: from an ordinary program to one whose memory an executor can have.
//!
//! This, and `executor_start`, are the only parts of the library that use the C library and the program's environment.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bare::PAGE_BYTES;
use bare::alarm::Alarm;
use bare::userfault::{
    self, FEATURE_EVENT_REMAP, FEATURE_EVENT_REMOVE, FEATURE_EVENT_UNMAP, FEATURE_MOVE, FEATURE_WRITE_PROTECT,
    UserFaults,
};
use farmem_control::SOCKET_VARIABLE;
use pushdown::{Link, Shape, Side, cycles};

use crate::caller::Caller;
use crate::descriptors::keep;
use crate::executor_start::start_executor;
use crate::mappings::Mappings;
use crate::pages::Pages;
use crate::rseq::{RSEQ_BYTES, RSEQ_OFFSET};
use crate::settings::Settings;
use crate::times::set_rate;
use crate::variables::make_anonymous;
use crate::vdso::ForeignVdso;
use crate::wait::{is_open, set_open};
use crate::watch::Watch;
use crate::{forks, handler};

/// The link that is to be imitated.
const LINK_VARIABLE: &str = "HEDDLE_PUSHDOWN_LINK";
/// How far apart the clock is read twice, to see how fast it runs: to 0.01 %, since a reading is off by 0.1 µs.
const CLOCKS_APART: Duration = Duration::from_millis(1);
const CLOCK_READINGS: u32 = 5;
/// The main thread's stack is mapped to its limit, or so far.
const STACK_BYTES_MAX: u64 = 64 << 20;
/// After which silence the executor is given up, if the program does not say.
const SILENCE: Duration = Duration::from_secs(10);

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
    if std::env::var_os(SOCKET_VARIABLE).is_some() {
        return Err("the program has a far heap of `heddle farmem run`, whose pages are in a memory node, where functions cannot \
                    have them; with `heddle farmem run --executor` they can"
            .to_owned());
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
    let vdso = vdso.unwrap_or(0) * PAGE_BYTES as u64;
    let started = start_executor(settings, vdso, link_shape(rate)?)?;
    let foreign_vdso = match started.process.is_elsewhere() {
        true => foreign_vdso(&lines).inspect_err(|_| started.process.kill())?,
        false => None,
    };
    move_variables(&lines)?;
    let pages = Pages::new(faults, outgoing, memory).map_err(|error| format!("pages: error {}", error.0))?;
    let link = Link::new(started.area, Side::Caller, started.socket).with_patience(silence);
    let watch = Watch::new(silence, started.process, alarm);
    set_open(Caller::new(link, pages, mappings, watch, foreign_vdso));
    forks::prepare(own_segments().code);
    handler::start().map_err(|error| format!("a thread: error {}", error.0))
}

/// What an executor on another host gets as the vdso.
fn foreign_vdso(lines: &[MapsLine]) -> Result<Option<ForeignVdso>, String> {
    let Some(line) = lines.iter().find(|line| line.path == "[vdso]") else { return Ok(None) };
    let (start, bytes) =
        (line.pages.start * PAGE_BYTES as u64, (line.pages.end - line.pages.start) as usize * PAGE_BYTES);
    // SAFETY: the kernel has mapped it there, and nobody writes it.
    let image = unsafe { std::slice::from_raw_parts(start as *const u8, bytes) };
    let vdso = ForeignVdso::new(start, image)
        .ok_or("the functions of the vdso cannot be found, so no other host can run them")?;
    Ok(Some(vdso))
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
