//! Verdicts on signatures that a simulation remembers.
//!
//! A simulated network checks the same few thousand signatures again and again: each peer for itself, and each seed twice.
//! In a simulation, and nowhere else, a thread keeps the verdicts on the last [`VERDICTS_MAX`] or so. A verdict is found
//! under a hash of everything that it follows from (scheme, key, message and signature), so a run is the same whatever is
//! remembered. Verdicts of tables are not kept. Outside of simulations nothing is: every check is made again.

use std::cell::RefCell;

use base::Map;

use crate::digest::{Hash, Sha256};

/// Verdicts that are kept; then all are forgotten and remembering begins anew.
const VERDICTS_MAX: usize = 1 << 14;

/// Checks that may say different things of the same bytes.
pub const SCHEME_MESSAGE: u8 = 0;
/// The first of those of certificates, by their algorithm.
pub const SCHEME_CERTIFICATE: u8 = 1;

thread_local! {
    static VERDICTS: RefCell<Map<Hash, bool>> = RefCell::new(Map::default());
}

/// What `check` says about a signature; in a simulation perhaps what it said before. Checks that may say different things
/// of the same bytes have different schemes.
pub fn verdict(scheme: u8, key: &[u8], message: &[&[u8]], signature: &[u8], check: impl FnOnce() -> bool) -> bool {
    if !base::rt::is_simulation() {
        return check();
    }
    let mut hasher = Sha256::new();
    hasher.update(&[scheme]);
    for part in [key, signature] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    // The message is all of its parts end to end, and stands last.
    message.iter().for_each(|part| hasher.update(part));
    let place = hasher.finish();
    if let Some(verdict) = VERDICTS.with_borrow(|verdicts| verdicts.get(&place).copied()) {
        return verdict;
    }
    let verdict = check();
    VERDICTS.with_borrow_mut(|verdicts| {
        if verdicts.len() >= VERDICTS_MAX {
            verdicts.clear();
        }
        verdicts.insert(place, verdict);
    });
    verdict
}

#[cfg(test)]
mod tests {
    use base::rt::simulation::Simulation;

    use super::*;

    #[test]
    fn every_part_of_a_signature_decides_and_production_remembers_nothing() {
        /// Purpose, key, message in parts, signature.
        type Case = (u8, &'static [u8], &'static [&'static [u8]], &'static [u8]);
        const SIGNATURES: [Case; 6] = [
            (0, b"key", &[b"message"], b"signature"),
            (0, b"keys", &[b"message"], b"ignature"),
            (0, b"key", &[b"messages"], b"signature"),
            (0, b"key", &[b"message"], b"signatur"),
            (0, b"key", &[b"emessage"], b"signatur"),
            (1, b"key", &[b"message"], b"signature"),
        ];
        let asked = |verdict_of: fn(usize) -> bool| {
            let verdicts = SIGNATURES.iter().enumerate();
            verdicts.map(|(n, (scheme, k, m, s))| verdict(*scheme, k, m, s, || verdict_of(n))).collect::<Vec<_>>()
        };
        let odd: fn(usize) -> bool = |number| number % 2 == 1;
        let expected: Vec<bool> = (0..SIGNATURES.len()).map(odd).collect();
        assert_eq!(asked(odd), expected);
        assert_eq!(asked(|_| true), [true; 6]);
        let run = Simulation::new(1).run(move |_| async move {
            let first = asked(odd);
            (
                first,
                asked(|_| panic!("it is remembered")),
                verdict(0, b"key", &[b"mess", b"age"], b"signature", || true),
            )
        });
        assert_eq!(run.expect("the run succeeds").value, (expected.clone(), expected, false));
    }
}
