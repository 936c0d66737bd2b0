//! Step 1: an endorser keeps the private writes of a proposal and sends them to other members.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::rt::channel::bounded;
use base::{MspId, TxId, rt};
use ledger::rwset::PrivateSet;

use crate::channel::PrivateChannel;
use crate::members::MemberPeer;
use crate::policies::CollectionPolicies;
use crate::{Error, events};

/// How long another peer may take to acknowledge sets.
pub const PUSH_MAX: Duration = Duration::from_secs(3);

/// What is sent to one peer: the places of the sets.
struct Parcel {
    peer: Arc<dyn MemberPeer>,
    sets: Vec<usize>,
}

impl PrivateChannel {
    /// Keeps the private sets of a proposal, durably, and sends each to as many peers of other members as its collection names. Returns
    /// as soon as each has been acknowledged by as many as its collection requires; the other messages go on.
    ///
    /// Dropping the future is safe; peers may have the sets.
    ///
    /// # Errors
    /// `Retry` if too few peers acknowledge a set in time; the tables'.
    pub async fn distribute(
        &self,
        policies: &dyn CollectionPolicies,
        tx_id: &TxId,
        height: u64,
        sets: Vec<PrivateSet>,
    ) -> Result<(), Error> {
        // However many other organisations have sent for the transaction.
        self.store.stage(tx_id, height, &sets, None).await?;
        let (parcels, mut required) = self.parcels(policies, &sets);
        let (acknowledge, mut acknowledged) = bounded(parcels.len().max(1));
        for Parcel { peer, sets: places } in parcels {
            if rt::fault_point("private.push.lost") {
                continue;
            }
            let (channel, tx_id, acknowledge) = (self.channel.clone(), tx_id.clone(), acknowledge.clone());
            let contents: Vec<PrivateSet> = places.iter().map(|place| sets[*place].clone()).collect();
            drop(rt::spawn(async move {
                let pushed = rt::timeout(PUSH_MAX, peer.push(&channel, &tx_id, &contents)).await;
                let failure = match pushed {
                    _ if rt::fault_point("private.push.answer_lost") => Some("the answer was lost".to_owned()),
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(error.to_string()),
                    Err(_) => Some(format!("no acknowledgement within {} s", PUSH_MAX.as_secs())),
                };
                if let Some(failure) = &failure {
                    events::PrivateSetsUnacknowledged.add(contents.len() as u64);
                    tracing::warn!(%channel, %tx_id, organization = %peer.organization(), failure, "private data were not acknowledged");
                }
                // The endorser may have gone on already.
                let _ = acknowledge.send((places, failure.is_none())).await;
            }));
        }
        drop(acknowledge);
        while required.iter().any(|required| *required > 0) {
            let Some((places, is_acknowledged)) = acknowledged.recv().await else {
                let place = required.iter().position(|required| *required > 0).unwrap_or_default();
                let (set, lacking) = (&sets[place], required[place]);
                return Err(Error::TooFewPeers {
                    contract: set.namespace.clone(),
                    collection: set.collection.clone(),
                    lacking,
                });
            };
            if is_acknowledged {
                places.into_iter().for_each(|place| required[place] = required[place].saturating_sub(1));
            }
        }
        Ok(())
    }

    /// Which peer gets which sets, and how many peers must acknowledge each set. Each organisation gets a set once before any gets
    /// it twice.
    fn parcels(&self, policies: &dyn CollectionPolicies, sets: &[PrivateSet]) -> (Vec<Parcel>, Vec<usize>) {
        let peers = self.members.all();
        let mut parcels: Vec<Parcel> = peers.into_iter().map(|peer| Parcel { peer, sets: Vec::new() }).collect();
        let mut required = Vec::with_capacity(sets.len());
        for (place, set) in sets.iter().enumerate() {
            let Some(access) = policies.access(&set.namespace, &set.collection) else {
                required.push(0);
                continue;
            };
            required.push(access.required_peers);
            let mut served: BTreeSet<MspId> = BTreeSet::new();
            let mut left = access.max_peers;
            for is_first_round in [true, false] {
                for parcel in &mut parcels {
                    let organization = parcel.peer.organization();
                    let is_new = !served.contains(organization);
                    if left > 0
                        && access.keeps(organization)
                        && *organization != self.own
                        && is_new == is_first_round
                        && parcel.sets.last() != Some(&place)
                    {
                        served.insert(organization.clone());
                        parcel.sets.push(place);
                        left -= 1;
                    }
                }
            }
        }
        parcels.retain(|parcel| !parcel.sets.is_empty());
        (parcels, required)
    }
}
