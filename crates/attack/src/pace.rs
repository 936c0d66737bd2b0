//! How fast an attack goes, and what it has done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Units of an attack, given out at a pace until its time is over.
pub struct Pace {
    per_second: f64,
    begin: Instant,
    end: Instant,
    next: Mutex<f64>,
    units: AtomicU64,
    connections: AtomicU64,
    bytes: AtomicU64,
}

/// An attack that is behind its pace hurries up by this much at most.
const ARREARS_SECONDS_MAX: f64 = 1.0;

impl Pace {
    /// So many units a second for this long.
    pub fn new(per_second: f64, time: Duration) -> Pace {
        let begin = Instant::now();
        Pace {
            per_second,
            begin,
            end: begin + time,
            next: Mutex::new(0.0),
            units: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Waits for the time of the next `count` units; false when the attack is over.
    pub async fn take(&self, count: f64) -> bool {
        let at = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let earliest = self.begin.elapsed().as_secs_f64() - ARREARS_SECONDS_MAX;
            let at = next.max(earliest);
            *next = at + count / self.per_second;
            self.begin + Duration::from_secs_f64(at.max(0.0))
        };
        if at >= self.end {
            self.over().await;
            return false;
        }
        tokio::time::sleep_until(at.into()).await;
        self.units.fetch_add(count as u64, Ordering::Relaxed);
        true
    }

    /// Waits for the end of the attack.
    pub async fn over(&self) {
        tokio::time::sleep_until(self.end.into()).await;
    }

    /// Counts a connection.
    pub fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes that were sent.
    pub fn sent(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// What was done so far.
    pub fn done(&self, name: &str, unit: &str) -> Done {
        let seconds = self.begin.elapsed().min(self.end - self.begin).as_secs_f64();
        Done {
            attack: name.to_owned(),
            unit: unit.to_owned(),
            asked_per_second: self.per_second,
            reached_per_second: self.units.load(Ordering::Relaxed) as f64 / seconds.max(1e-3),
            connections: self.connections.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            breach: None,
        }
    }
}

/// What an attack has done, as its program prints it: one line of JSON.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Done {
    pub attack: String,
    /// What is counted.
    pub unit: String,
    pub asked_per_second: f64,
    pub reached_per_second: f64,
    pub connections: u64,
    pub bytes: u64,
    /// What it got hold of that it must not have, if anything.
    pub breach: Option<String>,
}
