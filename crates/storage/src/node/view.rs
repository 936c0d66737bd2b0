//! The view of a channel: which storage nodes have a copy of it, and which of these copies are complete.
//!
//! A storage node keeps the newest view that it was given beside the channel's epoch, in the [epoch file](super::epoch), and
//! decides nothing: the layer above, the crate `storage_copies`, says what views mean and when they change.
//! View 0 has no copies: the channel lies on this node alone, and its epochs are begun as ever.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, Epoch};
use wire::{Malformed, Reader, Writer};

use crate::blocks::{ChainTip, NO_PREVIOUS};

/// Copies of a channel: two, and a third one while one of them is replaced.
pub const COPIES_MAX: usize = 3;
/// Bytes of a copy's name.
pub const COPY_NAME_BYTES_MAX: usize = 64;
/// What a message or a file says of a node that is none of the copies.
const NO_COPY: u8 = u8::MAX;

/// Orders the views of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ViewId {
    /// Grows with each view; 0 if there is none.
    pub number: u64,
    /// The epoch of the primary that made the view: of two primaries, at most one of which was in office, the later one
    /// counts.
    pub epoch: Epoch,
}

/// One copy of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelCopy {
    /// The name of its storage node.
    pub name: String,
    /// Whether the copy is being built: it gets every write, and is not complete.
    pub is_learner: bool,
}

/// The copies of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Its place among the views of the channel.
    pub id: ViewId,
    /// The copies, in the order in which the primary reads them.
    pub copies: Vec<ChannelCopy>,
}

impl View {
    /// The names of the complete copies.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.copies.iter().filter(|copy| !copy.is_learner).map(|copy| copy.name.as_str())
    }

    /// The copy of a node.
    pub fn copy(&self, name: &str) -> Option<&ChannelCopy> {
        self.copies.iter().find(|copy| copy.name == name)
    }

    /// Whether a node's copy is complete.
    pub fn is_member(&self, name: &str) -> bool {
        self.copy(name).is_some_and(|copy| !copy.is_learner)
    }

    pub(super) fn put(&self, writer: &mut Writer) {
        writer.u64(self.id.number).u64(self.id.epoch.get()).u8(u8::try_from(self.copies.len()).unwrap_or(NO_COPY));
        for copy in &self.copies {
            writer.flag(copy.is_learner).text(&copy.name);
        }
    }

    pub(super) fn read(fields: &mut Reader<Bytes>) -> Result<View, Malformed> {
        let id = ViewId { number: fields.u64()?, epoch: Epoch(fields.u64()?) };
        let count = usize::from(fields.u8()?);
        if count > COPIES_MAX {
            return Err(fields.malformed("a view has too many copies"));
        }
        let mut copies: Vec<ChannelCopy> = Vec::with_capacity(count);
        for _ in 0..count {
            let (is_learner, name) = (fields.flag()?, fields.text(COPY_NAME_BYTES_MAX)?);
            if name.is_empty() || copies.iter().any(|copy| copy.name == name) {
                return Err(fields.malformed("a copy has no name of its own"));
            }
            copies.push(ChannelCopy { name, is_learner });
        }
        let view = View { id, copies };
        let (is_none, has_member) = (view.id == ViewId::default(), view.members().next().is_some());
        match (is_none, has_member) {
            (true, false) if count == 0 => Ok(view),
            (false, true) if view.id.number > 0 => Ok(view),
            _ => Err(fields.malformed("a view has no complete copy")),
        }
    }
}

/// What has to be removed from a copy before it can be built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyReset {
    /// Nothing.
    #[default]
    Nothing,
    /// Private rows: some of them may have been purged elsewhere in the meantime.
    PrivateRows,
    /// Everything: its blocks are not all of the chain.
    Everything,
}

impl CopyReset {
    pub(super) fn code(self) -> u8 {
        match self {
            CopyReset::Nothing => 0,
            CopyReset::PrivateRows => 1,
            CopyReset::Everything => 2,
        }
    }

    pub(super) fn of_code(code: u8) -> Option<CopyReset> {
        match code {
            0 => Some(CopyReset::Nothing),
            1 => Some(CopyReset::PrivateRows),
            2 => Some(CopyReset::Everything),
            _ => None,
        }
    }
}

/// A view as one storage node has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisteredView {
    /// The view.
    pub view: View,
    /// The place of this node among its copies.
    pub own: Option<usize>,
}

impl RegisteredView {
    /// This node's copy.
    pub fn own_copy(&self) -> Option<&ChannelCopy> {
        self.view.copies.get(self.own?)
    }

    /// Whether this node has a complete copy, as far as it knows.
    pub fn is_member(&self) -> bool {
        self.own_copy().is_some_and(|copy| !copy.is_learner)
    }

    /// Whether this node's copy is being built.
    pub fn is_learner(&self) -> bool {
        self.own_copy().is_some_and(|copy| copy.is_learner)
    }

    pub(super) fn put(&self, writer: &mut Writer) {
        self.view.put(writer);
        writer.u8(self.own.and_then(|own| u8::try_from(own).ok()).unwrap_or(NO_COPY));
    }

    pub(super) fn read(fields: &mut Reader<Bytes>) -> Result<RegisteredView, Malformed> {
        let (view, own) = (View::read(fields)?, fields.u8()?);
        let own = (own != NO_COPY).then_some(usize::from(own));
        match own.is_none_or(|own| own < view.copies.len()) {
            true => Ok(RegisteredView { view, own }),
            false => Err(fields.malformed("a node is none of the copies")),
        }
    }
}

/// What a storage node says of its copy of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyStatus {
    /// The newest epoch that has begun here; 0 if the node does not have the channel.
    pub epoch: Epoch,
    /// The newest view that was given to it.
    pub registered: RegisteredView,
    /// Its blocks; durable ones, unless a primary is appending.
    pub tip: ChainTip,
    /// The height of the savepoint of its rows.
    pub savepoint: u64,
    /// The last numbered write of committed private rows: the epoch in which it was made, and its number.
    pub private_write: (Epoch, u64),
}

impl Default for CopyStatus {
    fn default() -> CopyStatus {
        let tip = ChainTip { height: 0, header_hash: NO_PREVIOUS, epoch: Epoch(0) };
        let registered = RegisteredView::default();
        CopyStatus { epoch: Epoch(0), registered, tip, savepoint: 0, private_write: (Epoch(0), 0) }
    }
}

impl CopyStatus {
    pub(super) fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.u64(self.epoch.get()).u64(self.tip.height).put(&self.tip.header_hash).u64(self.tip.epoch.get());
        writer.u64(self.savepoint).u64(self.private_write.0.get()).u64(self.private_write.1);
        self.registered.put(&mut writer);
        writer.done()
    }

    pub(super) fn decode(bytes: Bytes) -> Result<CopyStatus, Malformed> {
        let mut fields = Reader::new(bytes);
        let epoch = Epoch(fields.u64()?);
        let tip = ChainTip { height: fields.u64()?, header_hash: fields.array()?, epoch: Epoch(fields.u64()?) };
        let (savepoint, private_write) = (fields.u64()?, (Epoch(fields.u64()?), fields.u64()?));
        let registered = RegisteredView::read(&mut fields)?;
        fields.end().map(|()| CopyStatus { epoch, registered, tip, savepoint, private_write })
    }
}

/// A view for one storage node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The epoch of the primary that installs it.
    pub epoch: Epoch,
    /// The view, and the node's place in it.
    pub registered: RegisteredView,
    /// What the node removes first; [`CopyReset::Nothing`] except for a new learner.
    pub reset: CopyReset,
}

impl Installation {
    pub(super) fn put(&self, writer: &mut Writer) {
        writer.u64(self.epoch.get()).u8(self.reset.code());
        self.registered.put(writer);
    }

    pub(super) fn read(fields: &mut Reader<Bytes>) -> Result<Installation, Malformed> {
        let (epoch, reset) = (Epoch(fields.u64()?), fields.u8()?);
        let reset = CopyReset::of_code(reset).ok_or_else(|| fields.malformed("unknown reset"))?;
        let registered = RegisteredView::read(fields)?;
        match registered.own {
            Some(_) => Ok(Installation { epoch, registered, reset }),
            None => Err(fields.malformed("a view is installed at its copies only")),
        }
    }
}
