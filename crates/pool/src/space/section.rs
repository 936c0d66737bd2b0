//! Sections, and their losses.

/// The number of a section, never reused during a space's existence; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SectionId(pub u32);

/// A section of the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// The section's number.
    pub id: SectionId,
    /// The first address.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Lost sections, and why they were lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SectionLoss {
    /// The sections, in order. Empty when a space without sections was fenced.
    pub sections: Vec<SectionId>,
    /// The donor that granted them.
    pub donor: String,
    /// The reason of the loss.
    pub reason: LossReason,
}

/// Why sections were lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossReason {
    /// The connection to the donor ended.
    Disconnected,
    /// The donor no longer knows the capabilities.
    Revoked,
    /// Another process has taken over this owner's memory: this space has ended.
    Fenced,
}
