//! Names of functions as their programmers wrote them.

use std::fmt::{self, Write};

use cpp_demangle::{BorrowedSymbol, DemangleOptions};

/// Bytes of the longest mangled name that is made readable, and of the longest readable name.
const NAME_BYTES_MAX: usize = 4096;

/// A name of C, C++ or Rust. It grows no longer than [`NAME_BYTES_MAX`]: a mangled name of some hundred bytes may stand for
/// gigabytes.
pub(crate) fn readable(name: &[u8]) -> String {
    let plain = || String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES_MAX)]).into_owned();
    // `@` introduces a version.
    let mangled = name.split(|byte| *byte == b'@').next().unwrap_or_default();
    if mangled.len() > NAME_BYTES_MAX {
        return plain();
    }
    rust(mangled).or_else(|| cpp(mangled)).unwrap_or_else(plain)
}

fn rust(name: &[u8]) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(str::from_utf8(name).ok()?).ok()?;
    let mut text = LimitedText::default();
    // Without the hash at the end.
    write!(text, "{demangled:#}").ok()?;
    Some(text.0)
}

fn cpp(name: &[u8]) -> Option<String> {
    if !name.starts_with(b"_Z") {
        return None;
    }
    let (symbol, tail) = BorrowedSymbol::with_tail(name).ok()?;
    let mut text = LimitedText::default();
    symbol.structured_demangle(&mut text, &DemangleOptions::new().no_return_type()).ok()?;
    text.write_str(&String::from_utf8_lossy(tail)).ok()?;
    Some(text.0)
}

/// Text that refuses to become too long.
#[derive(Default)]
struct LimitedText(String);

impl Write for LimitedText {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.0.len() + more.len() > NAME_BYTES_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(more);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_three_languages_are_readable() {
        for (name, text) in [
            ("scan_orders", "scan_orders"),
            ("scan_orders.constprop.0", "scan_orders.constprop.0"),
            ("_ZN5query4scanERKSt6vectorIiSaIiEE", "query::scan(std::vector<int, std::allocator<int> > const&)"),
            ("_ZN5query4scanEi.cold", "query::scan(int) [clone .cold]"),
            ("_ZN5query4scan17h0123456789abcdefE", "query::scan"),
            ("_RNvCskwGfYPst2Cb_5query4scan", "query::scan"),
            ("_Z", "_Z"),
            ("", ""),
        ] {
            assert_eq!(readable(name.as_bytes()), text);
        }
    }

    #[test]
    fn names_that_would_not_end_stay_as_they_are() {
        // Each parameter is twice as long as the one before.
        let mut name = "_Z1fP1a".to_owned();
        (0..40).for_each(|number| name.push_str(&format!("St4pairIS{0}_S{0}_E", ["", "0", "1"][number % 3])));
        assert!(readable(name.as_bytes()).len() <= NAME_BYTES_MAX);
        assert_eq!(readable(&[b'x'; 3 * NAME_BYTES_MAX]).len(), NAME_BYTES_MAX);
        assert_eq!(readable(&[0xff, b'a']), "\u{fffd}a");
    }
}
