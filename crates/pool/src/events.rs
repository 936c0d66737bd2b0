//! The metrics of memory nodes and of address spaces.

base::events! {
    /// Sections that memory nodes granted.
    counter SectionsGranted("heddle_pool_sections_granted_total");
    /// Sections that owners returned.
    counter SectionsReleased("heddle_pool_sections_released_total");
    /// Sections of which an older epoch lost its capabilities because a newer epoch of their owner started.
    counter SectionsFenced("heddle_pool_sections_fenced_total");
    /// Sections that a newer epoch of their owner got with the content that an older one left.
    counter SectionsHandedOver("heddle_pool_sections_handed_over_total");
    /// Sections reclaimed from owners without a connection for long, because others needed the memory.
    counter SectionsReclaimed("heddle_pool_sections_reclaimed_total");
    /// Revocations that could not be confirmed and are retried.
    counter RevocationsUnconfirmed("heddle_pool_revocations_unconfirmed_total");
    /// Requests for a section that memory nodes rejected for want of memory.
    counter GrantsRejected("heddle_pool_grants_rejected_total");
    /// Requests that memory nodes rejected because a newer epoch had started.
    counter RequestsFenced("heddle_pool_requests_fenced_total");
    /// Connections that memory nodes closed because of an invalid message, or because there were too many.
    counter ConnectionsRejected("heddle_pool_connections_rejected_total");
    /// Bytes that memory nodes may grant.
    gauge BudgetBytes("heddle_pool_budget_bytes");
    /// Bytes that memory nodes have granted, including sections whose return is not confirmed yet.
    gauge GrantedBytes("heddle_pool_granted_bytes");
    /// Owners connected to memory nodes.
    gauge OwnersConnected("heddle_pool_owners_connected");
    /// Sections that were granted to address spaces.
    counter SectionsGrown("heddle_pool_space_sections_grown_total");
    /// Sections that address spaces adopted from an earlier epoch of their owner.
    counter SectionsAdopted("heddle_pool_space_sections_adopted_total");
    /// Sections that address spaces moved to another donor.
    counter SectionsMigrated("heddle_pool_space_sections_migrated_total");
    /// Sections that address spaces lost with their donors.
    counter SectionsLost("heddle_pool_space_sections_lost_total");
    /// Sections that donors held for an address space that did not know of them, and that were returned.
    counter SectionsSwept("heddle_pool_space_sections_swept_total");
    /// Connections of address spaces to donors.
    counter DonorsConnected("heddle_pool_space_donors_connected_total");
    /// Connections of address spaces to donors that were lost.
    counter DonorsLost("heddle_pool_space_donors_lost_total");
    /// Times that a connected donor stopped answering an address space.
    counter DonorsFoundSilent("heddle_pool_space_donors_silent_total");
    /// Connections to donors that were closed because verbs did not complete any more.
    counter DonorsStuck("heddle_pool_space_donors_stuck_total");
    /// Bytes of the sections of address spaces.
    gauge SpaceBytes("heddle_pool_space_bytes");
    /// Time to get a section.
    histogram GrowTime("heddle_pool_space_grow_seconds", seconds);
}
