//! Hash maps and sets that behave the same in every run of a simulation.
//!
//! The standard library keys its default hasher with randomness of the operating system, so a simulation would depend
//! on more than its seed. The hasher here has one key per process. In production the hasher's key comes from the
//! operating system, so that clients cannot choose map keys that collide. In simulation the hasher's key is a constant.
//!
//! Rule: no behaviour may depend on the order of iteration. Sort, or use a `BTreeMap`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::OnceLock;

use foldhash::SharedSeed;

/// A hash map with [`Hashing`]. Construct with `Map::default()`, or `Map::with_capacity_and_hasher`.
pub type Map<K, V> = HashMap<K, V, Hashing>;
/// A hash set with [`Hashing`]. Construct with `Set::default()`, or `Set::with_capacity_and_hasher`.
pub type Set<K> = HashSet<K, Hashing>;

/// Builds hashers from one key: the process's in production, a constant in simulation.
#[derive(Clone, Copy)]
pub struct Hashing {
    seed: u64,
    shared: &'static SharedSeed,
}

impl Hashing {
    /// Hashing with a given key, for tests and for structures whose layout must repeat.
    pub const fn with_seed(seed: u64) -> Hashing {
        Hashing { seed, shared: SharedSeed::global_fixed() }
    }
}

impl Default for Hashing {
    fn default() -> Self {
        static PROCESS: OnceLock<(u64, SharedSeed)> = OnceLock::new();
        if crate::rt::is_simulation() {
            Hashing::with_seed(0x6865_6464_6c65)
        } else {
            let (seed, shared) =
                PROCESS.get_or_init(|| (crate::rt::random_u64(), SharedSeed::from_u64(crate::rt::random_u64())));
            Hashing { seed: *seed, shared }
        }
    }
}

impl BuildHasher for Hashing {
    type Hasher = foldhash::fast::FoldHasher<'static>;

    fn build_hasher(&self) -> Self::Hasher {
        foldhash::fast::FoldHasher::with_seed(self.seed, self.shared)
    }
}

impl fmt::Debug for Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hashing") // The key is a secret of the process.
    }
}
