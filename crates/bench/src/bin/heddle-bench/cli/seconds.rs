//! Durations in seconds, as arguments.

const SECONDS_MAX: f64 = 7.0 * 24.0 * 3600.0;

/// Reads a duration above 0.
pub fn seconds(text: &str) -> Result<f64, String> {
    seconds_or_none(text).and_then(|number| if number > 0.0 { Ok(number) } else { Err("not above 0".to_owned()) })
}

/// Reads a duration, which may be 0.
pub fn seconds_or_none(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=SECONDS_MAX).contains(&number) => Ok(number),
        _ => Err("not a number of seconds up to a week".to_owned()),
    }
}
