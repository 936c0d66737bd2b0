//! State keys, composite keys and key ranges.
//!
//! A key is any non-empty UTF-8 string. A **composite key** is U+0000, followed by an object type and attributes, each
//! with a U+0000 after it. The leading U+0000 keeps composite keys apart from **simple keys**, which do not start with
//! it. Ranges over simple keys never return composite keys, and ranges over composite keys never return simple keys.
//!
//! Only checked constructors make a [`KeyRange`], so that a stub need not check the range again.

use crate::StubError;

/// Starts a composite key and ends each of its parts.
pub const SEPARATOR: char = '\u{0}';

/// The greatest character: what a range over a composite prefix ends with. It may not be part of a composite key.
pub const GREATEST: char = '\u{10FFFF}';

/// The first key that is no composite key; stands for an open start.
const FIRST_SIMPLE: &str = "\u{1}";

/// A half-open range of keys in the order of their bytes: from `start`, up to but without `end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    start: String,
    end: String,
}

impl KeyRange {
    /// A range of simple keys. An empty `start` stands for the first simple key, an empty `end` for beyond the last one.
    ///
    /// # Errors
    /// `InvalidKey` when a bound starts with U+0000.
    pub fn simple(start: &str, end: &str) -> Result<Self, StubError> {
        for bound in [start, end] {
            if bound.starts_with(SEPARATOR) {
                return Err(StubError::InvalidKey(format!(
                    "a range of simple keys may not start with U+0000: {bound:?}"
                )));
            }
        }
        let start = if start.is_empty() { FIRST_SIMPLE } else { start };
        Ok(Self { start: start.to_owned(), end: end.to_owned() })
    }

    /// All simple keys.
    pub fn all() -> Self {
        Self { start: FIRST_SIMPLE.to_owned(), end: String::new() }
    }

    /// The composite keys of this object type whose attributes start with `attributes`, those alone included.
    ///
    /// # Errors
    /// Those of [`composite`].
    pub fn partial_composite(object_type: &str, attributes: &[&str]) -> Result<Self, StubError> {
        let start = composite(object_type, attributes)?;
        let mut end = start.clone();
        end.push(GREATEST);
        Ok(Self { start, end })
    }

    /// Any range, simple and composite keys alike: what a contract outside of this process asks for, whose library has
    /// separated the two. An empty `start` stands for the first key of all, an empty `end` for beyond the last one.
    pub fn between(start: &str, end: &str) -> Self {
        let start = if start.is_empty() { "\u{0}" } else { start };
        Self { start: start.to_owned(), end: end.to_owned() }
    }

    /// The first key that may be in the range; never empty.
    pub fn start(&self) -> &str {
        &self.start
    }

    /// The first key beyond the range; empty when the range has no end.
    pub fn end(&self) -> &str {
        &self.end
    }

    /// Whether `key` is in the range.
    pub fn contains(&self, key: &str) -> bool {
        key >= self.start.as_str() && (self.end.is_empty() || key < self.end.as_str())
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        !self.end.is_empty() && self.end <= self.start
    }
}

/// Refuses what no ledger takes as a key.
///
/// # Errors
/// `InvalidKey` for the empty key.
pub fn check(key: &str) -> Result<(), StubError> {
    if key.is_empty() { Err(StubError::InvalidKey("a key must not be empty".to_owned())) } else { Ok(()) }
}

/// Refuses what is no simple key: the empty key, and composite keys. For contracts that take keys from their clients; a
/// stub takes both kinds.
///
/// # Errors
/// `InvalidKey`.
pub fn check_simple(key: &str) -> Result<(), StubError> {
    check(key)?;
    if key.starts_with(SEPARATOR) {
        return Err(StubError::InvalidKey("a simple key must not start with U+0000".to_owned()));
    }
    Ok(())
}

/// The composite key of an object type and its attributes.
///
/// # Errors
/// `InvalidKey` when the object type is empty, or a part has U+0000 or U+10FFFF in it.
pub fn composite(object_type: &str, attributes: &[&str]) -> Result<String, StubError> {
    if object_type.is_empty() {
        return Err(StubError::InvalidKey("the object type of a composite key must not be empty".to_owned()));
    }
    let length = 2 + object_type.len() + attributes.iter().map(|attribute| attribute.len() + 1).sum::<usize>();
    let mut key = String::with_capacity(length);
    key.push(SEPARATOR);
    for part in std::iter::once(&object_type).chain(attributes) {
        if let Some(bad) = part.chars().find(|c| matches!(*c, SEPARATOR | GREATEST)) {
            return Err(StubError::InvalidKey(format!(
                "a part of a composite key may not contain U+{:04X}: {part:?}",
                u32::from(bad)
            )));
        }
        key.push_str(part);
        key.push(SEPARATOR);
    }
    debug_assert_eq!(key.len(), length);
    Ok(key)
}

/// The object type and attributes of a composite key: the inverse of [`composite`].
///
/// # Errors
/// `InvalidKey` when `key` is no composite key.
pub fn split_composite(key: &str) -> Result<(&str, Vec<&str>), StubError> {
    let bad = || StubError::InvalidKey(format!("not a composite key: {key:?}"));
    let parts = key.strip_prefix(SEPARATOR).and_then(|rest| rest.strip_suffix(SEPARATOR)).ok_or_else(bad)?;
    let mut parts = parts.split(SEPARATOR);
    match parts.next() {
        Some(object_type) if !object_type.is_empty() => Ok((object_type, parts.collect())),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn composite_key_has_fabrics_bytes() {
        assert_eq!(composite("owner~id", &["Tom", "asset1"]).expect("valid"), "\0owner~id\0Tom\0asset1\0");
        assert_eq!(composite("t", &[]).expect("valid"), "\0t\0");
        assert_eq!(composite("t", &[""]).expect("valid"), "\0t\0\0");
    }

    #[test]
    fn composite_parts_may_not_hold_the_separators() {
        for (object_type, attributes) in
            [("", &["a"][..]), ("a\0b", &[]), ("a", &["x\u{10FFFF}"]), ("a", &["fine", "\0"])]
        {
            let refused = composite(object_type, attributes);
            assert!(matches!(refused, Err(StubError::InvalidKey(_))), "{object_type:?} {attributes:?}");
        }
    }

    #[test]
    fn only_composite_keys_can_be_split() {
        for bad in ["", "asset1", "\0", "\0\0", "\0t", "t\0"] {
            assert!(matches!(split_composite(bad), Err(StubError::InvalidKey(_))), "{bad:?}");
        }
    }

    #[test]
    fn simple_ranges_leave_composite_keys_out() {
        let all = KeyRange::simple("", "").expect("valid");
        assert_eq!(all, KeyRange::all());
        assert!(all.contains("a") && all.contains("\u{1}") && all.contains("\u{10FFFF}x"));
        assert!(!all.contains("\0t\0a\0"));
        assert!(matches!(KeyRange::simple("\0t\0", ""), Err(StubError::InvalidKey(_))));
        assert!(matches!(KeyRange::simple("", "\0"), Err(StubError::InvalidKey(_))));
    }

    #[test]
    fn ranges_are_half_open() {
        let range = KeyRange::simple("b", "d").expect("valid");
        let inside: Vec<&str> =
            ["a", "b", "bb", "c", "d", "da"].into_iter().filter(|key| range.contains(key)).collect();
        assert_eq!(inside, ["b", "bb", "c"]);
        assert!(KeyRange::simple("d", "b").expect("valid").is_empty());
        assert!(!range.is_empty());
    }

    #[test]
    fn empty_keys_are_refused() {
        assert!(check("").is_err());
        check("a").expect("valid");
        check("\0t\0").expect("composite keys are stored like any other");
        check_simple("a").expect("valid");
        assert!(check_simple("").is_err() && check_simple("\0t\0").is_err());
    }

    proptest! {
        #[test]
        fn composite_keys_round_trip(object_type in "[^\0\u{10FFFF}]{1,8}", attributes in prop::collection::vec("[^\0\u{10FFFF}]{0,8}", 0..5)) {
            let attributes: Vec<&str> = attributes.iter().map(String::as_str).collect();
            let key = composite(&object_type, &attributes).expect("no separators in it");
            let (type_back, attributes_back) = split_composite(&key).expect("just made");
            prop_assert_eq!(type_back, object_type.as_str());
            prop_assert_eq!(attributes_back, attributes);
        }

        #[test]
        fn partial_ranges_hold_exactly_the_longer_keys(
            prefix in prop::collection::vec("[ab]{0,2}", 0..3),
            other in prop::collection::vec("[ab]{0,2}", 0..4),
        ) {
            let prefix: Vec<&str> = prefix.iter().map(String::as_str).collect();
            let other: Vec<&str> = other.iter().map(String::as_str).collect();
            let range = KeyRange::partial_composite("t", &prefix).expect("valid");
            let key = composite("t", &other).expect("valid");
            prop_assert_eq!(range.contains(&key), other.starts_with(&prefix));
        }

        #[test]
        fn splitting_never_panics(key in any::<String>()) {
            let _ = split_composite(&key);
        }
    }
}
