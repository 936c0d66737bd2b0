//! What the world state counts.

base::events! {
    /// Reads that the writes since the savepoint answered.
    counter DeltaHits("heddle_state_delta_hits_total");
    /// Reads that the cache of records answered.
    counter CacheHits("heddle_state_cache_hits_total");
    /// Reads that had to ask the tables.
    counter CacheMisses("heddle_state_cache_misses_total");
    /// Bytes of records in the caches.
    gauge CacheBytes("heddle_state_cache_bytes");
    /// Bytes of writes that the tables may not hold yet.
    gauge DeltaBytes("heddle_state_delta_bytes");
    /// Reads refused because their snapshot was too far behind.
    counter ViewsRefused("heddle_state_views_refused_total");
}
