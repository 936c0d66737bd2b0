//! What the processors of a machine can do. A program chooses instructions by the processor that it has begun on, and keeps the choice in its
//! variables: an executor whose processor lacks one of them would end its functions by SIGILL, or worse, have them compute otherwise.

use std::fmt;

/// The instruction-set extensions of a machine, as far as programs choose by them.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessorFeatures(u64);

/// Declares the extensions, each with its bit: that of its place in the list, which therefore only grows.
macro_rules! extensions {
    ($($name:tt)+) => {
        /// The names, by bit.
        const NAMES: &[&str] = &[$($name),+];

        fn detected() -> Vec<bool> {
            vec![$(std::arch::is_x86_feature_detected!($name)),+]
        }
    };
}

extensions! {
    "fxsr" "mmx" "sse" "sse2" "sse3" "ssse3" "sse4.1" "sse4.2" "sse4a" "popcnt" "lzcnt" "bmi1" "bmi2" "tbm" "movbe" "cmpxchg16b" "adx"
    "aes" "pclmulqdq" "sha" "rdrand" "rdseed" "f16c" "fma" "avx" "avx2" "avxvnni" "gfni" "vaes" "vpclmulqdq" "rtm"
    "xsave" "xsaveopt" "xsavec" "xsaves"
    "avx512f" "avx512cd" "avx512bw" "avx512dq" "avx512vl" "avx512ifma" "avx512vbmi" "avx512vbmi2" "avx512vnni" "avx512bitalg"
    "avx512vpopcntdq" "avx512bf16" "avx512fp16" "avx512vp2intersect" "avxifma" "avxneconvert" "avxvnniint8" "avxvnniint16"
    "sha512" "sm3" "sm4" "ermsb"
}

const _: () = assert!(NAMES.len() <= u64::BITS as usize, "each has a bit");

impl ProcessorFeatures {
    /// Those of this machine.
    pub fn of_this_machine() -> ProcessorFeatures {
        let bits = detected().into_iter().enumerate().filter(|(_, is_there)| *is_there);
        ProcessorFeatures(bits.fold(0, |all, (bit, _)| all | 1 << bit))
    }

    /// As a number, for a message.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// From a number of a message. A later release may know extensions that this one does not.
    pub fn from_bits(bits: u64) -> ProcessorFeatures {
        ProcessorFeatures(bits)
    }

    /// What a program of a machine with these may use, and one with `other` lacks.
    pub fn lacking_in(self, other: ProcessorFeatures) -> ProcessorFeatures {
        ProcessorFeatures(self.0 & !other.0)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for ProcessorFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = (0..u64::BITS).filter(|bit| self.0 >> bit & 1 == 1);
        for (number, bit) in set.enumerate() {
            let separator = if number > 0 { ", " } else { "" };
            match NAMES.get(bit as usize) {
                Some(name) => write!(f, "{separator}{name}")?,
                None => write!(f, "{separator}extension {bit} of a later release")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ProcessorFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessorFeatures({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_lacks_is_named() {
        let own = ProcessorFeatures::of_this_machine();
        assert!(own.lacking_in(own).is_empty());
        assert!(own.to_string().contains("sse2"), "each processor of this architecture has it: {own}");
        let less = ProcessorFeatures::from_bits(own.bits() & !(1 << 3));
        assert_eq!(own.lacking_in(less).to_string(), "sse2");
        assert!(less.lacking_in(own).is_empty(), "more is no harm");
        let later = ProcessorFeatures::from_bits(1 << 63 | 1 << 3);
        assert_eq!(later.to_string(), "sse2, extension 63 of a later release");
    }
}
