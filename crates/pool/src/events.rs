//! What the pool counts.

base::events! {
    /// Sections that memory nodes gave.
    counter SectionsGranted("heddle_pool_sections_granted_total");
    /// Sections that owners gave back.
    counter SectionsReleased("heddle_pool_sections_released_total");
    /// Sections taken back because a newer epoch of their owner began.
    counter SectionsFenced("heddle_pool_sections_fenced_total");
    /// Sections taken back from owners that had been away for long, because others needed the room.
    counter SectionsReclaimed("heddle_pool_sections_reclaimed_total");
    /// Revocations that could not be confirmed and are tried again.
    counter RevocationsUnconfirmed("heddle_pool_revocations_unconfirmed_total");
    /// Requests for a section that memory nodes refused for want of room.
    counter GrantsRefused("heddle_pool_grants_refused_total");
    /// Requests that memory nodes refused because a newer epoch had begun.
    counter RequestsFenced("heddle_pool_requests_fenced_total");
    /// Connections that memory nodes ended because of what arrived on them, or because there were too many.
    counter ConnectionsRefused("heddle_pool_connections_refused_total");
    /// Bytes that memory nodes may give.
    gauge BudgetBytes("heddle_pool_budget_bytes");
    /// Bytes that memory nodes have given, sections included whose return is not confirmed yet.
    gauge GrantedBytes("heddle_pool_granted_bytes");
    /// Owners connected to memory nodes.
    gauge OwnersConnected("heddle_pool_owners_connected");
    /// Sections that address spaces were given.
    counter SectionsGrown("heddle_pool_space_sections_grown_total");
    /// Sections that address spaces lost with their donors.
    counter SectionsLost("heddle_pool_space_sections_lost_total");
    /// Sections that donors held for an address space that did not know of them, and that were given back.
    counter SectionsSwept("heddle_pool_space_sections_swept_total");
    /// Connections of address spaces to donors.
    counter DonorsConnected("heddle_pool_space_donors_connected_total");
    /// Connections of address spaces to donors that were lost.
    counter DonorsLost("heddle_pool_space_donors_lost_total");
    /// Times that a donor, connected, did not answer an address space any more.
    counter DonorsFoundSilent("heddle_pool_space_donors_silent_total");
    /// Bytes of the sections of address spaces.
    gauge SpaceBytes("heddle_pool_space_bytes");
    /// Time to be given a section.
    histogram GrowTime("heddle_pool_space_grow_seconds", seconds);
}
