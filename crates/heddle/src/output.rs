//! Standard output. A closed pipe (`heddle ledger show | head`) is not a failure.

use std::io::{ErrorKind, Write as _};

use crate::failure::CommandError;

/// Prints text as it is.
pub fn print(text: &str) -> Result<(), CommandError> {
    print_bytes(text.as_bytes())
}

/// Prints bytes as they are.
pub fn print_bytes(bytes: &[u8]) -> Result<(), CommandError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(CommandError::new(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints JSON.
pub fn print_json(value: &serde_json::Value) -> Result<(), CommandError> {
    print(&format!("{value:#}\n"))
}
