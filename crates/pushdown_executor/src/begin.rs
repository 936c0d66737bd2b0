//! The beginning: from a program of the C library to a guest of another address space.

#![allow(unsafe_code)]

use std::arch::asm;

use bare::alarm::Alarm;
use bare::system_call::{Errno, SignalsBlocked, exit_group, map_anonymous_at, system_call, unmap};
use bare::userfault::{self, FEATURE_MOVE, FEATURE_SIGNAL, FEATURE_WRITE_PROTECT};
use pushdown::{
    AREA_ADDRESS, AREA_BYTES, AREA_FILE, Area, BeginStep, DEVICE_FILE, ExecutorState, Link, PRIVATE, SOCKET,
    STORAGE_FILE, Side,
};

use crate::arguments::Arguments;
use crate::executor::Executor;
use crate::limit::Limits;
use crate::places::STACKS;
use crate::wait::{EXECUTOR, Held, handle_messages};
use crate::{empty_root, function, sandbox, signals};

/// `ARCH_MAP_VDSO_64`.
const MAP_VDSO: usize = 0x2003;
/// `HWCAP2_FSGSBASE`: programs may set their thread block's address themselves.
const HAS_FSGSBASE: u64 = 1 << 1;
/// Bytes of the list of mappings: a hundred lines, for the twenty that a program has.
const MAPS_BYTES: usize = 16 << 10;

/// Begins, and never returns.
pub(crate) fn begin() -> ! {
    let file = AREA_FILE as usize;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE) as usize;
    // SAFETY: the address is private, and nothing is mapped there.
    let mapped =
        unsafe { system_call(libc::SYS_mmap, [AREA_ADDRESS as usize, AREA_BYTES, protection, flags, file, 0]) };
    if mapped.is_err() {
        eprintln!("heddle-executor is started by the library of programs that push functions down, not by hand");
        exit_group(2);
    }
    // SAFETY: it was just mapped, and stays.
    let area = unsafe { Area::at(AREA_ADDRESS as usize) };
    if !area.is_of_this_version() {
        fail(area, BeginStep::Version, Errno(libc::EPROTO));
    }
    // While there is a C library, which knows them.
    Arguments::note();
    // SAFETY: the call has no memory argument.
    if unsafe { libc::getauxval(libc::AT_HWCAP2) } & HAS_FSGSBASE == 0 {
        fail(area, BeginStep::Processor, Errno(libc::ENOSYS));
    }
    // The next stack is in the private addresses; what this one and the C library have is given up there.
    match map_anonymous_at(STACKS, bare::thread::STACK_BYTES) {
        // SAFETY: the stack was just mapped, and nobody else uses it.
        Ok(stack) => unsafe { continue_on(stack + bare::thread::STACK_BYTES) },
        Err(error) => fail(area, BeginStep::Stack, error),
    }
}

/// # Safety
/// The address is the upper end of memory that nobody else uses.
unsafe fn continue_on(stack: usize) -> ! {
    // SAFETY: `serve` never returns, so what lies on the old stack is not used again.
    unsafe {
        asm!("mov rsp, {stack}", "xor ebp, ebp", "call {serve}", "ud2",
            stack = in(reg) stack, serve = sym serve, options(noreturn));
    }
}

fn fail(area: Area, step: BeginStep, error: Errno) -> ! {
    area.set_state(ExecutorState::Failed { error: error.0 as u32, step: step as u32 });
    exit_group(1)
}

/// The service thread.
extern "C" fn serve() -> ! {
    // SAFETY: `begin` has mapped it.
    let area = unsafe { Area::at(AREA_ADDRESS as usize) };
    // Signals to the group of the program's process are not for this one, which ends with it.
    std::mem::forget(SignalsBlocked::new());
    let arguments = Arguments::noted();
    let features = FEATURE_WRITE_PROTECT | FEATURE_SIGNAL | FEATURE_MOVE;
    let faults = match arguments.has_device {
        true => userfault::open_from(DEVICE_FILE, features),
        false => userfault::open(features),
    };
    let faults = match faults {
        Ok(faults) => faults,
        Err(error) => fail(area, BeginStep::UserFaults, error),
    };
    // Read once: the caller may change it.
    let storage = arguments.storage(area.memory_pages());
    let has_storage = storage.is_some();
    close_files(faults.0, has_storage);
    if let Err(error) = leave_own_memory().and_then(|()| map_vdso(area.vdso())) {
        fail(area, BeginStep::Memory, error);
    }
    if arguments.has_namespaces
        && let Err(error) = empty_root::enter()
    {
        fail(area, BeginStep::EmptyRoot, error);
    }
    if let Err(error) = signals::install() {
        fail(area, BeginStep::Signals, error);
    }
    let link = Link::new(area, Side::Executor, SOCKET);
    // SAFETY: the call has no argument.
    let process = unsafe { system_call(libc::SYS_getpid, []) }.unwrap_or(0) as u32;
    // Once, as above.
    let contexts = area.contexts().min(arguments.contexts_max);
    let executor = Alarm::new()
        .and_then(|alarm| Executor::new(link, contexts, faults, Limits::new(area, alarm, process), storage));
    match executor {
        Ok(executor) => *EXECUTOR.acquire() = Some(executor),
        Err(error) => fail(area, BeginStep::State, error),
    }
    for context in 0..contexts {
        if let Err(error) = function::start_thread(context, has_storage) {
            fail(area, BeginStep::Threads, error);
        }
    }
    if let Err(error) = sandbox::enter(Some(process), has_storage) {
        fail(area, BeginStep::Filter, error);
    }
    area.set_state(ExecutorState::Ready);
    loop {
        let (link, alarm) = {
            let mut held = Held::new();
            let executor = held.executor();
            handle_messages(executor, false);
            if executor.serve() {
                executor.link().tell_waiting(false);
            }
            (executor.link(), executor.alarm())
        };
        if link.may_sleep() {
            sleep(SOCKET, alarm);
        }
        if !link.drain_socket() {
            // The caller is gone, and with it everything that was run here.
            exit_group(0);
        }
    }
}

/// Sleeps until the socket has a byte, or the alarm rings.
fn sleep(socket: i32, alarm: Alarm) {
    let mut polls = [socket, alarm.0].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: the kernel reads and writes two structures.
    let _ = unsafe { system_call(libc::SYS_poll, [polls.as_mut_ptr() as usize, polls.len(), usize::MAX]) };
}

/// Closes all files but the socket, standard error, the userfaultfd and that for storage.
fn close_files(faults: i32, has_storage: bool) {
    let mut kept = [SOCKET, libc::STDERR_FILENO, faults, if has_storage { STORAGE_FILE } else { faults }];
    kept.sort_unstable();
    let firsts = kept.map(|file| file + 1);
    let lasts = kept[1..].iter().map(|file| file - 1).chain([i32::MAX]);
    for (first, last) in firsts.into_iter().zip(lasts).filter(|(first, last)| first <= last) {
        // SAFETY: the call has no memory argument.
        let _ = unsafe { system_call(libc::SYS_close_range, [first as usize, last as usize, 0]) };
    }
}

/// Unmaps all memory outside of the private addresses.
fn leave_own_memory() -> Result<(), Errno> {
    let mut text = vec![0_u8; MAPS_BYTES];
    let bytes = read_maps(&mut text)?;
    for line in text[..bytes].split(|byte| *byte == b'\n') {
        let Some((start, end)) = range_of(line) else { continue };
        // The kernel's own page for old programs cannot be unmapped.
        if !PRIVATE.contains(&start) && start < 1 << 47 {
            // SAFETY: nothing there is used from here on: this stack, the program and its heap are private.
            unsafe { unmap(start as usize, (end - start) as usize) }?;
        }
    }
    Ok(())
}

fn read_maps(text: &mut [u8]) -> Result<usize, Errno> {
    let path = c"/proc/self/maps".as_ptr() as usize;
    // SAFETY: the kernel reads a static path, and writes at most as many bytes as the slice has.
    unsafe {
        let file = system_call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, libc::O_RDONLY as usize, 0])?;
        let mut read = 0;
        loop {
            let rest = &mut text[read..];
            match system_call(libc::SYS_read, [file, rest.as_mut_ptr() as usize, rest.len()])? {
                0 if rest.is_empty() => return Err(Errno(libc::E2BIG)),
                0 => break,
                more => read += more,
            }
        }
        let _ = system_call(libc::SYS_close, [file]);
        Ok(read)
    }
}

/// The addresses at the front of a line of the list of mappings.
fn range_of(line: &[u8]) -> Option<(u64, u64)> {
    let (mut numbers, mut index) = ([0_u64; 2], 0);
    for byte in line {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'-' if index == 0 => {
                index = 1;
                continue;
            }
            b' ' if index == 1 => return Some((numbers[0], numbers[1])),
            _ => return None,
        };
        numbers[index] = numbers[index] << 4 | u64::from(digit);
    }
    None
}

/// Maps the vdso where the caller has it, so that the program's pointers into it hold.
fn map_vdso(address: u64) -> Result<(), Errno> {
    if address == 0 {
        return Ok(());
    }
    // SAFETY: nothing is mapped at the address.
    unsafe { system_call(libc::SYS_arch_prctl, [MAP_VDSO, address as usize]) }.map(|_| ())
}
