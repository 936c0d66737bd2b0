//! A table on the screen that is drawn again and again, or printed once.

use std::io::IsTerminal as _;
use std::time::Duration;

use crate::failure::CommandError;
use crate::output;
use crate::signals::StopSignals;

/// How often the screen is drawn.
pub const PERIOD: Duration = Duration::from_secs(1);
/// The alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Whether the table is printed once: if that is wanted, or if nobody would see it change.
pub fn is_once(is_wanted: bool) -> bool {
    is_wanted || !std::io::stdout().is_terminal()
}

/// Draws what `look` returns until a signal; once, if that is wanted. Then there are two looks, since rates are measured between looks.
pub async fn show(
    is_once: bool,
    mut look: impl AsyncFnMut() -> Result<String, CommandError>,
) -> Result<(), CommandError> {
    let mut signals = StopSignals::listen()?;
    if !is_once {
        output::print(ENTER)?;
    }
    let shown = async {
        if is_once {
            look().await?;
            tokio::time::sleep(PERIOD / 2).await;
        }
        loop {
            let text = look().await?;
            if is_once {
                return output::print(&text);
            }
            // From the top, each line to its end, and nothing below.
            output::print(&format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")))?;
            tokio::time::sleep(PERIOD).await;
        }
    };
    let ended = tokio::select! {
        ended = shown => ended,
        () = signals.received() => Ok(()),
    };
    if !is_once {
        output::print(LEAVE)?;
    }
    ended
}

/// A bar of sixteen characters.
pub fn bar(percent: u64) -> String {
    let full = (percent.min(100) * 16 / 100) as usize;
    format!("{}{}", "#".repeat(full), ".".repeat(16 - full))
}
