//! Who has the pages of the far heap, as the environment says.
//!
//! The first call of `malloc` may come from the dynamic linker, before the C library knows the environment. So it is read from
//! the kernel, in pieces of a fixed size.

#![allow(unsafe_code)]

use bare::system_call::system_call;
use farmem_control::{EXECUTOR_HEAP_VARIABLE, SECRET_VARIABLE, SOCKET_VARIABLE};

/// Bytes of the longest name of an abstract socket.
pub(crate) const NAME_BYTES_MAX: usize = 107;

/// Bytes of an entry that are kept: enough for each of the variables.
const ENTRY_BYTES_MAX: usize = 160;

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 1024;

/// How the server is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServerAddress {
    name: [u8; NAME_BYTES_MAX],
    name_bytes: usize,
    pub(crate) secret: [u8; 16],
}

impl ServerAddress {
    pub(crate) const fn empty() -> ServerAddress {
        ServerAddress { name: [0; NAME_BYTES_MAX], name_bytes: 0, secret: [0; 16] }
    }

    /// The name of the abstract socket.
    pub(crate) fn name(&self) -> &[u8] {
        self.name.get(..self.name_bytes).unwrap_or_default()
    }
}

/// A heap whose home is an executor of pushed functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExecutorHeap {
    pub(crate) bytes: usize,
    pub(crate) budget_bytes: usize,
    /// Functions that may run at the same time.
    pub(crate) contexts: usize,
    /// Bytes of pages that an executor with storage keeps in memory; 0: as many as it likes.
    pub(crate) memory_bytes: usize,
}

/// What the environment says.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Environment {
    /// None of the variables is there: the program gets no far heap.
    Silent,
    /// One of a server's two is missing, or one is not what it should be, or there are both kinds.
    Malformed,
    Server(ServerAddress),
    Executor(ExecutorHeap),
}

/// Reads the environment that the process was started with. One that cannot be read says nothing.
pub(crate) fn read() -> Environment {
    let path = c"/proc/self/environ".as_ptr() as usize;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: the kernel reads the path.
    let opened = unsafe { system_call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags]) };
    let Ok(file) = opened else { return Environment::Silent };
    let mut scanner = EntryScanner::new();
    let mut chunk = [0; CHUNK_BYTES];
    // SAFETY: the kernel writes at most as many bytes as the chunk has.
    while let Ok(read @ 1..) = unsafe { system_call(libc::SYS_read, [file, chunk.as_mut_ptr() as usize, CHUNK_BYTES]) }
    {
        chunk.iter().take(read).for_each(|byte| scanner.push(*byte));
    }
    // SAFETY: the descriptor was opened here, and is not used again.
    let _ = unsafe { system_call(libc::SYS_close, [file]) };
    scanner.finish()
}

/// Finds the variables in the bytes of an environment, whose entries end with a zero. The first entry of a name counts, as for
/// `getenv`.
struct EntryScanner {
    entry: [u8; ENTRY_BYTES_MAX],
    /// Bytes of the entry, also those that are not kept.
    entry_bytes: usize,
    address: ServerAddress,
    has_name: bool,
    has_secret: bool,
    executor: Option<ExecutorHeap>,
    is_malformed: bool,
}

impl EntryScanner {
    fn new() -> EntryScanner {
        EntryScanner {
            entry: [0; ENTRY_BYTES_MAX],
            entry_bytes: 0,
            address: ServerAddress::empty(),
            has_name: false,
            has_secret: false,
            executor: None,
            is_malformed: false,
        }
    }

    fn push(&mut self, byte: u8) {
        if byte == 0 {
            self.end_entry();
            self.entry_bytes = 0;
            return;
        }
        if let Some(place) = self.entry.get_mut(self.entry_bytes) {
            *place = byte;
        }
        self.entry_bytes += 1;
    }

    fn end_entry(&mut self) {
        let entry = self.entry;
        let kept = entry.get(..self.entry_bytes).unwrap_or(&entry);
        if let Some(name) = value_of(kept, SOCKET_VARIABLE).filter(|_| !self.has_name) {
            self.has_name = true;
            self.is_malformed |= name.is_empty() || name.len() > NAME_BYTES_MAX;
            self.address.name_bytes = name.len().min(NAME_BYTES_MAX);
            self.address.name.iter_mut().zip(name).for_each(|(place, byte)| *place = *byte);
        } else if let Some(digits) = value_of(kept, SECRET_VARIABLE).filter(|_| !self.has_secret) {
            self.has_secret = true;
            match secret(digits).filter(|_| self.entry_bytes <= ENTRY_BYTES_MAX) {
                Some(secret) => self.address.secret = secret,
                None => self.is_malformed = true,
            }
        } else if let Some(numbers) = value_of(kept, EXECUTOR_HEAP_VARIABLE).filter(|_| self.executor.is_none()) {
            self.executor = executor_heap(numbers).filter(|_| self.entry_bytes <= ENTRY_BYTES_MAX);
            self.is_malformed |= self.executor.is_none();
        }
    }

    fn finish(mut self) -> Environment {
        // The last entry may have no zero.
        self.end_entry();
        match (self.has_name, self.has_secret, self.executor) {
            _ if self.is_malformed => Environment::Malformed,
            (false, false, None) => Environment::Silent,
            (false, false, Some(heap)) => Environment::Executor(heap),
            (true, true, None) => Environment::Server(self.address),
            _ => Environment::Malformed,
        }
    }
}

fn value_of<'a>(entry: &'a [u8], variable: &str) -> Option<&'a [u8]> {
    entry.strip_prefix(variable.as_bytes())?.strip_prefix(b"=")
}

fn executor_heap(numbers: &[u8]) -> Option<ExecutorHeap> {
    let mut numbers = std::str::from_utf8(numbers).ok()?.split(',').map(|number| number.parse::<usize>().ok());
    let mut next = || numbers.next().flatten();
    let heap = ExecutorHeap { bytes: next()?, budget_bytes: next()?, contexts: next()?, memory_bytes: next()? };
    (numbers.next().is_none() && heap.bytes > 0 && heap.contexts > 0).then_some(heap)
}

fn secret(digits: &[u8]) -> Option<[u8; 16]> {
    let mut secret = [0; 16];
    if digits.len() != 2 * secret.len() {
        return None;
    }
    for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            *byte = *byte << 4 | char::from(*digit).to_digit(16)? as u8;
        }
    }
    Some(secret)
}

#[cfg(test)]
mod tests {
    use super::{EntryScanner, Environment, ExecutorHeap};

    const SECRET: &str = "HEDDLE_FARMEM_SECRET=000102030405060708090a0b0c0d0eFF";

    fn scan(entries: &[&str]) -> Environment {
        let mut scanner = EntryScanner::new();
        entries.join("\0").bytes().for_each(|byte| scanner.push(byte));
        scanner.finish()
    }

    #[test]
    fn environment_without_the_variables_is_silent() {
        assert_eq!(scan(&[]), Environment::Silent);
        assert_eq!(scan(&["PATH=/bin", "XHEDDLE_FARMEM_SOCKET=a", "HEDDLE_FARMEM_SOCKETS=a"]), Environment::Silent);
    }

    #[test]
    fn variables_are_found_between_long_entries() {
        let long = format!("LS_COLORS={}", "x".repeat(5000));
        let again = "HEDDLE_FARMEM_SOCKET=second";
        let Environment::Server(address) = scan(&[&long, "HEDDLE_FARMEM_SOCKET=first", &long, again, SECRET, ""])
        else {
            panic!("both variables are there");
        };
        assert_eq!(address.name(), b"first");
        assert_eq!(address.secret, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
    }

    #[test]
    fn an_executors_heap_has_four_numbers_and_no_server() {
        let heap = "HEDDLE_FARMEM_EXECUTOR_HEAP=4294967296,8388608,2,0";
        let expected = ExecutorHeap { bytes: 4 << 30, budget_bytes: 8 << 20, contexts: 2, memory_bytes: 0 };
        assert_eq!(scan(&["PATH=/bin", heap]), Environment::Executor(expected));
        assert_eq!(scan(&[heap, "HEDDLE_FARMEM_EXECUTOR_HEAP=1,1,1,1"]), Environment::Executor(expected));
        for entries in [
            &["HEDDLE_FARMEM_EXECUTOR_HEAP="][..],
            &["HEDDLE_FARMEM_EXECUTOR_HEAP=1,1,1"],
            &["HEDDLE_FARMEM_EXECUTOR_HEAP=1,1,1,1,1"],
            &["HEDDLE_FARMEM_EXECUTOR_HEAP=0,1,1,0"],
            &["HEDDLE_FARMEM_EXECUTOR_HEAP=1,1,0,0"],
            &["HEDDLE_FARMEM_EXECUTOR_HEAP=1,1,x,0"],
            &["HEDDLE_FARMEM_EXECUTOR_HEAP=1,1,1,-1"],
            &["HEDDLE_FARMEM_EXECUTOR_HEAP=99999999999999999999,1,1,1"],
            &[heap, "HEDDLE_FARMEM_SOCKET=name", SECRET],
            &[heap, SECRET],
        ] {
            assert_eq!(scan(entries), Environment::Malformed, "{entries:?}");
        }
    }

    #[test]
    fn half_an_address_is_malformed() {
        let name = "HEDDLE_FARMEM_SOCKET=name";
        for entries in [
            &[name][..],
            &[SECRET],
            &[name, "HEDDLE_FARMEM_SECRET=00"],
            &[name, "HEDDLE_FARMEM_SECRET=zz0102030405060708090a0b0c0d0e0f"],
            &[name, &format!("{SECRET}00")],
            &[SECRET, "HEDDLE_FARMEM_SOCKET="],
            &[SECRET, &format!("{name}{}", "x".repeat(104))],
            &[SECRET, &format!("{name}{}", "x".repeat(1000))],
        ] {
            assert_eq!(scan(entries), Environment::Malformed, "{entries:?}");
        }
    }
}
