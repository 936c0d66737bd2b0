//! What a call has proved about who makes it, for admission control.
//!
//! A handler says so once a signature of the creator was verified: by itself (statuses, events, blocks), or by an endorser
//! or orderer that would have refused the call otherwise. Validity, rights and policies are decided elsewhere and from the
//! bytes of each call; nothing here lets a call pass.

use std::sync::Arc;

use base::admission::Principal;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use chain::view::ChannelView;
use identity::{Identity, sha256};

use super::PeerState;
use super::proposal::field;
use crate::rpc::Caller;

/// How admission control names an identity: its organisation, and the digest of its certificate.
pub(super) fn principal(identity: &Identity) -> Principal {
    let digest = sha256([&identity.certificate().der()[..]]);
    Principal::new(identity.msp_id().as_str(), &STANDARD_NO_PAD.encode(digest))
}

impl PeerState {
    /// Makes the connection a member's, where it is not one, after an endorser or orderer has verified the signature of
    /// the creator in this signature header.
    pub(super) fn proven(&self, caller: &Caller, channel: &str, signature_header: &Bytes) {
        if caller.is_member() {
            return;
        }
        let Ok(creator) = field(signature_header, 1) else { return };
        let identify = |channel: Arc<dyn ChannelView>| channel.rules().identify(&creator).ok();
        // A proposal without a channel is from a member of one that the peer has.
        let identity = match channel {
            "" => self.peer.channels().into_iter().find_map(identify),
            channel => self.channel(channel).and_then(identify),
        };
        if let Some(identity) = identity {
            caller.authenticate(|| principal(&identity));
        }
    }
}
