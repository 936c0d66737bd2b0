//! The floor of a commit's latency: the time that a transaction of a single client would take if everything but fsyncs
//! and round trips were free.
//!
//! In a network of one process with one orderer, a transaction waits for these steps, one after the other:
//! - three round trips between client and gateway: endorse, submit, commit status;
//! - one fsync by the orderer;
//! - half a round trip, in which the block goes to the peer;
//! - one fsync by the peer.
//!
//! Signatures, contracts and the hand-over between tasks are not included. In networks of several processes or orderers
//! a transaction waits for more steps, but they are compared with the same floor.
//!
//! The price of a step is measured in the same run, in elapsed time, as the median of many measurements. For the fsync,
//! a thread appends the bytes of one block to a file beside the network's files, and calls fsync. For the round trip,
//! two threads exchange a request and a reply over a loopback socket, and sleep while they wait. Both messages have the
//! size of a proposal.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use crate::error::Error;
use crate::interval::median;

/// Fsyncs on the path of one commit.
pub const FSYNCS: f64 = 2.0;
/// Round trips on the path of one commit.
pub const ROUND_TRIPS: f64 = 3.5;
/// Bytes of a block of one transaction, and of one message of a client.
const BLOCK_BYTES: usize = 6 << 10;
const MESSAGE_BYTES: usize = 2 << 10;
const FSYNCS_MEASURED: usize = 64;
const ROUND_TRIPS_MEASURED: usize = 2_000;

/// The times of the parts of the path, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct LatencyPrices {
    /// One fsync of one file.
    pub fsync_us: f64,
    /// One round trip.
    pub round_trip_us: f64,
}

impl LatencyPrices {
    /// Measures on the disk of a folder, for as long as 64 fsyncs take.
    ///
    /// # Errors
    /// The disk of the folder is full, or no port is left.
    pub fn measure(folder: &Path) -> Result<LatencyPrices, Error> {
        let failed = |what: &'static str| move |error: std::io::Error| Error::Part { what, reason: error.to_string() };
        Ok(LatencyPrices {
            fsync_us: fsync_us(folder).map_err(failed("fsyncs to compare with"))?,
            round_trip_us: round_trip_us().map_err(failed("round trips to compare with"))?,
        })
    }

    /// The mean of two measurements, before and after a load.
    pub fn mean(self, other: LatencyPrices) -> LatencyPrices {
        LatencyPrices {
            fsync_us: (self.fsync_us + other.fsync_us) / 2.0,
            round_trip_us: (self.round_trip_us + other.round_trip_us) / 2.0,
        }
    }

    /// The floor, in milliseconds.
    pub fn floor_ms(&self) -> f64 {
        (FSYNCS * self.fsync_us + ROUND_TRIPS * self.round_trip_us) / 1e3
    }
}

fn fsync_us(folder: &Path) -> std::io::Result<f64> {
    let file = tempfile::tempfile_in(folder)?;
    let block = vec![7; BLOCK_BYTES];
    let mut times = Vec::with_capacity(FSYNCS_MEASURED);
    for number in 0..FSYNCS_MEASURED {
        let start = Instant::now();
        file.write_all_at(&block, (number * BLOCK_BYTES) as u64)?;
        file.sync_data()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

fn round_trip_us() -> std::io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut caller = TcpStream::connect(listener.local_addr()?)?;
    let (mut answering, _) = listener.accept()?;
    caller.set_nodelay(true)?;
    answering.set_nodelay(true)?;
    // It ends with the caller's socket.
    let answerer = std::thread::Builder::new().name("echo".to_owned()).spawn(move || {
        let mut message = [0; MESSAGE_BYTES];
        while answering.read_exact(&mut message).and_then(|()| answering.write_all(&message)).is_ok() {}
    })?;
    let mut message = [7; MESSAGE_BYTES];
    let mut times = Vec::with_capacity(ROUND_TRIPS_MEASURED);
    for _ in 0..ROUND_TRIPS_MEASURED {
        let start = Instant::now();
        caller.write_all(&message)?;
        caller.read_exact(&mut message)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    drop(caller);
    answerer.join().expect("the answering thread does not panic");
    Ok(median(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_two_fsyncs_and_three_and_a_half_round_trips() {
        let prices = LatencyPrices { fsync_us: 1_000.0, round_trip_us: 100.0 };
        assert!((prices.floor_ms() - 2.35).abs() < 1e-9);
        let other = LatencyPrices { fsync_us: 3_000.0, round_trip_us: 300.0 };
        assert_eq!(prices.mean(other), LatencyPrices { fsync_us: 2_000.0, round_trip_us: 200.0 });
    }

    #[test]
    fn prices_are_those_of_a_disk_and_a_socket() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let prices = LatencyPrices::measure(folder.path()).expect("there is room and a port");
        assert!(prices.fsync_us > 0.0 && prices.round_trip_us > 0.0);
        assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 0, "nothing stays");
    }
}
