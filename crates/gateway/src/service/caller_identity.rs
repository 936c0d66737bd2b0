//! Reports to admission control that a caller has proved its identity, so that its connection counts as
//! authenticated.
//!
//! A handler makes this report once the creator's signature on a call is verified. For statuses, events and blocks the
//! handler verifies the signature itself. For other calls an endorser or an orderer verifies it, and refuses the call
//! if the signature is wrong. The report alone admits no call: other modules decide on validity, rights and policies,
//! from the bytes of each call.

use std::sync::Arc;

use base::admission::Principal;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use chain::view::ChannelView;
use identity::{Identity, sha256};

use super::PeerServiceCore;
use super::proposal::field;
use crate::grpc::Caller;

/// How admission control names an identity: its organisation, and the digest of its certificate.
pub(super) fn principal(identity: &Identity) -> Principal {
    let digest = sha256([&identity.certificate().der()[..]]);
    Principal::new(identity.msp_id().as_str(), &STANDARD_NO_PAD.encode(digest))
}

impl PeerServiceCore {
    /// Makes the connection a member's, if it is not one yet, after an endorser or orderer has verified the signature of
    /// the creator in this signature header.
    pub(super) fn authenticate_caller(&self, caller: &Caller, channel: &str, signature_header: &Bytes) {
        if caller.is_member() {
            return;
        }
        let Ok(creator) = field(signature_header, 1) else { return };
        let identify = |channel: Arc<dyn ChannelView>| channel.policies().identify(&creator).ok();
        // A proposal without a channel comes from a member of one of the peer's channels.
        let identity = match channel {
            "" => self.peer.channels().into_iter().find_map(identify),
            channel => self.channel(channel).and_then(identify),
        };
        if let Some(identity) = identity {
            caller.authenticate(|| principal(&identity));
        }
    }
}
