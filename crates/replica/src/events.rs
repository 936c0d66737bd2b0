//! Events of a peer's compute nodes. The names of their metrics begin with `heddle_state` or `heddle_chain`, since
//! those crates show them.

base::events! {
    /// Followers of this primary.
    gauge Followers("heddle_state_followers");
    /// Times that a follower joined its primary.
    counter FollowersJoined("heddle_state_followers_joined_total");
    /// Times that a follower was fenced, because its link was lost or it did not keep up.
    counter FollowersFenced("heddle_state_followers_fenced_total");
    /// Times that a follower left in order, so that no block had to wait for its lease.
    counter FollowersLeft("heddle_state_followers_left_total");
    /// Work items that followers did for the primary and whose answers counted.
    counter WorkItemsDone("heddle_state_follower_work_items_total");
    /// Work items that a follower did not do, did too late, or did without a lease: the primary did them itself.
    counter WorkItemsFailed("heddle_state_follower_work_items_failed_total");
    /// Compute nodes of a peer that were found to lie about signatures; the primary offloads nothing more to them.
    counter FollowersDistrusted("heddle_chain_followers_distrusted_total");
    /// Times that a compute node of a peer became its primary, where there are several.
    counter Promotions("heddle_chain_promotions_total");
    /// Times that a compute node of a peer ceased to be its primary, or failed to start as its primary.
    counter Demotions("heddle_chain_demotions_total");
    /// Compute nodes, of peers with several, that are the primary now.
    gauge PrimaryNodes("heddle_chain_primary_nodes");
    /// Compute nodes that follow a primary now and may answer.
    gauge FollowerNodes("heddle_chain_follower_nodes");
    /// The height that the compute node of this process shows, where a peer has several. If one process runs a whole
    /// network, the height that changed last.
    gauge ComputeHeight("heddle_chain_compute_height");
}
