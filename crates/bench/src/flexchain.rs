//! Measures FlexChain's figures (sections 6.2 to 6.4 of the paper) on Heddle. Each figure varies one thing and compares
//! the result with a baseline, which is measured in the same run.
//!
//! | figure | what it varies | baseline | module |
//! |---|---|---|---|
//! | 5 (b) | size of remote memory, with slow storage | all data in remote memory | [`fig5b`] |
//! | 7 | the load | the monolithic form | [`fig7`], for parts of `heddle bench flexchain-fig7`; networks are its own |
//! | 8 (a) | local caches and skew | the monolithic form's cache of the same size | [`fig8a`], for `flexchain-fig8a --only state` |
//! | 8 (b) | the memory node's processor | a memory node that is asked for addresses and buffers | [`fig8b`] |
//!
//! Data is scaled to one small machine. Sizes that the paper gives relative to the data keep their proportion.

pub mod delayed;
pub mod fig5b;
pub mod fig7;
pub mod fig8a;
pub mod fig8b;
pub mod limiter;
pub mod memory_process;

use base::rt::CancellationToken;

use measurement::error::Error;
use measurement::random::Random;

/// Bytes of a record's value, as in the paper's YCSB.
pub const VALUE_BYTES: usize = 10_240;

fn check(stop: &CancellationToken) -> Result<(), Error> {
    if stop.is_cancelled() { Err(Error::Interrupted) } else { Ok(()) }
}

/// The numbers below `count` in a random order: the popularity of keys must be independent of the order of loading.
fn shuffled(count: usize, random: &mut Random) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        numbers.swap(last, random.below(last as u64 + 1) as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffled_numbers_are_all_there_in_other_positions() {
        let numbers = shuffled(1_000, &mut Random::new(1));
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1_000).collect::<Vec<_>>());
        assert!(numbers.iter().enumerate().filter(|(place, number)| place == *number).count() < 20);
    }
}
