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
    /// Bytes that the metadata caches of disaggregated states are charged with.
    gauge MetadataCacheBytes("heddle_state_metadata_cache_bytes");
    /// Bytes that the data caches of disaggregated states are charged with.
    gauge DataCacheBytes("heddle_state_data_cache_bytes");
    /// Look-ups of a key whose newest version the metadata cache knew.
    counter MetadataCacheHits("heddle_state_metadata_cache_hits_total");
    /// Look-ups of a key of which the metadata cache knew nothing.
    counter MetadataCacheMisses("heddle_state_metadata_cache_misses_total");
    /// Reads that the data cache answered.
    counter DataCacheHits("heddle_state_data_cache_hits_total");
    /// Reads whose version was known and whose value the data cache did not have.
    counter DataCacheMisses("heddle_state_data_cache_misses_total");
    /// Steps from a version that was too new to the one before.
    counter ChainSteps("heddle_state_chain_steps_total");
    /// Reads that began anew because their lease ended under them.
    counter ReadsLate("heddle_state_reads_late_total");
    /// Buckets of the index that did not belong to the subtable expected there.
    counter DirectoriesStale("heddle_state_directories_stale_total");
    /// Records under a live lease, in a section that is there, whose bytes were not to be trusted: damage, or a defect.
    counter RecordsUntrusted("heddle_state_records_untrusted_total");
    /// Reads of keys that were asked of storage.
    counter StorageReads("heddle_state_storage_reads_total");
    /// Pages of ranges that were asked of storage.
    counter RangePages("heddle_state_range_pages_total");
    /// Versions that memory had lost and storage made again.
    counter VersionsRefetched("heddle_state_versions_refetched_total");
    /// Records that were brought from storage to remote memory.
    counter Fills("heddle_state_fills_total");
    /// Fills given up because the key changed meanwhile.
    counter FillsDropped("heddle_state_fills_dropped_total");
    /// Versions for which remote memory had no place, kept in the delta until storage has them.
    counter VersionsNotInMemory("heddle_state_versions_not_in_memory_total");
    /// Versions that could not be linked to their successor.
    counter LinksMissed("heddle_state_links_missed_total");
    /// Index slots that were not what the primary had left there: damage, or a defect.
    counter SlotsMissed("heddle_state_slots_missed_total");
    /// Parts of the index that were split.
    counter SubtablesSplit("heddle_state_subtables_split_total");
    /// Sections leased from the pool.
    counter SectionsLeased("heddle_state_sections_leased_total");
    /// Sections given up, because they were lost or a verb to them was ambiguous.
    counter SectionsGivenUp("heddle_state_sections_given_up_total");
    /// Sections emptied and given back because the budget was lowered.
    counter SectionsDrained("heddle_state_sections_drained_total");
    /// Parts of the index that were moved out of sections that are emptied.
    counter SubtablesMoved("heddle_state_subtables_moved_total");
    /// Records found to which nothing led any more.
    counter OrphansFound("heddle_state_orphans_found_total");
    /// Records evicted from remote memory.
    counter RecordsEvicted("heddle_state_evicted_records_total");
    /// Bytes that evicted records took in remote memory.
    counter BytesEvicted("heddle_state_evicted_bytes_total");
    /// Superseded versions evicted although a view may still ask for them: storage has them.
    counter SupersededEvicted("heddle_state_evicted_superseded_total");
    /// Times that eviction went over remote memory.
    counter EvictionPasses("heddle_state_eviction_passes_total");
    /// Records that eviction left where they are because they were in use.
    counter EvictionsSpared("heddle_state_eviction_spared_total");
    /// Times that eviction had storage make rows, for want of records that it has.
    counter EvictionsPersisting("heddle_state_eviction_persists_total");
    /// Time that eviction takes to go over remote memory.
    histogram EvictionTime("heddle_state_eviction_seconds", seconds);
    /// Bytes of remote memory that superseded versions have given back.
    counter BytesReclaimed("heddle_state_reclaimed_bytes_total");
    /// Bytes of remote memory that the last state to look has leased.
    gauge RemoteBytesLeased("heddle_state_remote_leased_bytes");
    /// Bytes that are free of the remote memory that the last state to look has leased.
    gauge RemoteBytesFree("heddle_state_remote_free_bytes");
    /// Readers that follow this primary.
    gauge Readers("heddle_state_readers");
    /// Times that a reader joined its primary.
    counter ReadersJoined("heddle_state_readers_joined_total");
    /// Times that a reader was fenced, because its link was lost or it did not keep up.
    counter ReadersFenced("heddle_state_readers_fenced_total");
    /// Pieces of work that readers have done for the primary, and that counted.
    counter PiecesDone("heddle_state_reader_pieces_total");
    /// Pieces of work that a reader was given and did not do, not in time, or not under a lease: the primary did them itself.
    counter PiecesFailed("heddle_state_reader_pieces_failed_total");
    /// Blocks that readers have put in force.
    counter BlocksFollowed("heddle_state_reader_blocks_total");
    /// Answers that a reader did not give for want of a lease.
    counter ReadsWithoutLease("heddle_state_reads_without_lease_total");
    /// Time to apply a block.
    histogram ApplyTime("heddle_state_apply_seconds", seconds);
}
