//! The messages of the socket.

#![allow(unsafe_code)] // Promises that structures are numbers without padding.

/// The name of the server's abstract socket, in the program's environment.
pub const SOCKET_VARIABLE: &str = "HEDDLE_FARMEM_SOCKET";
/// The secret that lets a program in: 32 hexadecimal digits. It keeps other users of the machine out, not the program.
pub const SECRET_VARIABLE: &str = "HEDDLE_FARMEM_SECRET";
/// Four numbers with commas between: the bytes of the far heap and of its budget, how many functions may run at the same time, and how many bytes
/// of pages the executor keeps in memory if it has storage. The heap's home is then an executor of pushed functions, and there is no server.
pub const EXECUTOR_HEAP_VARIABLE: &str = "HEDDLE_FARMEM_EXECUTOR_HEAP";
/// The folder of such an executor's storage, if it has any.
pub const EXECUTOR_STORAGE_VARIABLE: &str = "HEDDLE_FARMEM_EXECUTOR_STORAGE";
/// Of this protocol.
pub const VERSION: u32 = 1;
/// The byte that the server sends for a command. The answer is one byte too, of any value.
pub const COMMAND: u8 = 1;

/// The first message, of the program.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// 0.
    pub reserved: u32,
    /// What [`SECRET_VARIABLE`] says.
    pub secret: [u8; 16],
    /// The number of the fork whose child this is, or 0.
    pub fork: u64,
}

/// The answer to [`Hello`]. With it come the shared memory, and `/dev/userfaultfd` or, for a child, its userfaultfd.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Welcome {
    /// Bytes of the region: whole pages.
    pub region_bytes: u64,
}

/// What the program has reserved; its userfaultfd comes with it. Not sent by a child, which has inherited all of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Address of the region.
    pub region: u64,
    /// Address of the doorbell: one page.
    pub doorbell: u64,
    /// Address of the eviction buffer: [`BUFFER_PAGES`](crate::BUFFER_PAGES).
    pub buffer: u64,
}

/// The answer to [`Memory`], or to a [`Hello`] that is refused.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Bytes of the reason for a refusal, in UTF-8; 0 if the program has a far heap now.
    pub reason_bytes: u32,
    /// 1 if the program can fork.
    pub can_fork: u32,
    /// The reason.
    pub reason: [u8; Verdict::REASON_BYTES_MAX],
}

impl Verdict {
    /// Bytes of the longest reason.
    pub const REASON_BYTES_MAX: usize = 248;

    /// The program has a far heap.
    pub fn accepted(can_fork: bool) -> Verdict {
        Verdict { reason_bytes: 0, can_fork: u32::from(can_fork), reason: [0; Verdict::REASON_BYTES_MAX] }
    }

    /// The program has none, for this reason.
    pub fn refused(why: &str) -> Verdict {
        let most = why.len().min(Verdict::REASON_BYTES_MAX);
        let bytes = (0..=most).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
        let mut verdict = Verdict::accepted(false);
        verdict.reason_bytes = bytes as u32;
        verdict.reason[..bytes].copy_from_slice(&why.as_bytes()[..bytes]);
        verdict
    }

    /// The reason for a refusal; `None` if there is none.
    pub fn reason(&self) -> Option<&str> {
        let bytes = self.reason.get(..self.reason_bytes as usize).unwrap_or_default();
        (self.reason_bytes > 0).then(|| std::str::from_utf8(bytes).unwrap_or("a reason that is no text"))
    }
}

/// A message of the socket.
///
/// # Safety
/// Any bytes are a valid value, and it has no padding.
pub unsafe trait Message: Copy {}

// SAFETY: numbers and bytes; 4 + 4 + 16 + 8 bytes.
unsafe impl Message for Hello {}
// SAFETY: one number.
unsafe impl Message for Welcome {}
// SAFETY: three numbers of one size.
unsafe impl Message for Memory {}
// SAFETY: numbers and bytes; 4 + 4 + 248 bytes.
unsafe impl Message for Verdict {}

const _: () = assert!(size_of::<Hello>() == 32 && size_of::<Verdict>() == 256);
