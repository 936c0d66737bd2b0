//! The curve arithmetic of a verification, on eight SIMD lanes: it computes R = u₁·G + u₂·Q from tables, and compares
//! the x-coordinate of R with r.
//!
//! 1. The terms of a sum are entries of tables: one entry per window of the key's table, and one per window of the
//!    generator's.
//! 2. [`Hot`] is for keys with a table. It gives each signature 1, 2, 4 or 8 lanes. Each lane adds up a part of the
//!    terms; then the sums of a signature's lanes are added up in a tree. One lane per signature takes the least work
//!    for each signature; eight lanes for one signature give the shortest latency.
//! 3. [`Cold`] is for keys without a table. It builds tables of one window only, which are cheap enough to be used
//!    once. In return, the key's part of the sum needs five doublings between consecutive windows.
//! 4. Let X/ZZ be the x-coordinate of R. ZZ is zero if an addition met a case that its formula does not cover: two
//!    equal points, or two opposite ones. The verdict is then `Unsure`. Otherwise the signature is valid if r·ZZ = X or
//!    (r + n)·ZZ = X. The second equation counts only if r + n is below p.

use crate::digits::{self, Digit, Digits, Window};
use crate::field::{Field, Loose, Tight};
use crate::lanes::{LANES, Lanes, Operation, Words};
use crate::points::{Affine, Sum};
use crate::scalars::PreparedSignature;

/// Rows that are read ahead of their use.
const AHEAD: usize = 8;

/// Bits of a window where a key has no table.
pub(crate) const COLD_WINDOW: u32 = 5;

/// One signature and its key's table.
#[derive(Clone, Copy)]
pub(crate) struct VerifyJob<'a> {
    pub(crate) prepared: &'a PreparedSignature,
    pub(crate) table: &'a [Words],
}

/// The entries that the lanes add in one step.
#[derive(Clone, Copy)]
struct Row<'a> {
    entries: [&'a Words; LANES],
    /// Lanes that subtract their entry.
    negative: u8,
    /// Lanes that have an entry.
    present: u8,
}

/// Adds up signatures whose keys have tables. Bit i of the output: the signature of job i is valid.
pub(crate) struct Hot<'a> {
    /// At least one job, and at most eight divided by the lanes of each.
    pub(crate) jobs: &'a [VerifyJob<'a>],
    /// Lanes for each signature: 1, 2, 4 or 8.
    pub(crate) width: usize,
    pub(crate) base: &'a [Words],
    pub(crate) base_window: u32,
    pub(crate) key_window: u32,
}

impl<'a> Row<'a> {
    /// A row without entries; `any` fills the places.
    #[inline(always)]
    fn new(any: &'a Words) -> Self {
        Row { entries: [any; LANES], negative: 0, present: 0 }
    }

    /// Gives a lane an entry of its table's part for one window.
    #[inline(always)]
    fn set(&mut self, lane: usize, part: &'a [Words], digits: &Digits, window: &Window) {
        let Digit { entry, negative } = digits.digit(window);
        self.entries[lane] = &part[entry];
        self.negative |= u8::from(negative) << lane;
        self.present |= 1 << lane;
    }

    #[inline(always)]
    fn prefetch<L: Lanes>(&self, lanes: L) {
        for entry in self.entries {
            lanes.prefetch(entry);
        }
    }
}

/// The part of a table for window `i`.
#[inline(always)]
fn part(table: &[Words], window: u32, i: usize) -> &[Words] {
    let entries = digits::entries(window);
    &table[i << (window - 1)..][..entries]
}

/// The jobs of eight lanes, `width` lanes each. Lanes without a job repeat the first.
#[inline(always)]
fn jobs_of_lanes<'a>(jobs: &[VerifyJob<'a>], width: usize) -> [VerifyJob<'a>; LANES] {
    let mut of_lanes = [jobs[0]; LANES];
    for (lane, job) in of_lanes.iter_mut().enumerate() {
        *job = *jobs.get(lane / width).unwrap_or(&jobs[0]);
    }
    of_lanes
}

impl<'a> Hot<'a> {
    #[inline(always)]
    fn row(&self, jobs: &[VerifyJob<'a>; LANES], row: usize) -> Row<'a> {
        let key_terms = digits::windows(self.key_window);
        let mut filled = Row::new(&self.base[0]);
        if self.width == 1 {
            // All lanes are at the same window.
            if row < key_terms {
                let window = Window::new(self.key_window, row);
                for (lane, job) in jobs.iter().enumerate() {
                    filled.set(lane, part(job.table, self.key_window, row), &job.prepared.key, &window);
                }
            } else {
                let row = row.wrapping_sub(key_terms);
                let window = Window::new(self.base_window, row);
                let part = part(self.base, self.base_window, row);
                for (lane, job) in jobs.iter().enumerate() {
                    filled.set(lane, part, &job.prepared.base, &window);
                }
            }
            return filled;
        }
        let terms = key_terms.wrapping_add(digits::windows(self.base_window));
        for (lane, job) in jobs.iter().enumerate() {
            let term = row.wrapping_mul(self.width) | (lane & self.width.wrapping_sub(1));
            if term < key_terms {
                let window = Window::new(self.key_window, term);
                filled.set(lane, part(job.table, self.key_window, term), &job.prepared.key, &window);
            } else if term < terms {
                let term = term.wrapping_sub(key_terms);
                let window = Window::new(self.base_window, term);
                filled.set(lane, part(self.base, self.base_window, term), &job.prepared.base, &window);
            }
        }
        filled
    }

    fn rows(&self) -> usize {
        let terms = digits::windows(self.key_window) + digits::windows(self.base_window);
        terms.div_ceil(self.width)
    }
}

impl Operation for Hot<'_> {
    type Output = u8;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> u8 {
        let f = Field::new(lanes);
        let rows = self.rows();
        let jobs = jobs_of_lanes(self.jobs, self.width);
        let first = self.row(&jobs, 0);
        let mut ahead = [first; AHEAD];
        first.prefetch(lanes);
        for (i, slot) in ahead.iter_mut().enumerate() {
            *slot = self.row(&jobs, (i + 1).min(rows - 1));
            slot.prefetch(lanes);
        }
        // Every lane has a first term: there are more terms than lanes.
        let mut sum = Affine::load(&f, first.entries).to_sum(&f, first.negative);
        for i in 1..rows {
            let slot = &mut ahead[(i - 1) % AHEAD];
            let row = *slot;
            if i + AHEAD < rows {
                *slot = self.row(&jobs, i + AHEAD);
                slot.prefetch(lanes);
            }
            let next = sum.plus_affine(&f, &Affine::load(&f, row.entries), row.negative);
            sum = if row.present == u8::MAX { next } else { sum.select(&f, row.present, &next) };
        }
        let mut distance = 1;
        while distance < self.width {
            let other = match distance {
                1 => sum.exchange::<1>(&f),
                2 => sum.exchange::<2>(&f),
                _ => sum.exchange::<4>(&f),
            };
            sum = sum.plus(&f, &other);
            distance *= 2;
        }
        let lanes_valid = check(&f, &sum, &jobs);
        let mut valid = 0;
        for job in 0..self.jobs.len() {
            valid |= (lanes_valid >> (job * self.width) & 1) << job;
        }
        valid
    }
}

/// The lanes whose sum is finite, unexceptional, and has one of the candidates as x-coordinate.
#[inline(always)]
fn check<L: Lanes>(f: &Field<L>, sum: &Sum<L>, jobs: &[VerifyJob; LANES]) -> u8 {
    let mut candidates = [Words::default(); LANES];
    for (words, job) in candidates.iter_mut().zip(jobs) {
        let [a, b] = job.prepared.candidates;
        *words = Words([a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]);
    }
    let [a, b, c, d, e, g, h, i] = &candidates;
    let (r, r_and_n) = f.load_pairs([a, b, c, d, e, g, h, i]);
    // A number times a Montgomery form is the product as a number; so is a Montgomery form times one.
    let x = f.product(&sum.x, &f.splat(&[1, 0, 0, 0]));
    (is_x(f, &r, sum, &x) | is_x(f, &r_and_n, sum, &x)) & !f.zeroes(&sum.zz)
}

/// The lanes in which the candidate times ZZ is the number x.
#[inline(always)]
fn is_x<L: Lanes>(f: &Field<L>, candidate: &Tight<L>, sum: &Sum<L>, x: &Loose<L>) -> u8 {
    f.zeroes(&f.reduce(&f.difference(&f.product(candidate, &sum.zz), x)))
}

/// Adds up signatures whose keys have tables of one window only. Bit i of the output: the signature of job i is valid.
pub(crate) struct Cold<'a> {
    /// One to eight jobs.
    pub(crate) jobs: &'a [VerifyJob<'a>],
    pub(crate) base: &'a [Words],
    pub(crate) base_window: u32,
}

impl<'a> Cold<'a> {
    #[inline(always)]
    fn key_row(&self, jobs: &[VerifyJob<'a>; LANES], i: usize) -> Row<'a> {
        let mut row = Row::new(&self.base[0]);
        let window = Window::new(COLD_WINDOW, i);
        for (lane, job) in jobs.iter().enumerate() {
            row.set(lane, job.table, &job.prepared.key, &window);
        }
        row
    }

    #[inline(always)]
    fn base_row(&self, jobs: &[VerifyJob<'a>; LANES], i: usize) -> Row<'a> {
        let mut row = Row::new(&self.base[0]);
        let window = Window::new(self.base_window, i);
        let part = part(self.base, self.base_window, i);
        for (lane, job) in jobs.iter().enumerate() {
            row.set(lane, part, &job.prepared.base, &window);
        }
        row
    }
}

impl Operation for Cold<'_> {
    type Output = u8;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> u8 {
        let f = Field::new(lanes);
        let jobs = jobs_of_lanes(self.jobs, 1);
        let top = digits::windows(COLD_WINDOW) - 1;
        let row = self.key_row(&jobs, top);
        let mut sum = Affine::load(&f, row.entries).to_jacobian(&f, row.negative);
        for window in (0..top).rev() {
            let row = self.key_row(&jobs, window);
            for _ in 0..COLD_WINDOW {
                sum = sum.doubled(&f);
            }
            sum = sum.plus_affine(&f, &Affine::load(&f, row.entries), row.negative);
        }
        let mut sum = sum.to_sum(&f);
        let windows = digits::windows(self.base_window);
        let mut next = self.base_row(&jobs, 0);
        for window in 0..windows {
            let row = next;
            if window + 1 < windows {
                next = self.base_row(&jobs, window + 1);
                next.prefetch(lanes);
            }
            sum = sum.plus_affine(&f, &Affine::load(&f, row.entries), row.negative);
        }
        let lanes_valid = check(&f, &sum, &jobs);
        lanes_valid & (u8::MAX >> (LANES - self.jobs.len()))
    }
}
