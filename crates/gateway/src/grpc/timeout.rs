//! The header `grpc-timeout`: up to eight digits and a unit.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::time::Duration;

use http::HeaderValue;

/// How long the client will wait; `None` if the value does not have the form that gRPC defines.
pub fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let amount: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(amount.saturating_mul(3600)),
        b'M' => Duration::from_secs(amount.saturating_mul(60)),
        b'S' => Duration::from_secs(amount),
        b'm' => Duration::from_millis(amount),
        b'u' => Duration::from_micros(amount),
        b'n' => Duration::from_nanos(amount),
        _ => return None,
    })
}

/// The value for `timeout`, rounded up to what eight digits can express.
pub fn format(timeout: Duration) -> HeaderValue {
    const DIGITS_MAX: u128 = 99_999_999;
    let text = if timeout.as_micros() <= DIGITS_MAX {
        format!("{}u", timeout.as_micros())
    } else if timeout.as_millis() <= DIGITS_MAX {
        format!("{}m", timeout.as_millis())
    } else {
        format!("{}S", u128::from(timeout.as_secs()).min(DIGITS_MAX))
    };
    HeaderValue::from_str(&text).expect("digits and a letter are a header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_survive_the_header() {
        for timeout in [1u64, 999, 1_500_000, 100_000_000, 86_400_000_000].map(Duration::from_micros) {
            assert_eq!(parse(format(timeout).as_bytes()), Some(timeout));
        }
    }

    #[test]
    fn values_of_another_form_are_refused() {
        for value in ["", "S", "1", "1s", "-1S", "123456789S", "1.5S", " 1S"] {
            assert_eq!(parse(value.as_bytes()), None, "{value}");
        }
        assert_eq!(parse(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
    }
}
