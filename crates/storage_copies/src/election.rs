//! Steps 12 to 14: how a candidate begins its epoch at the copies.

use std::time::Duration;

use base::rt;
use base::{Epoch, ErrorKind};
use futures_util::future::join_all;
use storage::Error;
use storage::node::{
    self, ChannelCopy, CopyReset, CopyStatus, Installation, RegisteredView, View, ViewId, begin_epoch_in, copy_status,
    install_view,
};

use crate::limits::{BEGIN_TIMEOUT, STATUS_TIMEOUT};
use crate::set::{CopyNode, CopySet, check_name, error};

/// An operator's view skips this many numbers, so that no primary has used its number.
const FORCED_NUMBERS: u64 = 1 << 32;
/// Attempts of a candidate to put its first view in force.
const VIEW_ATTEMPTS_MAX: usize = 4;

/// The status of the copy at each configured node; an error for a node that does not answer.
pub async fn copy_states(set: &CopySet, channel: &str) -> Vec<(CopyNode, Result<CopyStatus, Error>)> {
    join_all(set.nodes.iter().map(|node| async {
        let asked = within(node, STATUS_TIMEOUT, copy_status(&node.address, &set.token, channel)).await;
        let checked = asked.and_then(|status| check_name(node, &status).map(|()| status));
        (node.clone(), checked)
    }))
    .await
}

/// Whether a channel has a view. It has none if only one node is configured and it never had a copy elsewhere.
///
/// # Errors
/// Those of the node, if only one is configured.
pub async fn has_copies(set: &CopySet, channel: &str) -> Result<bool, Error> {
    let node = set.first();
    Ok(!set.is_single() || copy_status(&node.address, &set.token, channel).await?.registered.view.id.number > 0)
}

/// The channels of which any node that answers has blocks, sorted by name.
///
/// # Errors
/// If no node answers.
pub async fn channels(set: &CopySet) -> Result<Vec<String>, Error> {
    if set.is_single() {
        return node::channels(&set.first().address, &set.token).await;
    }
    let asking = set.nodes.iter().map(|node| within(node, BEGIN_TIMEOUT, node::channels(&node.address, &set.token)));
    let answers = join_all(asking).await;
    let failed = answers.iter().find_map(|answer| answer.as_ref().err().cloned());
    let found: Vec<Vec<String>> = answers.into_iter().filter_map(Result::ok).collect();
    match (found.is_empty(), failed) {
        (true, Some(error)) => Err(error),
        _ => Ok(found.into_iter().flatten().collect::<std::collections::BTreeSet<_>>().into_iter().collect()),
    }
}

/// The newest epoch of a channel, as the members of its newest view know it; 0 if the channel does not exist.
///
/// # Errors
/// `Retry` if no member of the newest view answers; refusals.
pub async fn newest_epoch(set: &CopySet, channel: &str) -> Result<Epoch, Error> {
    if set.is_single() {
        let node = set.first();
        return node::newest_epoch(&node.address, &set.token, channel).await;
    }
    let states = copy_states(set, channel).await;
    let newest = newest_view(&states);
    let epochs = states.iter().filter_map(|(node, status)| {
        let counts = newest.id.number == 0 || newest.is_member(&node.name);
        status.as_ref().ok().filter(|_| counts).map(|status| status.epoch)
    });
    epochs.max().ok_or_else(|| silent(&states))
}

/// Begins a new epoch for the next primary of a channel, at every complete copy. If `newest` is given, fails if a later epoch has
/// begun. The first view of the epoch is in force on return.
///
/// # Errors
/// `Fenced` if a later epoch has begun; `Retry` if a member of the newest view does not answer, if the copies have changed
/// meanwhile, or if not all nodes of a new channel answer; refusals. The epoch may then have begun at some copies; beginning
/// another one is safe.
pub async fn begin_epoch(set: &CopySet, channel: &str, newest: Option<Epoch>) -> Result<Epoch, Error> {
    if set.is_single() && !has_copies(set, channel).await? {
        let node = set.first();
        return match newest {
            None => node::begin_epoch(&node.address, &set.token, channel).await,
            Some(newest) => node::begin_epoch_after(&node.address, &set.token, channel, newest).await,
        };
    }
    let states = copy_states(set, channel).await;
    let view = newest_view(&states);
    let (members, is_first) = members_to_ask(set, &states, &view)?;
    let known = members.iter().map(|(_, status)| status.epoch).max().unwrap_or_default();
    if let Some(given) = newest
        && known > given
    {
        return Err(Error::Fenced { given, newest: known });
    }
    let epoch = known.get().checked_add(1).map(Epoch).ok_or(Error::Invalid("there are no epochs left"))?;
    let mut begun = Vec::with_capacity(members.len());
    for (node, _) in members {
        let beginning = begin_epoch_in(&node.address, &set.token, channel, epoch, view.id);
        match within(&node, BEGIN_TIMEOUT, beginning).await {
            Ok(status) => begun.push((node, status)),
            // The mutant of the simulation: a member that does not answer is left out.
            Err(_) if rt::fault_point("storage.copies.mutant.candidate_skips_member") => {}
            Err(error) => return Err(error),
        }
    }
    let mut complete: Vec<_> =
        begun.into_iter().filter(|(_, status)| is_first || status.registered.is_member()).collect();
    let mut number = view.id.number;
    for _ in 0..VIEW_ATTEMPTS_MAX {
        let kept = equal_to_longest(&complete);
        if kept.is_empty() {
            break;
        }
        number = number.checked_add(1).ok_or(Error::Invalid("there are no views left"))?;
        let names = kept.iter().map(|node| ChannelCopy { name: node.name.clone(), is_learner: false }).collect();
        let made = View { id: ViewId { number, epoch }, copies: names };
        match install_everywhere(set, channel, epoch, &made, &made).await {
            Ok(()) => return Ok(epoch),
            Err((_, error)) if error.kind() == ErrorKind::Fenced => return Err(error),
            Err((failed, error)) => {
                tracing::warn!(channel, copy = failed, %error, "a copy does not take over the view of a new primary");
                complete.retain(|(node, _)| node.name != failed);
            }
        }
    }
    Err(silent(&states))
}

/// Makes the copy of this node the only one of the channel, on an operator's word and whatever the other copies have. No compute
/// node of the peer may be running.
///
/// # Errors
/// `Rejected` if the node is not configured, or has no complete copy; those of the node.
pub async fn force_view(set: &CopySet, channel: &str, name: &str) -> Result<View, Error> {
    let refuse = |text: &str| Error::Remote { node: name.into(), kind: ErrorKind::Rejected, text: text.to_owned() };
    let node = set.node(name).ok_or_else(|| refuse("it is none of the peer's storage nodes"))?;
    let states = copy_states(set, channel).await;
    let own = copy_status(&node.address, &set.token, channel).await?;
    if !own.registered.is_member() {
        return Err(refuse("its copy is not complete"));
    }
    let known = states.iter().filter_map(|(_, status)| Some(status.as_ref().ok()?.epoch)).max().unwrap_or_default();
    let newest = newest_view(&states).id.max(own.registered.view.id);
    let epoch = Epoch(known.max(own.epoch).get().saturating_add(1));
    begin_epoch_in(&node.address, &set.token, channel, epoch, newest).await?;
    let number = newest.number.saturating_add(FORCED_NUMBERS);
    let copies = vec![ChannelCopy { name: name.to_owned(), is_learner: false }];
    let view = View { id: ViewId { number, epoch }, copies };
    install_everywhere(set, channel, epoch, &view, &view).await.map_err(|(_, error)| error)?;
    Ok(view)
}

/// Gives a view to its copies, in the order of `order`. The view is in force only if this succeeds.
///
/// # Errors
/// The first failure, and the name of the copy that failed; the view may be at some copies.
pub(crate) async fn install_everywhere(
    set: &CopySet,
    channel: &str,
    epoch: Epoch,
    view: &View,
    order: &View,
) -> Result<(), (String, Error)> {
    let at = |name: &str| view.copies.iter().position(|copy| copy.name == name);
    for copy in &order.copies {
        install_at(set, channel, epoch, view, at(&copy.name), CopyReset::Nothing)
            .await
            .map_err(|error| (copy.name.clone(), error))?;
    }
    Ok(())
}

/// Gives a view to one of its copies.
pub(crate) async fn install_at(
    set: &CopySet,
    channel: &str,
    epoch: Epoch,
    view: &View,
    own: Option<usize>,
    reset: CopyReset,
) -> Result<(), Error> {
    let name = own.and_then(|own| view.copies.get(own)).map(|copy| copy.name.as_str()).unwrap_or_default();
    let missing = || Error::Remote {
        node: name.into(),
        kind: ErrorKind::Rejected,
        text: "it has a copy and is none of the configured storage nodes".to_owned(),
    };
    let node = set.node(name).ok_or_else(missing)?;
    let registered = RegisteredView { view: view.clone(), own };
    let time_max = match reset {
        CopyReset::Nothing => crate::limits::INSTALL_TIMEOUT,
        _ => crate::limits::RESET_TIMEOUT,
    };
    let installation = Installation { epoch, registered, reset };
    within(node, time_max, install_view(&node.address, &set.token, channel, installation)).await
}

/// Makes a call to a node with a time limit.
pub(crate) async fn within<T>(
    node: &CopyNode,
    time_max: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let silent = |_| error(node, ErrorKind::Retry, format!("it did not answer within {} ms", time_max.as_millis()));
    rt::timeout(time_max, call).await.unwrap_or_else(|elapsed| Err(silent(elapsed)))
}

type States = [(CopyNode, Result<CopyStatus, Error>)];

/// The newest view that an answering node has.
pub(crate) fn newest_view(states: &States) -> View {
    let views = states.iter().filter_map(|(_, status)| Some(&status.as_ref().ok()?.registered.view));
    views.max_by_key(|view| view.id).cloned().unwrap_or_default()
}

/// Step 12: all members of the view, in its order, and false. Step 14: the node that becomes the first member, and true.
#[allow(clippy::type_complexity, reason = "a pair that is taken apart at once")]
fn members_to_ask(set: &CopySet, states: &States, view: &View) -> Result<(Vec<(CopyNode, CopyStatus)>, bool), Error> {
    let status = |name: &str| match states.iter().find(|(node, _)| node.name == name) {
        Some((node, Ok(status))) => Ok((node.clone(), status.clone())),
        Some((_, Err(error))) => Err(error.clone()),
        None => Err(Error::Remote {
            node: name.into(),
            kind: ErrorKind::Retry,
            text: "it has a copy of the channel, and is none of the configured storage nodes".to_owned(),
        }),
    };
    if view.id.number > 0 {
        let mut members = Vec::new();
        for name in view.members() {
            match status(name) {
                Ok(member) => members.push(member),
                // The mutant of the simulation: a member that does not answer is left out.
                Err(_) if rt::fault_point("storage.copies.mutant.candidate_skips_member") => {}
                Err(error) => return Err(error),
            }
        }
        return Ok((members, false));
    }
    for (_, answer) in states {
        if let Err(error) = answer {
            return Err(error.clone());
        }
    }
    Ok((vec![status(&set.first().name)?], true))
}

/// Step 13: the complete copies that have the longest chain and the last private write.
fn equal_to_longest(complete: &[(CopyNode, CopyStatus)]) -> Vec<CopyNode> {
    let end = |status: &CopyStatus| (status.tip.height, status.tip.epoch, status.private_write);
    let Some(longest) = complete.iter().map(|(_, status)| end(status)).max() else { return Vec::new() };
    let kept = complete.iter().filter(|(_, status)| {
        // The mutant of the simulation: copies that differ are both kept.
        end(status) == longest || rt::fault_point("storage.copies.mutant.keep_shorter_copy")
    });
    kept.map(|(node, _)| node.clone()).collect()
}

fn silent(states: &States) -> Error {
    let error = states.iter().find_map(|(_, status)| status.as_ref().err());
    error.cloned().unwrap_or(Error::Remote {
        node: "storage".into(),
        kind: ErrorKind::Retry,
        text: "no complete copy of the channel answers".to_owned(),
    })
}
