//! Harnesses of the reader and the hello, for the property tests here and for the fuzz target `wire`.

use bytes::Bytes;

use crate::hello::{Hello, HelloAnswer};
use crate::{Input, Malformed, Reader};

/// Reads the input as a script of reads over its own bytes, from a slice and from [`Bytes`]: both find the same, and neither
/// loses a byte, reads one twice, or reads behind the end.
pub fn read(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let (mut slice, mut shared) = (Reader::new(input), Reader::new(bytes));
    // Each step but a refused one consumes its own operation at least.
    while let Ok(operation) = slice.u8() {
        assert_eq!(shared.u8(), Ok(operation));
        let before = slice.at();
        let found = step(&mut slice, operation);
        assert_eq!(step(&mut shared, operation), found);
        assert_eq!((slice.at(), slice.left()), (shared.at(), shared.left()));
        assert_eq!(slice.at().saturating_add(slice.left()), input.len());
        match found {
            Ok(found) => assert!(found.is_empty() || input[before..slice.at()].ends_with(&found)),
            Err(malformed) => assert!(malformed.at <= input.len()),
        }
    }
}

fn step<I: Input>(reader: &mut Reader<I>, operation: u8) -> Result<Vec<u8>, Malformed> {
    let max = usize::from(operation);
    Ok(match operation % 14 {
        0 => reader.u8()?.to_le_bytes().to_vec(),
        1 => reader.u16()?.to_le_bytes().to_vec(),
        2 => reader.u32()?.to_le_bytes().to_vec(),
        3 => reader.u64()?.to_le_bytes().to_vec(),
        4 => reader.u128()?.to_le_bytes().to_vec(),
        5 => vec![u8::from(reader.flag()?)],
        6 => reader.zeros(max >> 4).map(|()| vec![0; max >> 4])?,
        7 => reader.short(max)?.as_ref().to_vec(),
        8 => reader.long(max)?.as_ref().to_vec(),
        9 => reader.text(max)?.into_bytes(),
        10 => (reader.count(max, max)? as u32).to_le_bytes().to_vec(),
        11 => {
            let claimed = reader.u64()?;
            reader.bytes_u64(claimed)?.as_ref().to_vec()
        }
        12 => {
            let span = reader.span(|ahead| ahead.short(max).map(drop))?;
            span.as_ref().to_vec()
        }
        _ => reader.array::<5>()?.to_vec(),
    })
}

/// Reads the input as a hello and as an answer: what is accepted encodes to the bytes that were read.
pub fn hello(input: &[u8]) {
    if let Some(purpose) = input.first_chunk::<8>() {
        let mut reader = Reader::new(input);
        if let Ok(hello) = Hello::read(&mut reader, *purpose) {
            assert_eq!(hello.encode()[..], input[..reader.at()]);
            assert!(hello.versions.choose(hello.versions).is_ok_and(|chosen| chosen == hello.versions.newest()));
        }
    }
    let mut reader = Reader::new(input);
    if let Ok(answer) = HelloAnswer::read(&mut reader) {
        assert_eq!(answer.encode()[..], input[..reader.at()]);
        assert_eq!(answer.chosen_by(answer.versions()).is_err(), answer.is_refusal());
    }
}
