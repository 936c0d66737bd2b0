//! The archive that the kernel unpacks as its first file system: cpio in the "new ASCII" format.

/// An archive under construction. Folders come before their contents.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

/// The kinds of file, as in the mode of a Unix inode.
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const ALIGNMENT: usize = 4;

impl Archive {
    pub fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER | 0o755, &[]);
    }

    /// A file that everyone may execute.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE | 0o755, content);
    }

    /// The archive with its closing entry.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    /// The magic number, 13 fields of eight hexadecimal digits, the name, the content.
    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let length = u32::try_from(content.len()).expect("no file of the guest reaches 4 GiB");
        let name_length = u32::try_from(path.len() + 1).expect("a path is short");
        // inode, mode, owner, group, links, time, length, device twice, special device twice, name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn an_entry_has_the_bytes_that_the_format_asks_for() {
        let mut archive = Archive::default();
        archive.file("ab", b"hello");
        let bytes = archive.finish();
        let header = "070701000000010000\
                      81ed0000000000000000000000010000000000000005000000000000000000000000000000000000000300000000ab\0";
        assert_eq!(String::from_utf8_lossy(&bytes[..113]), header);
        // The name and the content each end on a multiple of four.
        assert_eq!(&bytes[113..124], b"\0\0\0hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }
}
