//! What lies at an address of this process.

#![allow(unsafe_code)]

use std::ops::Range;

use bare::system_call::{Errno, system_call};
use pushdown::{CALLER_PRIVATE, MappingKind, PRIVATE};

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `PROCMAP_QUERY`.
const QUERY: usize = 3 << 30 | size_of::<Query>() << 16 | (b'f' as usize) << 8 | 17;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;

/// Where the system's files are.
const SYSTEM_FILES: &[u8; 5] = b"/usr/";
/// Bytes for the name of a file.
const NAME_BYTES: usize = 512;

const _: () = assert!(size_of::<Query>() == 104, "struct procmap_query has 104 bytes");

/// A mapping of this process, as the executor may have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) protection: u32,
    pub(crate) kind: MappingKind,
    /// It is a file's.
    pub(crate) is_file: bool,
}

/// The list of mappings, which the kernel keeps.
pub(crate) struct Mappings {
    file: i32,
    /// The library's own variables.
    own: Vec<Range<u64>>,
}

impl Mappings {
    /// `file` is an open `/proc/self/maps`.
    pub(crate) fn new(file: i32, own: Vec<Range<u64>>) -> Mappings {
        Mappings { file, own }
    }

    /// Whether the kernel can be asked.
    ///
    /// # Errors
    /// Of the operating system.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        // An address that is certainly mapped.
        self.query(Mappings::check as *const () as u64).map(|_| ())
    }

    fn query(&self, address: u64) -> Result<Query, Errno> {
        let mut query = Query { size: size_of::<Query>() as u64, address, ..Query::default() };
        // SAFETY: the kernel reads and writes the structure whose size the request has.
        unsafe { system_call(libc::SYS_ioctl, [self.file as usize, QUERY, &raw mut query as usize]) }?;
        Ok(query)
    }

    /// Whether the mapping is of a file that was installed with the system.
    fn is_of_system(&self, address: u64) -> bool {
        let mut name = [0_u8; NAME_BYTES];
        let mut query = Query {
            size: size_of::<Query>() as u64,
            address,
            name: name.as_mut_ptr() as u64,
            name_size: NAME_BYTES as u32,
            ..Query::default()
        };
        // SAFETY: the kernel writes at most as many bytes as it is told to the array, and the structure.
        let known =
            unsafe { system_call(libc::SYS_ioctl, [self.file as usize, QUERY, &raw mut query as usize]) }.is_ok();
        known && name.starts_with(SYSTEM_FILES)
    }

    /// Whether the program may write at an address.
    pub(crate) fn is_writable(&self, address: u64) -> bool {
        self.query(address).is_ok_and(|found| found.vma_flags & WRITABLE != 0)
    }

    /// What lies at an address; `None` if nothing does, or if it is the library's.
    pub(crate) fn find(&self, address: u64) -> Option<Found> {
        let query = self.query(address).ok()?;
        let (mut start, mut end, flags) = (query.start, query.end, query.vma_flags);
        let own = || [PRIVATE, CALLER_PRIVATE].into_iter().chain(self.own.iter().cloned());
        // The kernel makes one mapping of neighbours that are alike.
        for own in own() {
            start = if own.end <= address { start.max(own.end) } else { start };
            end = if own.start > address { end.min(own.start) } else { end };
        }
        if own().any(|own| own.contains(&address)) {
            return None;
        }
        let protections = [(READABLE, libc::PROT_READ), (WRITABLE, libc::PROT_WRITE), (EXECUTABLE, libc::PROT_EXEC)];
        let protection: u32 =
            protections.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, bit)| *bit as u32).sum();
        let is_file = query.inode != 0;
        let kind = match flags {
            // The C library shares its caches, which nobody writes.
            _ if flags & (SHARED | WRITABLE) == SHARED && is_file && self.is_of_system(address) => {
                MappingKind::Constant
            }
            _ if flags & SHARED != 0 || protection == 0 => MappingKind::Refused,
            _ if flags & WRITABLE == 0 && is_file => MappingKind::Constant,
            _ => MappingKind::Ordinary,
        };
        Some(Found { start, end, protection, kind, is_file })
    }
}
