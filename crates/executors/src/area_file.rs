//! The descriptors of a hello: what they must be, and the head of the area.

use std::os::fd::{AsFd as _, OwnedFd};

use pushdown::{AREA_BYTES, AREA_HEAD_BYTES, ExecutorLoad};
use rustix::fs::{FileType, SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};

use crate::admission::Refusal;

/// `TMPFS_MAGIC`: memory that the kernel has pages for, of the usual size.
const MEMORY_FILE_SYSTEM: i64 = 0x0102_1994;

/// Checks that a file is memory of the area's size, that it can never shrink, and that reading it waits for nobody.
///
/// # Errors
/// What is wrong.
pub(crate) fn check_area(file: &OwnedFd) -> Result<(), Refusal> {
    let is_memory = fstatfs(file).is_ok_and(|system| system.f_type == MEMORY_FILE_SYSTEM);
    // Devices lie in a file system of that kind too.
    let is_file = fstat(file).is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::RegularFile);
    if !is_memory || !is_file {
        return Err(Refusal::Area("is no memory of memfd_create with pages of the usual size"));
    }
    if !fstat(file).is_ok_and(|status| status.st_size == AREA_BYTES as i64) {
        return Err(Refusal::Area("is of another size"));
    }
    if !fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return Err(Refusal::Area("can shrink: it lacks the seal F_SEAL_SHRINK"));
    }
    Ok(())
}

/// Checks that a descriptor is one end of a pair of sockets.
///
/// # Errors
/// What is wrong.
pub(crate) fn check_socket(file: &OwnedFd) -> Result<(), Refusal> {
    let is_stream = socket_type(file).is_ok_and(|kind| kind == SocketType::STREAM);
    match is_stream && socket_domain(file).is_ok_and(|family| family == AddressFamily::UNIX) {
        true => Ok(()),
        false => Err(Refusal::Socket("is no stream socket of this host")),
    }
}

/// The area and the executor's socket among the descriptors of a hello. `files_sent` counts those too that the kernel has dropped.
///
/// # Errors
/// What is wrong.
pub(crate) fn area_and_socket(files: Vec<OwnedFd>, files_sent: usize) -> Result<(OwnedFd, OwnedFd), Refusal> {
    let files: Result<[OwnedFd; 2], _> = files.try_into();
    let [area, socket] = files.map_err(|_| Refusal::Descriptors(files_sent))?;
    check_area(&area)?;
    check_socket(&socket)?;
    Ok((area, socket))
}

/// What the executor says in the head of its area; `None` if that makes no sense.
pub(crate) fn read_load(area: &OwnedFd) -> Option<ExecutorLoad> {
    let mut head = [0; AREA_HEAD_BYTES];
    let read = rustix::io::pread(area.as_fd(), &mut head[..], 0).ok()?;
    ExecutorLoad::of(head.get(..read)?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("area", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, bytes).expect("its size");
        fcntl_add_seals(&file, seals).expect("its seals");
        file
    }

    #[test]
    fn an_area_is_memory_of_its_size_that_cannot_shrink() {
        let area = memory(AREA_BYTES as u64, SealFlags::SHRINK);
        check_area(&area).expect("as the library makes it");
        assert_eq!(read_load(&area), None, "it has no version");
        let file = OwnedFd::from(tempfile::tempfile().expect("a file"));
        let null = OwnedFd::from(File::open("/dev/null").expect("it is there"));
        for (area, named) in [
            (memory(AREA_BYTES as u64, SealFlags::GROW), "can shrink"),
            (memory(AREA_BYTES as u64 - 1, SealFlags::SHRINK), "another size"),
            (memory(0, SealFlags::SHRINK), "another size"),
            (null, "no memory"),
            (OwnedFd::from(UnixStream::pair().expect("sockets").0), "no memory"),
        ] {
            let refusal = check_area(&area).expect_err("it is none").to_string();
            assert!(refusal.contains(named), "{refusal}");
        }
        check_area(&file).expect_err("a file of a folder cannot be sealed");
        // The kernel gives memory of large pages where some are reserved.
        if let Ok(large) = memfd_create("large", MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB) {
            let refusal = check_area(&large).expect_err("reading it may be SIGBUS").to_string();
            assert!(refusal.contains("usual size"), "{refusal}");
        }
    }

    #[test]
    fn a_socket_is_a_stream_of_this_host() {
        check_socket(&UnixStream::pair().expect("sockets").0.into()).expect("as the library makes it");
        check_socket(&UnixDatagram::pair().expect("sockets").0.into()).expect_err("it has no end");
        check_socket(&File::open("/dev/null").expect("it is there").into()).expect_err("it is a file");
    }
}
