//! Reads files out of a `tar.gz`, within bounds, and makes one.
//!
//! 1. The archive is decompressed as a stream of at most [`UNPACKED_BYTES_MAX`] bytes.
//! 2. A tar is a sequence of headers of 512 bytes, each followed by its file in units of 512 bytes. Entries that are no files
//!    are skipped, as are files of other names.
//!
//! Names that need an extended header are no names that anybody asks for.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::io::{self, Read, Write as _};

use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;

/// Bytes that an archive may unpack to.
pub const UNPACKED_BYTES_MAX: u64 = 256 << 20;
/// Entries of an archive.
const ENTRIES_MAX: usize = 10_000;
/// The unit of a tar.
const UNIT: usize = 512;
/// The bits of a length that are not whole units.
const PADDING_MASK: u64 = 511;
const _: () = assert!(PADDING_MASK == UNIT as u64 - 1 && UNIT.is_power_of_two());
/// Bytes that are skipped at a time.
const SKIPPED_BYTES: usize = 16 << 10;

/// The wanted files of an archive, in the order of `wanted`, each with its largest size in bytes. A file that occurs more than
/// once is an error, so that two readers cannot find different ones.
///
/// # Errors
/// What is wrong with the archive.
pub fn read_files<const N: usize>(archive: &[u8], wanted: [(&str, usize); N]) -> Result<[Option<Vec<u8>>; N], String> {
    let mut stream = MultiGzDecoder::new(archive).take(UNPACKED_BYTES_MAX);
    let mut found = [const { None }; N];
    for _ in 0..ENTRIES_MAX {
        let Some(entry) = next_entry(&mut stream)? else { return Ok(found) };
        let place = wanted.iter().position(|(name, _)| entry.is_file && entry.name == *name);
        let mut left = entry.bytes;
        if let Some(place) = place {
            let (name, bytes_max) = wanted[place];
            if found[place].is_some() {
                return Err(format!("it has {name} twice"));
            }
            if left > bytes_max as u64 {
                return Err(format!("{name} has {left} bytes; at most {bytes_max} are read"));
            }
            // The memory grows with what is there, not with what the header announces.
            let mut content = Vec::new();
            let read = stream.by_ref().take(left).read_to_end(&mut content).map_err(|error| broken(&error))?;
            if read as u64 != left {
                return Err(broken(&io::ErrorKind::UnexpectedEof.into()));
            }
            found[place] = Some(content);
            left = 0;
        }
        let padding = entry.bytes.wrapping_neg() & PADDING_MASK;
        skip(&mut stream, left.saturating_add(padding))?;
    }
    Err(format!("it has more than {ENTRIES_MAX} entries"))
}

/// An archive of these files; equal files give equal bytes. Names have at most 100 bytes.
pub fn write_files(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, content) in files {
        tar.extend_from_slice(&header(name, content.len()));
        tar.extend_from_slice(content);
        tar.resize(tar.len().next_multiple_of(UNIT), 0);
    }
    tar.resize(tar.len().saturating_add(2 * UNIT), 0);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&tar).expect("memory takes every byte");
    encoder.finish().expect("memory takes every byte")
}

fn header(name: &str, bytes: usize) -> [u8; UNIT] {
    let mut header = [0; UNIT];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{bytes:011o}").as_bytes());
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

struct Entry {
    name: String,
    is_file: bool,
    bytes: u64,
}

/// The next header; `None` at the end.
fn next_entry(stream: &mut impl Read) -> Result<Option<Entry>, String> {
    let mut header = [0; UNIT];
    match stream.read(&mut header).map_err(|error| broken(&error))? {
        0 => return Ok(None),
        read => stream.read_exact(&mut header[read..]).map_err(|error| broken(&error))?,
    }
    if header.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    // The checksum is the sum of the header's bytes, with blanks in its own place.
    let sum: u64 = header
        .iter()
        .enumerate()
        .map(|(at, byte)| u64::from(if (148..156).contains(&at) { b' ' } else { *byte }))
        .sum();
    if octal(&header[148..156]) != Some(sum) {
        return Err("it is no tar archive".to_owned());
    }
    let bytes = octal(&header[124..136]).ok_or("the size of one of its entries cannot be read")?;
    let name = header[..100].split(|byte| *byte == 0).next().unwrap_or_default();
    let has_prefix = &header[257..262] == b"ustar" && header[345] != 0;
    let name = match std::str::from_utf8(name) {
        Ok(name) if !has_prefix => name.strip_prefix("./").unwrap_or(name).to_owned(),
        _ => String::new(),
    };
    Ok(Some(Entry { name, is_file: matches!(header[156], b'0' | 0), bytes }))
}

/// A number in octal digits, with blanks and zero bytes around it.
fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}

fn skip(stream: &mut impl Read, mut bytes: u64) -> Result<(), String> {
    let mut discarded = [0; SKIPPED_BYTES];
    while bytes > 0 {
        let now = bytes.min(SKIPPED_BYTES as u64) as usize;
        stream.read_exact(&mut discarded[..now]).map_err(|error| broken(&error))?;
        bytes = bytes.saturating_sub(now as u64);
    }
    Ok(())
}

fn broken(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            format!("it ends within an entry, or unpacks to more than {UNPACKED_BYTES_MAX} bytes")
        }
        _ => format!("it cannot be unpacked: {error}"),
    }
}
