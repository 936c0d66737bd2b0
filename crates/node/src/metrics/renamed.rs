//! Metrics that were renamed in this release. For one release they are also exported under their old names.

/// Old and new names. A name of another metric must not come back as an old one.
const RENAMED: [(&str, &str); 29] = [
    ("heddle_state_readers", "heddle_state_followers"),
    ("heddle_state_readers_joined_total", "heddle_state_followers_joined_total"),
    ("heddle_state_readers_fenced_total", "heddle_state_followers_fenced_total"),
    ("heddle_state_reader_pieces_total", "heddle_state_follower_work_items_total"),
    ("heddle_state_reader_pieces_failed_total", "heddle_state_follower_work_items_failed_total"),
    ("heddle_state_reader_blocks_total", "heddle_state_follower_blocks_total"),
    ("heddle_chain_reader_nodes", "heddle_chain_follower_nodes"),
    ("heddle_chain_transactions_borrowed_total", "heddle_chain_transactions_offloaded_total"),
    ("heddle_chain_transactions_not_borrowed_total", "heddle_chain_transactions_offload_failed_total"),
    ("heddle_chain_transactions_lent_total", "heddle_chain_transactions_verified_for_primary_total"),
    ("heddle_chain_transactions_doubted_total", "heddle_chain_transactions_reverified_total"),
    ("heddle_chain_liars_found_total", "heddle_chain_followers_distrusted_total"),
    ("heddle_chain_leads_begun_total", "heddle_chain_leaderships_started_total"),
    ("heddle_chain_examine_seconds", "heddle_chain_verify_seconds"),
    ("heddle_chain_resolve_seconds", "heddle_chain_conflict_check_seconds"),
    ("heddle_chain_proposals_refused_total", "heddle_chain_proposals_rejected_total"),
    ("heddle_chain_messages_refused_total", "heddle_chain_messages_rejected_total"),
    ("heddle_chain_blocks_refused_total", "heddle_chain_blocks_rejected_total"),
    ("heddle_chain_commit_hashes_parted_total", "heddle_chain_commit_hashes_diverged_total"),
    ("heddle_grpc_calls_refused_total", "heddle_grpc_calls_rejected_total"),
    ("heddle_pool_grants_refused_total", "heddle_pool_grants_rejected_total"),
    ("heddle_pool_connections_refused_total", "heddle_pool_connections_rejected_total"),
    ("heddle_links_refused_total", "heddle_links_rejected_total"),
    ("heddle_admission_reservations_refused_total", "heddle_admission_reservations_rejected_total"),
    ("heddle_state_views_refused_total", "heddle_state_views_rejected_total"),
    ("heddle_storage_node_epochs_begun_total", "heddle_storage_node_epochs_started_total"),
    ("heddle_storage_torn_tails_cut_total", "heddle_storage_torn_tails_truncated_total"),
    ("heddle_admission_strangers_open", "heddle_admission_unauthenticated_open"),
    ("heddle_admission_members_open", "heddle_admission_authenticated_open"),
];

/// What `text`, a page in Prometheus's format, has of renamed metrics, once more under their old names.
pub fn under_old_names(text: &str) -> String {
    let mut old_page = String::new();
    for line in text.lines() {
        let (before, rest) = match line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")) {
            Some(rest) => (&line[..line.len() - rest.len()], rest),
            None => ("", line),
        };
        let name = &rest[..rest.find([' ', '{']).unwrap_or(rest.len())];
        let Some((old, new)) = RENAMED.iter().find(|(_, new)| is_series_of(name, new)) else { continue };
        old_page.push_str(before);
        old_page.push_str(old);
        if before == "# HELP " {
            old_page.push_str(&format!(" Deprecated: now {new}."));
        } else {
            old_page.push_str(&rest[new.len()..]);
        }
        old_page.push('\n');
    }
    old_page
}

/// Whether a sample's name is the metric's, or one of a histogram's three.
fn is_series_of(name: &str, metric: &str) -> bool {
    name.strip_prefix(metric).is_some_and(|ending| ["", "_bucket", "_sum", "_count"].contains(&ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renamed_metrics_are_exported_under_both_names() {
        let page = "# HELP heddle_state_followers Followers of this primary.\n# TYPE heddle_state_followers gauge\n\
                    heddle_state_followers 2\nheddle_state_followers_joined_total 7\nheddle_other_total 1\n\
                    heddle_chain_verify_seconds_bucket{le=\"+Inf\"} 3\nheddle_chain_verify_seconds_sum 0.5\n";
        let expected = "# HELP heddle_state_readers Deprecated: now heddle_state_followers.\n\
                        # TYPE heddle_state_readers gauge\nheddle_state_readers 2\nheddle_state_readers_joined_total 7\n\
                        heddle_chain_examine_seconds_bucket{le=\"+Inf\"} 3\nheddle_chain_examine_seconds_sum 0.5\n";
        assert_eq!(under_old_names(page), expected);
    }

    #[test]
    fn every_new_name_is_a_metric_and_no_old_one_is() {
        super::super::register();
        let known: Vec<&str> = base::event::catalogue().iter().map(|event| event.name).collect();
        for (old, new) in RENAMED {
            assert!(known.contains(&new), "{new} is no metric");
            assert!(!known.contains(&old), "{old} is a metric");
        }
    }
}
