//! Two threads, of which one is pushed down, in five ways (figure 6).
//!
//! One thread computes, the other reads at random in far memory, of which the process has 2 %. It reads eight times for ten pages, as the paper's
//! does in its second; the computing thread takes as long as that takes in local memory. The thread has its part of the data in
//! the cache again when it is done, whatever was evicted.
//!
//! - *local*: the data is the process's own memory.
//! - *none*: nothing is pushed down. It takes so long that a hundredth of the reads is measured, and multiplied.
//! - *process*: the whole process is moved: all its pages are sent, both threads run at the executor, one after the other.
//! - *thread*: the reading thread is pushed down, and its part of the cache evicted before.
//! - *coherent*: the reading thread is pushed down, and pages follow when they are needed.

use base::rt::CancellationToken;
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};

use super::{TeleportConfig, Turns, arguments, bound, figure, number};

const COHERENT_OVER_LOCAL_MAX: f64 = 2.0;
const COHERENT_OVER_THREAD_MAX: f64 = 0.5;
const WAYS: [&str; 5] = ["local", "none", "process", "thread", "coherent"];

/// Measures.
///
/// # Errors
/// The machine does not allow user page faults, a subject fails, or `stop` was stopped.
pub async fn run(config: &TeleportConfig, stop: &CancellationToken, tell: &dyn Fn(&str)) -> Result<Figure, Error> {
    let mut figure = figure("teleport-fig6", "A computing and a reading thread, in five ways", config);
    let ways =
        WAYS.map(|way| arguments("ablation", &[("way", way.to_owned()), ("bytes", config.data_bytes.to_string())]));
    let found = Turns { config, stop, tell }.medians(&ways).await?;
    let mut seconds = Vec::new();
    for numbers in &found {
        seconds.push(number(numbers, "seconds")?);
    }
    let [local, none, _, thread, coherent] = seconds[..] else { return Err(super::part(&"a way is missing")) };
    for (way, time) in WAYS.iter().zip(&seconds) {
        figure.row(&[("way", way)], &[("seconds", *time), ("none_over_this", none / time)]);
    }
    let at_most = |most| bound(config, RatioBound::AtMost(most));
    figure.ratio("coherent_over_local", coherent / local, at_most(COHERENT_OVER_LOCAL_MAX));
    figure.ratio("coherent_over_thread", coherent / thread, at_most(COHERENT_OVER_THREAD_MAX));
    figure.note("The paper's times of none over the others: process 2.9, thread 3.8, coherent 11; 23 over local.");
    Ok(figure)
}
