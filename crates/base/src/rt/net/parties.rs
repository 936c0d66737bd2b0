//! The parties that may be at the other end of a link.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::Link;

/// The parties that one end of a link accepts at its other end, by the names that links prove: organisations where links run
/// over TLS, processes where they run within an organisation.
///
/// A link without a proven name is always accepted: it comes from this process, from a simulation, or over a transport that was
/// registered for a network on which all nodes are trusted.
///
/// ```
/// use base::rt::net::Parties;
///
/// let gateways = Parties::of(["gateway-org1"]);
/// assert!(gateways.contains("gateway-org1") && !gateways.contains("compute-org1"));
/// assert!(Parties::anyone().contains("gateway-org1"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Parties(Option<Arc<BTreeSet<String>>>);

impl Parties {
    /// Every party that the transport admits.
    pub fn anyone() -> Parties {
        Parties(None)
    }

    /// These parties and no others.
    pub fn of<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Parties {
        Parties(Some(Arc::new(names.into_iter().map(Into::into).collect())))
    }

    /// Whether a name is one of them.
    pub fn contains(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(name))
    }

    /// Whether the other end of a link is one of them.
    pub fn include(&self, link: &Link) -> bool {
        link.peer().is_none_or(|name| self.contains(name))
    }

    /// The number of parties, if they are named.
    pub fn count(&self) -> Option<usize> {
        self.0.as_ref().map(|names| names.len())
    }
}

impl fmt::Display for Parties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(names) = &self.0 else { return f.write_str("anyone") };
        for (index, name) in names.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{name}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Parties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parties({self})")
    }
}
