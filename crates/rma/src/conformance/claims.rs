//! The claims, in the order in which they are checked, and their results.

use std::fmt::{self, Display};
use std::future::Future;
use std::pin::Pin;

use base::rt;

use super::fixture::Fixture;
use super::{atomics, connections, fences, rejections, transfers};

/// The result of a claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClaimVerdict {
    /// The claim holds.
    Held,
    /// The claim does not apply to this provider, for this reason.
    Skipped(&'static str),
    /// The claim does not hold, with what was observed.
    Broken(String),
}

pub(super) type Checked<'a> = Pin<Box<dyn Future<Output = Result<Option<&'static str>, String>> + Send + 'a>>;

/// A guarantee that every provider must give.
#[derive(Clone, Copy)]
pub struct Claim {
    /// The claim in words.
    pub name: &'static str,
    check: for<'a> fn(&'a dyn Fixture) -> Checked<'a>,
}

impl Claim {
    /// Checks the claim.
    pub async fn check(&self, fixture: &dyn Fixture) -> ClaimVerdict {
        let patience = fixture.features().patience;
        match rt::timeout(patience, (self.check)(fixture)).await {
            Ok(Ok(None)) => ClaimVerdict::Held,
            Ok(Ok(Some(reason))) => ClaimVerdict::Skipped(reason),
            Ok(Err(seen)) => ClaimVerdict::Broken(seen),
            Err(_) => ClaimVerdict::Broken(format!("it has not ended within {patience:?}")),
        }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! claims {
    ($($(#[$doc:meta])* $module:ident::$name:ident),+ $(,)?) => {
        /// All claims, in the order in which [`run`] checks them. The last closes the host.
        pub const CLAIMS: &[Claim] = &[
            $(Claim { name: stringify!($name), check: |fixture| Box::pin($module::$name(fixture)) }),+
        ];
    };
}

claims! {
    transfers::what_was_written_is_read_by_all,
    transfers::regions_begin_as_zeros,
    transfers::owners_reach_their_memory,
    transfers::reads_append_to_what_is_there,
    transfers::parts_are_written_one_behind_the_other,
    transfers::transfers_of_no_bytes_pass,
    transfers::large_transfers_arrive_whole,
    transfers::words_are_never_torn,
    transfers::verbs_of_one_endpoint_take_effect_in_order,
    transfers::data_written_before_a_flag_are_there_with_the_flag,
    transfers::verbs_take_effect_though_nobody_awaits_them,
    transfers::immediate_data_arrive_behind_their_bytes,
    atomics::a_swap_happens_only_where_the_expected_word_stands,
    atomics::additions_wrap_and_give_what_stood_there,
    atomics::swaps_under_contention_lose_nothing,
    atomics::additions_under_contention_lose_nothing,
    atomics::thousands_of_verbs_are_in_flight_in_order,
    atomics::too_many_verbs_are_busy_and_without_effect,
    rejections::ranges_out_of_bounds_are_refused_without_effect,
    rejections::misaligned_atomics_are_refused,
    rejections::wrong_secrets_and_unknown_regions_are_refused,
    rejections::a_capability_of_one_on_the_connection_of_another_is_refused_as_unknown,
    rejections::what_a_capability_lacks_is_forbidden,
    rejections::forged_rights_are_refused,
    rejections::too_much_at_once_is_refused,
    rejections::a_refused_verb_leaves_the_connection_in_use,
    fences::a_revoked_capability_is_refused_for_every_verb,
    fences::nothing_lands_after_a_revocation,
    fences::a_capability_that_was_revoked_is_refused_on_a_later_connection,
    fences::one_grant_survives_the_revocation_of_another,
    fences::a_deregistered_region_is_gone,
    connections::strangers_are_refused,
    connections::names_and_numbers_are_those_of_the_other_side,
    connections::messages_arrive_in_order_in_both_directions,
    connections::messages_of_no_bytes_and_of_many_arrive,
    connections::a_message_arrives_behind_what_was_written_before_it,
    connections::giving_up_a_receive_loses_nothing,
    connections::closing_ends_both_sides_and_delivers_what_was_sent,
    connections::dropping_the_last_clone_closes,
    connections::verbs_in_flight_on_a_closed_endpoint_are_ambiguous,
    connections::a_lost_connection_leaves_verbs_ambiguous_and_closes,
    connections::a_closed_host_ends_its_connections,
}

/// The results of all claims.
#[derive(Clone, Debug, Default)]
pub struct ConformanceReport {
    /// In the order of checking.
    pub verdicts: Vec<(&'static str, ClaimVerdict)>,
}

impl ConformanceReport {
    /// The claims that are broken.
    pub fn broken(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.verdicts.iter().filter_map(|(name, verdict)| match verdict {
            ClaimVerdict::Broken(seen) => Some((*name, seen.as_str())),
            _ => None,
        })
    }

    /// Panics with the report when a claim is broken.
    pub fn assert_held(&self) {
        assert!(self.broken().next().is_none(), "the provider does not conform:\n{self}");
    }
}

impl Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, verdict) in &self.verdicts {
            match verdict {
                ClaimVerdict::Held => writeln!(f, "ok       {name}")?,
                ClaimVerdict::Skipped(reason) => writeln!(f, "skipped  {name}: {reason}")?,
                ClaimVerdict::Broken(seen) => writeln!(f, "BROKEN   {name}: {seen}")?,
            }
        }
        Ok(())
    }
}

/// Checks all claims on a provider. Afterwards its host is closed.
pub async fn run(fixture: &dyn Fixture) -> ConformanceReport {
    let mut report = ConformanceReport::default();
    for claim in CLAIMS {
        report.verdicts.push((claim.name, claim.check(fixture).await));
    }
    report
}
