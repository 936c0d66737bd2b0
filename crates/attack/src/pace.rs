//! The pace and the results of an attack.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Hands out units of an attack at a pace until its time is over.
pub struct AttackPace {
    per_second: f64,
    begin: Instant,
    end: Instant,
    next: Mutex<f64>,
    units: AtomicU64,
    connections: AtomicU64,
    bytes: AtomicU64,
}

/// The most by which an attack that is behind its pace may catch up.
const ARREARS_SECONDS_MAX: f64 = 1.0;

impl AttackPace {
    /// `per_second` units a second for this long.
    pub fn new(per_second: f64, time: Duration) -> AttackPace {
        let begin = Instant::now();
        AttackPace {
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

    /// Waits until the attack's time is over.
    pub async fn over(&self) {
        tokio::time::sleep_until(self.end.into()).await;
    }

    /// Counts a connection.
    pub fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes sent.
    pub fn sent(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The results so far.
    pub fn done(&self, name: &str, unit: &str) -> AttackReport {
        let seconds = self.begin.elapsed().min(self.end - self.begin).as_secs_f64();
        AttackReport {
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

/// The results of an attack, as its program prints them: one line of JSON.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct AttackReport {
    pub attack: String,
    /// The unit that is counted.
    pub unit: String,
    pub asked_per_second: f64,
    pub reached_per_second: f64,
    pub connections: u64,
    pub bytes: u64,
    /// What the attack obtained that it must not have, if anything.
    pub breach: Option<String>,
}
