//! Two sides that write different bytes of the same pages (figure 7).
//!
//! The default mode moves each page whenever the other side wants it. With coherence off nothing moves; the caller sends its bytes home at
//! the end, exactly them.

use base::rt::CancellationToken;
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};

use super::{TeleportConfig, Turns, arguments, bound, figure, number};

const SYNCMEM_OVER_DEFAULT_MAX: f64 = 0.8;
const WAYS: [&str; 2] = ["default", "syncmem"];

/// Measures.
///
/// # Errors
/// The machine does not allow user page faults, a subject fails, or `stop` was stopped.
pub async fn run(config: &TeleportConfig, stop: &CancellationToken, tell: &dyn Fn(&str)) -> Result<Figure, Error> {
    let mut figure = figure("teleport-fig7", "False sharing, and a manual synchronisation", config);
    let ways = WAYS.map(|way| arguments("false-sharing", &[("way", way.to_owned())]));
    let found = Turns { config, stop, tell }.medians(&ways).await?;
    let [default, syncmem] = [number(&found[0], "seconds")?, number(&found[1], "seconds")?];
    for (way, time) in WAYS.iter().zip([default, syncmem]) {
        figure.row(&[("way", way)], &[("seconds", time)]);
    }
    figure.ratio(
        "syncmem_over_default",
        syncmem / default,
        bound(config, RatioBound::AtMost(SYNCMEM_OVER_DEFAULT_MAX)),
    );
    Ok(figure)
}
