//! A cache of verdicts on signatures, for simulations only.
//!
//! A simulated network checks the same few thousand signatures again and again: each peer checks them, and each seed
//! runs twice. Therefore each thread of a simulation caches up to [`VERDICTS_MAX`] verdicts; a full cache is emptied.
//! The key of a cached verdict is a hash of all its inputs (scheme, key, message, signature), so the content of the
//! cache cannot change a run. The cache covers only verifications by the library (aws-lc-rs). A verification with a
//! precomputed table of the key ([`crate::verifier`]) always runs. Outside simulations the cache is off.

use std::cell::RefCell;

use base::Map;

use crate::digest::{Hash, Sha256};

/// The number of verdicts that a thread caches; at that number the cache is emptied.
const VERDICTS_MAX: usize = 1 << 14;

/// The scheme of signatures over messages.
pub const SCHEME_MESSAGE: u8 = 0;
/// The first scheme of signatures in certificates; each algorithm has its own scheme.
pub const SCHEME_CERTIFICATE: u8 = 1;

thread_local! {
    static VERDICTS: RefCell<Map<Hash, bool>> = RefCell::new(Map::default());
}

/// The verdict of `check` on a signature; in a simulation it may be a cached verdict. Checks that may reach different
/// verdicts on the same bytes have different schemes.
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
