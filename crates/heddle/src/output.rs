//! Standard output. A reader that has gone (`heddle ledger show | head`) is no failure.

use std::io::{ErrorKind, Write as _};

use crate::failure::Failure;

/// Prints text as it is.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// Prints bytes as they are.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(format!("standard output: {error}"))),
        _ => Ok(()),
    }
}

/// Prints JSON.
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}
