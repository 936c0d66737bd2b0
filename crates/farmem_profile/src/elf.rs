//! Functions of executable files and libraries.
//!
//! For the few addresses of a profile the symbol tables are read once, entry by entry; nothing is sorted or kept. The files are
//! whatever the program has executed, so sizes are checked against limits before anything is read, and everything else that
//! is wrong with a file is an error.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64, Sym64};
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, SectionTable, Sym as _};
use object::{Endianness, ReadCache, StringTable};

use crate::unwind_index::UnwindIndex;

/// Bytes of the largest table that is read: five million symbols.
const TABLE_BYTES_MAX: u64 = 128 << 20;
/// Headers of segments and of sections, each.
const HEADERS_MAX: u32 = 1 << 16;
/// Segments of notes that are read, and bytes of each.
const NOTES_MAX: usize = 16;
const NOTE_BYTES_MAX: u64 = 64 << 10;
/// Comparisons of symbols with addresses: a usual file needs some for each symbol.
const COMPARISONS_MAX: u64 = 200_000_000;
/// Addresses behind the start of a function that has no size, in assembly code say, which may be of it.
const FUNCTION_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the longest build identifier.
const BUILD_ID_BYTES_MAX: usize = 64;
/// Where distributions install separate debug files, by the build identifier.
const DEBUG_FOLDER: &str = "/usr/lib/debug/.build-id";

/// A function at an address of the profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ElfFunction {
    /// Its name in the symbol table; `None` if only its bounds are known.
    pub(crate) name: Option<Vec<u8>>,
    /// Its addresses, as the file counts them.
    pub(crate) range: Range<u64>,
    /// Whether the address is the function's first.
    pub(crate) is_start: bool,
}

type Data<'a> = &'a ReadCache<File>;
type Header = FileHeader64<Endianness>;
type Sections<'a> = SectionTable<'a, Header, Data<'a>>;

/// The functions at these offsets in a file, which had this inode when the program ran. Offsets at which no function is known are
/// left out.
///
/// # Errors
/// The text says why no names can be read.
pub(crate) fn functions(path: &Path, inode: u64, offsets: &[u64]) -> Result<BTreeMap<u64, ElfFunction>, String> {
    let file = open(path)?;
    if file.metadata().is_ok_and(|data| data.ino() != inode) {
        return Err("the file has been replaced since the program began to run".to_owned());
    }
    let cache = ReadCache::new(file);
    let elf = ElfFile::new(&cache)?;
    let mut wanted: Vec<WantedAddress> =
        offsets.iter().filter_map(|offset| Some(WantedAddress::new(*offset, elf.address_of(*offset)?))).collect();
    wanted.sort_by_key(|wanted| wanted.address);
    let has_names = elf.match_symbols(elf::SHT_SYMTAB, &mut wanted)?;
    if let Some(debug) = elf.debug_file().filter(|_| !has_names) {
        // It is a convenience: if it is damaged, the names of the file itself have to do.
        let _ = match_debug_file(&debug, &mut wanted);
    }
    elf.match_symbols(elf::SHT_DYNSYM, &mut wanted)?;
    elf.match_unwind_index(&mut wanted);
    Ok(wanted
        .into_iter()
        .filter_map(|wanted| Some((wanted.offset, wanted.best?.into_function(wanted.address))))
        .collect())
}

fn open(path: &Path) -> Result<File, String> {
    // To open a pipe would wait for its other end.
    let data = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !data.is_file() {
        return Err("it is no regular file".to_owned());
    }
    File::open(path).map_err(|error| error.to_string())
}

fn match_debug_file(path: &Path, wanted: &mut [WantedAddress]) -> Result<(), String> {
    let cache = ReadCache::new(open(path)?);
    ElfFile::new(&cache)?.match_symbols(elf::SHT_SYMTAB, wanted)?;
    Ok(())
}

/// An address whose function is searched for.
struct WantedAddress {
    offset: u64,
    address: u64,
    best: Option<FunctionMatch>,
}

/// A function that has the address.
struct FunctionMatch {
    range: Range<u64>,
    rank: MatchRank,
    name: Option<Vec<u8>>,
}

/// Of several functions at an address the one with the largest rank is taken: a symbol with a size, the innermost, one that
/// other files see, the name with the fewest underscores in front, the shortest.
type MatchRank = (bool, u64, bool, std::cmp::Reverse<usize>, std::cmp::Reverse<usize>);

impl WantedAddress {
    fn new(offset: u64, address: u64) -> WantedAddress {
        WantedAddress { offset, address, best: None }
    }
}

impl FunctionMatch {
    fn into_function(self, address: u64) -> ElfFunction {
        let is_start = self.range.start == address;
        ElfFunction { name: self.name.filter(|name| !name.is_empty()), range: self.range, is_start }
    }
}

/// A file's headers.
struct ElfFile<'a> {
    data: Data<'a>,
    endian: Endianness,
    segments: &'a [ProgramHeader64<Endianness>],
    sections: Sections<'a>,
}

impl<'a> ElfFile<'a> {
    fn new(data: Data<'a>) -> Result<ElfFile<'a>, String> {
        let text = |error: object::read::Error| error.to_string();
        let header = Header::parse(data).map_err(text)?;
        let endian = header.endian().map_err(text)?;
        let segments = header.phnum(endian, data).map_err(text)?;
        let sections = header.shnum(endian, data).map_err(text)?;
        if segments > HEADERS_MAX || sections > HEADERS_MAX {
            return Err(format!("it has {segments} segments and {sections} sections; {HEADERS_MAX} of each are read"));
        }
        let segments = header.program_headers(endian, data).map_err(text)?;
        let sections = header.sections(endian, data).map_err(text)?;
        Ok(ElfFile { data, endian, segments, sections })
    }

    /// The address at which an offset of the file is executed.
    fn address_of(&self, offset: u64) -> Option<u64> {
        let mut loaded = self.segments.iter().filter(|segment| segment.p_type(self.endian) == elf::PT_LOAD);
        loaded.find_map(|segment| {
            let (start, bytes) = segment.file_range(self.endian);
            let within = offset.checked_sub(start).filter(|within| *within < bytes)?;
            segment.p_vaddr(self.endian).checked_add(within)
        })
    }

    /// Compares the functions of a symbol table with all addresses. False if there is no such table.
    fn match_symbols(&self, kind: elf::SectionType, wanted: &mut [WantedAddress]) -> Result<bool, String> {
        let text = |error: object::read::Error| error.to_string();
        let Some(section) = self.sections.iter().find(|section| section.sh_type(self.endian) == kind) else {
            return Ok(false);
        };
        let symbols = self.symbols(section)?;
        let link = object::SectionIndex(section.sh_link(self.endian) as usize);
        let strings = self.sections.strings(self.endian, self.data, link).map_err(text)?;
        let mut comparisons = 0_u64;
        for symbol in symbols {
            if symbol.st_type() == elf::STT_FUNC && !symbol.is_undefined(self.endian) {
                comparisons += self.match_symbol(symbol, &strings, wanted);
            }
            if comparisons > COMPARISONS_MAX {
                return Err("too many of its symbols stand for the same addresses".to_owned());
            }
        }
        Ok(!symbols.is_empty())
    }

    fn symbols(&self, section: &SectionHeader64<Endianness>) -> Result<&'a [Sym64<Endianness>], String> {
        let bytes = section.sh_size(self.endian);
        if bytes > TABLE_BYTES_MAX {
            return Err(format!("its symbol table has {bytes} bytes; at most {TABLE_BYTES_MAX} are read"));
        }
        section.data_as_array(self.endian, self.data).map_err(|error| error.to_string())
    }

    /// Compares one function with the addresses that it may have, and returns how many they are.
    fn match_symbol(
        &self,
        symbol: &Sym64<Endianness>,
        strings: &StringTable<'a, Data<'a>>,
        wanted: &mut [WantedAddress],
    ) -> u64 {
        let (start, bytes) = (symbol.st_value(self.endian), symbol.st_size(self.endian));
        let end = start.saturating_add(if bytes == 0 { FUNCTION_BYTES_MAX } else { bytes });
        let mut comparisons = 0;
        let first = wanted.partition_point(|wanted| wanted.address < start);
        for wanted in wanted[first..].iter_mut().take_while(|wanted| wanted.address < end) {
            comparisons += 1;
            let is_visible = symbol.st_bind() != elf::STB_LOCAL;
            let known = wanted.best.as_ref().map(|best| best.rank);
            if known.is_some_and(|rank| (rank.0, rank.1, rank.2) > (bytes > 0, start, is_visible)) {
                continue;
            }
            let name = strings.get(symbol.st_name(self.endian)).unwrap_or_default();
            let underscores = name.iter().take_while(|byte| **byte == b'_').count();
            let shortest = std::cmp::Reverse(name.len());
            let rank = (bytes > 0, start, is_visible, std::cmp::Reverse(underscores), shortest);
            if known.is_none_or(|known| known < rank) {
                wanted.best = Some(FunctionMatch { range: start..end, rank, name: Some(name.to_owned()) });
            }
        }
        comparisons
    }

    /// Gives bounds to addresses that have no function yet, or one without a size that may have ended long before.
    fn match_unwind_index(&self, wanted: &mut [WantedAddress]) {
        let index = self.segments.iter().find(|segment| segment.p_type(self.endian) == elf::PT_GNU_EH_FRAME);
        let index = index.filter(|segment| segment.p_filesz(self.endian) <= TABLE_BYTES_MAX);
        let index = index.and_then(|segment| {
            UnwindIndex::new(segment.data(self.endian, self.data).ok()?, segment.p_vaddr(self.endian))
        });
        let Some(index) = index else { return };
        for wanted in wanted.iter_mut().filter(|wanted| wanted.best.as_ref().is_none_or(|best| !best.rank.0)) {
            if let Some(range) = index.function(wanted.address) {
                match &mut wanted.best {
                    Some(best) if best.range.start == range.start => best.range = range,
                    best => {
                        let rank = (false, range.start, false, std::cmp::Reverse(0), std::cmp::Reverse(0));
                        *best = Some(FunctionMatch { range, rank, name: None });
                    }
                }
            }
        }
    }

    /// The separate debug file that belongs to this file, if it has a build identifier.
    fn debug_file(&self) -> Option<PathBuf> {
        let notes = self.segments.iter().filter(|segment| {
            segment.p_type(self.endian) == elf::PT_NOTE && segment.p_filesz(self.endian) <= NOTE_BYTES_MAX
        });
        let id = notes.take(NOTES_MAX).find_map(|segment| self.build_id(segment))?;
        let (first, rest) = id.split_first().filter(|_| id.len() <= BUILD_ID_BYTES_MAX)?;
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Path::new(DEBUG_FOLDER).join(format!("{first:02x}/{rest}.debug")))
    }

    fn build_id(&self, segment: &ProgramHeader64<Endianness>) -> Option<&'a [u8]> {
        let mut notes = segment.notes(self.endian, self.data).ok()??;
        // Each note has at least twelve bytes.
        for _ in 0..NOTE_BYTES_MAX / 12 {
            let note = notes.next().ok()??;
            if note.name() == elf::ELF_NOTE_GNU && note.n_type(self.endian) == elf::NT_GNU_BUILD_ID {
                return Some(note.desc());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
