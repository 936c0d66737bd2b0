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
pub struct Parties(Option<Arc<NamedParties>>);

#[derive(Clone, PartialEq, Eq, Default)]
struct NamedParties {
    names: BTreeSet<String>,
    /// Parties that may come later, by how their names begin, and how many of them there may be.
    later: Option<(String, usize)>,
}

impl Parties {
    /// Every party that the transport admits.
    pub fn anyone() -> Parties {
        Parties(None)
    }

    /// These parties and no others.
    pub fn of<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Parties {
        let names = names.into_iter().map(Into::into).collect();
        Parties(Some(Arc::new(NamedParties { names, later: None })))
    }

    /// These parties, and up to `count` others whose names begin with `prefix`: the transport knows who may have such a
    /// name. Anyone stays anyone.
    #[must_use]
    pub fn and_later(self, prefix: &str, count: usize) -> Parties {
        let later = Some((prefix.to_owned(), count));
        Parties(self.0.map(|named| Arc::new(NamedParties { later, ..(*named).clone() })))
    }

    /// Whether a name is one of them.
    pub fn contains(&self, name: &str) -> bool {
        let is_later = |named: &NamedParties| {
            named
                .later
                .as_ref()
                .is_some_and(|(prefix, _)| name.strip_prefix(&**prefix).is_some_and(|rest| !rest.is_empty()))
        };
        self.0.as_ref().is_none_or(|named| named.names.contains(name) || is_later(named))
    }

    /// Whether the other end of a link is one of them.
    pub fn include(&self, link: &Link) -> bool {
        link.peer().is_none_or(|name| self.contains(name))
    }

    /// The number of parties, if they are named, with those that may come later.
    pub fn count(&self) -> Option<usize> {
        let later = |named: &NamedParties| named.later.as_ref().map_or(0, |(_, count)| *count);
        self.0.as_ref().map(|named| named.names.len() + later(named))
    }
}

impl fmt::Display for Parties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(named) = &self.0 else { return f.write_str("anyone") };
        for (index, name) in named.names.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{name}")?;
        }
        match &named.later {
            Some((prefix, _)) => write!(f, " and {prefix}…"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Parties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parties({self})")
    }
}
