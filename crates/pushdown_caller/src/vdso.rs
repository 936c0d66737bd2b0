//! The vdso that an executor on another host gets.
//!
//! A program asks for the time in code that the kernel maps into it. That code fits the kernel and the clock of the program's host. So an
//! executor on another host gets a copy in which each function makes its system call, and the caller answers it, as any other. It lies where
//! the caller has the vdso, so that the program's pointers into it hold.

use std::ops::Range;

use base::Bytes;

/// The functions, which have a second name behind `__vdso_`, and their system calls.
const FUNCTIONS: [(&[u8], i64); 6] = [
    (b"clock_gettime", libc::SYS_clock_gettime),
    (b"gettimeofday", libc::SYS_gettimeofday),
    (b"time", libc::SYS_time),
    (b"clock_getres", libc::SYS_clock_getres),
    (b"getcpu", libc::SYS_getcpu),
    (b"getrandom", libc::SYS_getrandom),
];
/// `mov eax, NUMBER; syscall; ret`, with the number at byte 1.
const CALL: [u8; 8] = [0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3];
/// `mov rax, -ENOSYS; ret`.
const REFUSAL: [u8; 8] = [0x48, 0xc7, 0xc0, 0xda, 0xff, 0xff, 0xff, 0xc3];

const SECTION_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
const SYMBOLS: u32 = 11;
const FUNCTION: u8 = 2;

/// A vdso whose functions make system calls.
pub(crate) struct ForeignVdso {
    start: u64,
    image: Bytes,
}

impl ForeignVdso {
    /// From the one that the kernel has mapped. `None` if no function of a known name is found in it, or two are too near to each other.
    pub(crate) fn new(start: u64, image: &[u8]) -> Option<ForeignVdso> {
        let mut changed = image.to_vec();
        let mut are_known = false;
        let functions = functions(image)?;
        let mut offsets: Vec<usize> = functions.iter().map(|(_, offset)| *offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        if offsets.windows(2).any(|pair| pair[1] - pair[0] < CALL.len()) {
            return None;
        }
        for (name, offset) in functions {
            let name = name.strip_prefix(b"__vdso_").unwrap_or(name);
            let known = FUNCTIONS.iter().find(|(known, _)| *known == name);
            let stub = known.map_or(REFUSAL, |(_, number)| {
                let mut stub = CALL;
                stub[1..5].copy_from_slice(&(*number as u32).to_le_bytes());
                stub
            });
            are_known |= known.is_some();
            changed.get_mut(offset..offset.checked_add(stub.len())?)?.copy_from_slice(&stub);
        }
        are_known.then(|| ForeignVdso { start, image: changed.into() })
    }

    fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.image.len() as u64)
    }

    /// Where it lies, if it has this address.
    pub(crate) fn range_at(&self, address: u64) -> Option<Range<u64>> {
        Some(self.range()).filter(|range| range.contains(&address))
    }

    /// Its bytes from an address on, at most so many.
    pub(crate) fn bytes_at(&self, address: u64, bytes_max: usize) -> Option<Bytes> {
        let from = usize::try_from(address - self.range_at(address)?.start).ok()?;
        Some(self.image.slice(from..self.image.len().min(from.saturating_add(bytes_max))))
    }
}

/// The names of the functions of an image, and where in it they begin.
fn functions(image: &[u8]) -> Option<Vec<(&[u8], usize)>> {
    let number = |at: usize, bytes: usize| {
        let bytes = image.get(at..at.checked_add(bytes)?)?;
        Some(bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    let place = |at: usize| number(at, 8).and_then(|number| usize::try_from(number).ok());
    let (sections, count) = (place(0x28)?, number(0x3c, 2)?);
    let section = |index: u64| sections.checked_add(usize::try_from(index).ok()?.checked_mul(SECTION_BYTES)?);
    let kind = |at: &usize| at.checked_add(4).and_then(|at| number(at, 4));
    let symbols = (0..count).find_map(|index| section(index).filter(|at| kind(at) == Some(SYMBOLS.into())))?;
    let field = |section: usize, offset: usize| section.checked_add(offset);
    let names = section(number(field(symbols, 0x28)?, 4)?)?;
    let (first, bytes) = (place(field(symbols, 0x18)?)?, place(field(symbols, 0x20)?)?);
    let names = place(field(names, 0x18)?)?;
    let mut found = Vec::new();
    for at in (first..first.checked_add(bytes)?).step_by(SYMBOL_BYTES) {
        let (name, kind) = (number(at, 4)? as usize, image.get(at.checked_add(4)?)? & 0xf);
        let offset = place(at.checked_add(8)?)?;
        let name = image.get(names.checked_add(name)?..)?.split(|byte| *byte == 0).next()?;
        if kind == FUNCTION && offset != 0 {
            found.push((name, offset));
        }
    }
    Some(found)
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_of_this_machines_vdso_become_system_calls() {
        let text = std::fs::read_to_string("/proc/self/maps").expect("there is a list");
        let line = text.lines().find(|line| line.ends_with("[vdso]")).expect("the kernel maps one");
        let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let [start, end] = [start, end].map(|number| u64::from_str_radix(number, 16).expect("a number"));
        // SAFETY: the kernel has mapped it there.
        let image = unsafe { std::slice::from_raw_parts(start as *const u8, (end - start) as usize) };
        let vdso = ForeignVdso::new(start, image).expect("its functions are found");
        let names = functions(image).expect("as above");
        for (name, number) in [(&b"__vdso_clock_gettime"[..], 228), (b"__vdso_gettimeofday", 96), (b"__vdso_time", 201)]
        {
            let (_, offset) = names.iter().find(|(its, _)| *its == name).expect("all kernels have it");
            let bytes = vdso.bytes_at(start + *offset as u64, 8).expect("it lies there");
            assert_eq!(&bytes[..], [0xb8, number, 0, 0, 0, 0x0f, 0x05, 0xc3]);
        }
        assert_eq!(vdso.bytes_at(start, 4096).expect("it begins there")[..4], *b"\x7fELF");
        assert!(vdso.range_at(end).is_none() && vdso.range_at(start - 1).is_none());
        assert!(vdso.bytes_at(end - 1, 8).is_some_and(|rest| rest.len() == 1));
    }

    #[test]
    fn an_image_without_functions_is_none() {
        assert!(ForeignVdso::new(0, &[0; 4096]).is_none());
        assert!(ForeignVdso::new(0, b"short").is_none());
    }
}
