//! The executable mappings of a process.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};

use super::access_profile::{CodeAddress, CodeObject};

/// Bytes of the kernel's list that are read: more than as many mappings have as the kernel allows by default.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// Addresses with code of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CodeRange {
    start: u64,
    end: u64,
    /// The offset of the first address in the object's file.
    offset: u64,
    object: u32,
    has_offsets: bool,
    is_runtime: bool,
}

/// A place in code, and whose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MappedAddress {
    pub(super) address: CodeAddress,
    pub(super) is_runtime: bool,
}

/// What a process had mapped when it was last looked.
#[derive(Default)]
pub(super) struct AddressMap {
    /// In order.
    ranges: Vec<CodeRange>,
    looks: u32,
    /// Unknown addresses since the last look.
    unknown: u32,
}

impl AddressMap {
    /// The object at an address, by what is known.
    pub(super) fn find(&self, address: u64) -> Option<MappedAddress> {
        let behind = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges[..behind].last().filter(|range| address < range.end)?;
        let offset = if range.has_offsets { (address - range.start).saturating_add(range.offset) } else { 0 };
        Some(MappedAddress { address: CodeAddress { object: range.object, offset }, is_runtime: range.is_runtime })
    }

    /// The object at an address. If it is unknown, looks at the mappings of the process to which a thread belongs: at once at
    /// first, and ever more seldom, since a program may make and drop code all the time.
    ///
    /// # Errors
    /// The mappings cannot be read.
    pub(super) fn find_or_look(
        &mut self,
        address: u64,
        thread: u32,
        object_number: &mut dyn FnMut(CodeObject) -> u32,
    ) -> io::Result<Option<MappedAddress>> {
        if let Some(found) = self.find(address) {
            return Ok(Some(found));
        }
        self.unknown = self.unknown.saturating_add(1);
        if self.unknown < self.looks {
            return Ok(None);
        }
        self.unknown = 0;
        self.looks = self.looks.saturating_add(1);
        self.look(thread, object_number)?;
        Ok(self.find(address))
    }

    fn look(&mut self, thread: u32, object_number: &mut dyn FnMut(CodeObject) -> u32) -> io::Result<()> {
        let list = File::open(format!("/proc/{thread}/maps"))?;
        let mut lines = BufReader::new(list.take(LIST_BYTES_MAX));
        self.ranges.clear();
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            if let Some((range, object)) = parse(&String::from_utf8_lossy(&line)) {
                let (has_offsets, is_runtime) = (object != CodeObject::Anonymous, object.is_runtime());
                self.ranges.push(CodeRange { object: object_number(object), has_offsets, is_runtime, ..range });
            }
            line.clear();
        }
        self.ranges.sort_by_key(|range| range.start);
        Ok(())
    }
}

/// Reads `START-END r-xp OFFSET DEVICE INODE PATH`; `None` for memory that cannot be executed.
fn parse(line: &str) -> Option<(CodeRange, CodeObject)> {
    let mut rest = line.trim_end_matches('\n');
    let mut next = || {
        let (field, behind) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = behind.trim_start_matches(' ');
        field
    };
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = next().split_once('-')?;
    let is_executable = next().contains('x');
    let offset = number(next())?;
    let _device = next();
    let inode: u64 = next().parse().ok()?;
    let object = match rest {
        path if inode != 0 => CodeObject::File { path: path.to_owned(), inode },
        name if name.starts_with("[v") => CodeObject::Kernel(name.to_owned()),
        _ => CodeObject::Anonymous,
    };
    let (start, end) = (number(start)?, number(end)?);
    let range = CodeRange { start, end, offset, object: 0, has_offsets: false, is_runtime: false };
    (is_executable && start < end).then_some((range, object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_list_are_read() {
        let file = |path: &str, inode| CodeObject::File { path: path.to_owned(), inode };
        let object = |line: &str| parse(line).map(|(range, object)| (range.start, range.end, range.offset, object));
        assert_eq!(
            object("00401000-00402000 r-xp 00001000 fe:00 1183 /opt/my query (deleted)\n"),
            Some((0x40_1000, 0x40_2000, 0x1000, file("/opt/my query (deleted)", 1183)))
        );
        assert_eq!(object("1000-3000 rwxp 00000000 00:00 0 \n"), Some((0x1000, 0x3000, 0, CodeObject::Anonymous)));
        assert_eq!(
            object("1000-3000 r-xp 00000000 00:00 0                  [vdso]\n"),
            Some((0x1000, 0x3000, 0, CodeObject::Kernel("[vdso]".to_owned())))
        );
        for line in ["1000-3000 rw-p 00000000 00:00 0", "", "-", "3000-1000 r-xp 0 0 0", "1-2 r-xp z 0 0", "1-2 r-xp 0"]
        {
            assert_eq!(object(line), None, "{line}");
        }
    }

    #[test]
    fn an_address_leads_to_an_offset_of_its_file() {
        let mut map = AddressMap::default();
        let own = lines_of_the_kernels_list_are_read as fn() as usize as u64;
        let mut objects = Vec::new();
        let mut number = |object: CodeObject| {
            objects.push(object);
            objects.len() as u32 - 1
        };
        let found = map.find_or_look(own, std::process::id(), &mut number).expect("this process can be read");
        let found = found.expect("it is code of this process");
        assert!(!found.is_runtime && found.address.offset > 0);
        assert_eq!(map.find(own + 1).map(|next| next.address.offset), Some(found.address.offset + 1));
        assert_eq!(map.find(8), None);
        let path = std::env::current_exe().expect("it runs");
        let is_own = matches!(&objects[found.address.object as usize], CodeObject::File { path: of, .. } if *of == path.to_string_lossy());
        assert!(is_own, "{objects:?}");
    }

    #[test]
    fn unknown_addresses_are_looked_up_ever_more_seldom() {
        let mut map = AddressMap::default();
        let mut looks = 0;
        for _ in 0..100 {
            let before = map.looks;
            let found = map.find_or_look(8, std::process::id(), &mut |_| 0).expect("this process can be read");
            assert_eq!(found, None);
            looks += u32::from(map.looks > before);
        }
        assert!((5..20).contains(&looks), "{looks}");
    }
}
