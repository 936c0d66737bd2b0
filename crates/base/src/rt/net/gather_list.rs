//! A message in several parts that need not be copied together, such as a header and a long body.

use std::fmt;
use std::slice;

use bytes::Bytes;

/// Bytes in parts, sent one after another as one message, so that a long body need not be copied to put a header before it.
#[derive(Clone)]
pub struct GatherList(GatherListInner);

#[derive(Clone)]
enum GatherListInner {
    /// Without a list.
    One(Bytes),
    Many(Vec<Bytes>),
}

impl GatherList {
    /// Bytes of all parts.
    pub fn len(&self) -> usize {
        self.as_slice().iter().map(Bytes::len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first byte.
    pub fn first(&self) -> Option<u8> {
        self.as_slice().iter().find_map(|part| part.first().copied())
    }

    /// The parts; some may be empty.
    pub fn as_slice(&self) -> &[Bytes] {
        match &self.0 {
            GatherListInner::One(one) => slice::from_ref(one),
            GatherListInner::Many(parts) => parts,
        }
    }

    /// Splits off the first `bytes` bytes; both halves share the memory.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn split_to(&mut self, mut bytes: usize) -> GatherList {
        let parts = match &mut self.0 {
            GatherListInner::One(one) => return one.split_to(bytes).into(),
            GatherListInner::Many(parts) => parts,
        };
        let mut whole = 0;
        while let Some(left) = parts.get(whole).and_then(|part| bytes.checked_sub(part.len())) {
            (whole, bytes) = (whole + 1, left);
        }
        if whole == 0 && bytes > 0 {
            return parts.first_mut().expect("there are as many bytes").split_to(bytes).into();
        }
        let mut taken: Vec<Bytes> = parts.drain(..whole).collect();
        if bytes > 0 {
            taken.push(parts.first_mut().expect("there are as many bytes").split_to(bytes));
        }
        taken.into()
    }

    /// All parts as one piece; a single part is not copied.
    pub fn concat(self) -> Bytes {
        match self.0 {
            GatherListInner::One(one) => one,
            GatherListInner::Many(mut parts) if parts.len() == 1 => parts.remove(0),
            GatherListInner::Many(parts) => parts.concat().into(),
        }
    }
}

impl Default for GatherList {
    fn default() -> GatherList {
        Bytes::new().into()
    }
}

impl From<Bytes> for GatherList {
    fn from(bytes: Bytes) -> GatherList {
        GatherList(GatherListInner::One(bytes))
    }
}

impl From<Vec<u8>> for GatherList {
    fn from(bytes: Vec<u8>) -> GatherList {
        Bytes::from(bytes).into()
    }
}

impl From<Vec<Bytes>> for GatherList {
    fn from(parts: Vec<Bytes>) -> GatherList {
        GatherList(GatherListInner::Many(parts))
    }
}

/// Compares the bytes, however they are divided.
impl PartialEq for GatherList {
    fn eq(&self, other: &GatherList) -> bool {
        self.len() == other.len() && self.as_slice().iter().flatten().eq(other.as_slice().iter().flatten())
    }
}

impl Eq for GatherList {}

impl fmt::Debug for GatherList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({} bytes)", self.len())
    }
}
