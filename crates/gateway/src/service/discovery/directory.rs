//! The peers of each channel, as they have described themselves lately.
//!
//! 1. The first query after [`AGE_MAX`] asks every peer at once, and each has [`ANSWER_MAX`] to answer. Other queries wait
//!    for the answers.
//! 2. An answer counts if its peer has signed it and belongs to the organisation that was asked.
//! 3. A peer without such an answer is left out, and is asked again after [`PAUSE`] only, so that it does not hold up every
//!    query.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::MspId;
use base::rt::{self, Instant};
use chain::endorse::Endorse;
use futures_util::future::join_all;
use identity::statement::PeerDescription;
use rules::access::ChannelPolicies;

/// How long a description is used.
const AGE_MAX: Duration = Duration::from_secs(1);
/// The time in which a peer must describe itself.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// After this time a peer that has not described itself is asked again.
const PAUSE: Duration = Duration::from_secs(5);

/// The peers of each channel; those outside of any channel under the empty name.
#[derive(Default)]
pub(in crate::service) struct PeerDirectory(Mutex<BTreeMap<String, Arc<rt::sync::Mutex<KnownPeers>>>>);

#[derive(Default)]
struct KnownPeers {
    asked: Option<Instant>,
    found: Arc<Vec<PeerDescription>>,
    /// When each endorser may be asked again, if it has failed.
    pauses: BTreeMap<usize, Instant>,
}

/// A peer that can be asked, and the organisation that it must belong to.
pub(super) type AskedPeer<'a> = (&'a MspId, &'a dyn Endorse);

impl PeerDirectory {
    /// The peers of a channel that this peer has joined, or all peers for an empty name. `policies` are those of the channel, or
    /// of all channels. `endorsers` are always the same.
    pub(super) async fn peers(
        &self,
        channel: &str,
        policies: &[Arc<ChannelPolicies>],
        endorsers: &[AskedPeer<'_>],
    ) -> Arc<Vec<PeerDescription>> {
        // Only channels that the peer has joined get here, so there are as many entries at most.
        let known =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(channel.to_owned()).or_default().clone();
        let mut known = known.lock().await;
        if known.asked.is_none_or(|asked| rt::now() >= asked + AGE_MAX) {
            known.ask(channel, policies, endorsers).await;
        }
        known.found.clone()
    }
}

impl KnownPeers {
    async fn ask(&mut self, channel: &str, policies: &[Arc<ChannelPolicies>], endorsers: &[AskedPeer<'_>]) {
        self.pauses.retain(|_, until| rt::now() < *until);
        let asked: Vec<_> =
            endorsers.iter().enumerate().filter(|(place, _)| !self.pauses.contains_key(place)).collect();
        let answers = join_all(asked.iter().map(|(_, endorser)| describe(**endorser, channel, policies))).await;
        let mut found = Vec::new();
        for ((place, (organization, _)), answer) in asked.into_iter().zip(answers) {
            match answer {
                Ok(description) => found.push(description),
                Err(reason) => {
                    tracing::debug!(%organization, channel, reason, "a peer is left out");
                    self.pauses.insert(place, rt::now() + PAUSE);
                }
            }
        }
        (self.found, self.asked) = (Arc::new(found), Some(rt::now()));
    }
}

async fn describe(
    (organization, endorse): AskedPeer<'_>,
    channel: &str,
    policies: &[Arc<ChannelPolicies>],
) -> Result<PeerDescription, String> {
    let answer = rt::timeout(ANSWER_MAX, endorse.describe(channel)).await;
    let peer = answer.map_err(|_| "no answer in time".to_owned())?.map_err(|error| error.to_string())?;
    let mut reason = "no channel has this peer's organisation".to_owned();
    for policies in policies {
        match PeerDescription::read(peer.clone(), channel, policies.members()) {
            Ok(description) if description.identity.msp_id() != organization => {
                reason = format!("it is a peer of {}", description.identity.msp_id());
            }
            Ok(description) => match policies.check_served(&description.identity, rt::wall_now()) {
                Ok(()) => return Ok(description),
                Err(error) => reason = error.to_string(),
            },
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}
