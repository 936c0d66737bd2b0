//! How a program gets its far heap: step 1 of the [protocol](farmem_control).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Weak};

use farmem_control::{BUFFER_PAGES, Hello, Memory, VERSION, Verdict, Welcome};
use identity::equal_in_constant_time;

use super::link::Link;
use super::memory::{ForkServer, ProgramMemory, ServedProgram};
use super::registry::Registry;
use super::shared::SharedMemory;
use super::socket::ProgramSocket;
use crate::error::Error;
use crate::kernel::userfault::UserFaults;
use crate::page::PAGE_BYTES;
use crate::region::new_table;

/// Welcomes a program, while which `handshake` is held. A new one is served until it ends; the child of a fork is served
/// already.
///
/// # Errors
/// The program is refused, and has been told why, or has not kept to the protocol.
pub(super) fn attach(server: &Arc<Registry>, socket: ProgramSocket, handshake: Arc<()>) -> Result<(), Error> {
    let failed = |error: io::Error| Error::from_io("a program has failed to connect", &error);
    let (hello, _) = socket.receive::<Hello>().map_err(failed)?;
    if hello.version != VERSION || !equal_in_constant_time(&hello.secret, &server.secret) {
        let reason = "the library in the program is not the one of this version of Heddle";
        socket.send(&Verdict::refused(reason), &[]).map_err(failed)?;
        return Err(Error::Config(reason.to_owned()));
    }
    if hello.fork != 0 {
        return attach_child(server, socket, hello.fork).map_err(failed);
    }
    match attach_new(server, &socket) {
        Ok((program, shared)) => {
            let can_fork = program.faults.reports_forks();
            socket.send(&Verdict::accepted(can_fork), &[]).map_err(failed)?;
            socket.end_handshake().map_err(failed)?;
            let link = Link::new(socket, shared).map_err(failed)?;
            let _ = program.memory.link.set(link);
            drop(handshake);
            server.serve(program);
            Ok(())
        }
        Err(error) => {
            socket.send(&Verdict::refused(&error.to_string()), &[]).map_err(failed)?;
            Err(error)
        }
    }
}

fn attach_new(server: &Arc<Registry>, socket: &ProgramSocket) -> Result<(ServedProgram, SharedMemory), Error> {
    let failed = |error: io::Error| Error::from_io("a program has failed to connect", &error);
    if !server.has_place() {
        return Err(Error::Config("the server serves as many programs as it can".to_owned()));
    }
    let (pages, table) = new_table(server.config.region_bytes, server.config.budget_bytes)?;
    let bytes = u64::from(pages) * PAGE_BYTES as u64;
    let shared = SharedMemory::new()?;
    // Without it the program asks the kernel itself, which may allow it.
    let device = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd").ok();
    let files: Vec<BorrowedFd<'_>> =
        [Some(shared.file()), device.as_ref().map(|device| device.as_fd())].into_iter().flatten().collect();
    socket.send(&Welcome { region_bytes: bytes }, &files).map_err(failed)?;
    let (memory, mut files) = socket.receive::<Memory>().map_err(failed)?;
    let file = files.pop().ok_or_else(|| Error::NoUserFaults("the program has opened no userfaultfd".to_owned()))?;
    let faults = UserFaults::of_program(file)?;
    let page = PAGE_BYTES as u64;
    for (start, bytes, protects) in [
        (memory.region, bytes, true),
        (memory.doorbell, page, false),
        (memory.buffer, u64::from(BUFFER_PAGES) * page, false),
    ] {
        faults.register(start, bytes, protects)?;
    }
    let name = program_name(socket);
    let store = Arc::new(server.config.store.another(pages)?);
    let forks: Weak<dyn ForkServer> = Arc::<Registry>::downgrade(server);
    let (region, collector) = ((memory.region, bytes), server.collector.clone());
    let memory = ProgramMemory::new(name, region, memory.doorbell, store, forks, collector);
    Ok((ServedProgram { memory: Arc::new(memory), faults, table }, shared))
}

/// The name of the program at the other end, for messages.
fn program_name(socket: &ProgramSocket) -> String {
    let number = socket.peer().map_or(0, |pid| pid.as_raw_nonzero().get());
    let name = std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
    match name.trim() {
        "" => format!("program {number}"),
        name => name.to_owned(),
    }
}

/// Connects the child of a fork to the thread that serves it.
fn attach_child(server: &Arc<Registry>, socket: ProgramSocket, fork: u64) -> io::Result<()> {
    let Some(served) = server.take_child(fork) else {
        return socket.send(&Verdict::refused("there is no such fork"), &[]);
    };
    let shared = SharedMemory::new().map_err(io::Error::other)?;
    let welcome = Welcome { region_bytes: served.memory.bytes };
    socket.send(&welcome, &[shared.file(), served.core.faults.file()])?;
    socket.end_handshake()?;
    let _ = served.memory.link.set(Link::new(socket, shared)?);
    Ok(())
}
