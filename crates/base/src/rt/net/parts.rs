//! A message in parts.

use std::fmt;
use std::slice;

use bytes::Bytes;

/// Bytes in parts, sent one after another as one message: nobody has to copy a long one to put something before it.
#[derive(Clone)]
pub struct Parts(Held);

#[derive(Clone)]
enum Held {
    /// Without a list of its own.
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Parts {
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
            Held::One(one) => slice::from_ref(one),
            Held::Many(parts) => parts,
        }
    }

    /// Takes the first bytes off; both share memory with what was there.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn split_to(&mut self, mut bytes: usize) -> Parts {
        let parts = match &mut self.0 {
            Held::One(one) => return one.split_to(bytes).into(),
            Held::Many(parts) => parts,
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

    /// All parts in one piece; a single one is not copied.
    pub fn concat(self) -> Bytes {
        match self.0 {
            Held::One(one) => one,
            Held::Many(mut parts) if parts.len() == 1 => parts.remove(0),
            Held::Many(parts) => parts.concat().into(),
        }
    }
}

impl Default for Parts {
    fn default() -> Parts {
        Bytes::new().into()
    }
}

impl From<Bytes> for Parts {
    fn from(bytes: Bytes) -> Parts {
        Parts(Held::One(bytes))
    }
}

impl From<Vec<u8>> for Parts {
    fn from(bytes: Vec<u8>) -> Parts {
        Bytes::from(bytes).into()
    }
}

impl From<Vec<Bytes>> for Parts {
    fn from(parts: Vec<Bytes>) -> Parts {
        Parts(Held::Many(parts))
    }
}

/// The same bytes, however they are divided.
impl PartialEq for Parts {
    fn eq(&self, other: &Parts) -> bool {
        self.len() == other.len() && self.as_slice().iter().flatten().eq(other.as_slice().iter().flatten())
    }
}

impl Eq for Parts {}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({} bytes)", self.len())
    }
}
