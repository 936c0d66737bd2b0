//! Names and numbers of the ledger.
//!
//! Names are shared strings: a clone raises a reference count. Numbers are newtypes, so that an index, a count and a
//! block number are never mistaken for one another. All of them order and hash by value.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes any string; validity is checked where the name enters the system.
            pub fn new(name: impl Into<Arc<str>>) -> Self {
                $name(name.into())
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), &*self.0)
            }
        }

        impl std::ops::Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                self.0.as_bytes()
            }
        }

        // Sound because the derived `Hash`, `Eq` and `Ord` of the newtype are those of `str`.
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                $name(name.into())
            }
        }

        impl From<String> for $name {
            fn from(name: String) -> Self {
                $name(name.into())
            }
        }

        impl From<Arc<str>> for $name {
            fn from(name: Arc<str>) -> Self {
                $name(name)
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                &*self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                &*self.0 == *other
            }
        }
    };
}

name! {
    /// A channel: one ledger.
    ChannelId
}
name! {
    /// A membership service provider: one organisation, as Fabric names it.
    MspId
}
name! {
    /// A transaction: the hexadecimal SHA-256 of nonce and creator, as Fabric computes it.
    TxId
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl $name {
            /// The plain number.
            pub const fn get(self) -> $inner {
                self.0
            }

            /// The number after this one. Panics on overflow, which no counter of ours reaches.
            #[must_use]
            pub const fn next(self) -> Self {
                $name(self.0.checked_add(1).expect("counters never reach their type's maximum"))
            }

            /// The number before this one, if any.
            pub const fn previous(self) -> Option<Self> {
                match self.0.checked_sub(1) {
                    Some(n) => Some($name(n)),
                    None => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl From<$inner> for $name {
            fn from(n: $inner) -> Self {
                $name(n)
            }
        }

        impl From<$name> for $inner {
            fn from(n: $name) -> $inner {
                n.0
            }
        }
    };
}

number! {
    /// The number of a block in its channel; the genesis block is 0.
    BlockNumber(u64)
}
number! {
    /// The position of a transaction in its block, from 0.
    TxIndex(u32)
}
number! {
    /// The number of one term of a coordinator, or of one primary's time in office; a newer one has a larger number.
    Epoch(u64)
}

/// The number of one coordinator's or leader's time in office. Terms only grow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Term(pub u64);

/// Bits of a term that count the terms within one era: see [`Term::next_generation`].
const GENERATION_BITS: u32 = 32;

impl Term {
    /// The era of the term. Each reformatting of a group starts the next era.
    pub const fn generation(self) -> u64 {
        self.0 >> GENERATION_BITS
    }

    /// The first term of the next era; `None` after the last era. Reformatting a group continues from here, because a node
    /// that did not answer may have used higher terms. Elections raise the term one by one, and have 2^32 terms in an era.
    pub const fn next_generation(self) -> Option<Term> {
        let era = self.generation() + 1;
        match era >> (u64::BITS - GENERATION_BITS) {
            0 => Some(Term(era << GENERATION_BITS)),
            _ => None,
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation() {
            0 => write!(f, "{}", self.0),
            era => write!(f, "{era}.{}", self.0 & ((1 << GENERATION_BITS) - 1)),
        }
    }
}

/// The version of a key: the transaction that wrote it. Orders as the ledger does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Version {
    /// Number of the block.
    pub block: u64,
    /// Position of the transaction in the block.
    pub tx: u32,
}

impl Version {
    /// The version written by transaction `tx` of block `block`.
    pub const fn new(block: u64, tx: u32) -> Version {
        Version { block, tx }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.block, self.tx)
    }
}

const _: () = assert!(size_of::<ChannelId>() == 16 && size_of::<Version>() == 16);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Map;

    #[test]
    fn names_are_found_by_their_text() {
        let mut heights = Map::default();
        heights.insert(ChannelId::from("trade"), BlockNumber(7));
        assert_eq!(heights.get("trade"), Some(&BlockNumber(7)));
        assert_eq!(ChannelId::new("trade"), "trade");
        assert_eq!(format!("{} {:?}", MspId::from("Org1MSP"), TxId::from("ab")), "Org1MSP TxId(\"ab\")");
    }

    #[test]
    fn numbers_and_versions_order_as_the_ledger_does() {
        assert_eq!(BlockNumber(9).next(), BlockNumber(10));
        assert_eq!((Epoch(1).previous(), Epoch(0).previous()), (Some(Epoch(0)), None));
        assert!(Version::new(1, 9) < Version::new(2, 0) && Version::new(2, 0) < Version::new(2, 1));
        assert_eq!(Version::new(2, 1).to_string(), "2:1");
    }
}
