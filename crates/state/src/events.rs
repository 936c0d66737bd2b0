//! Events of the world state.

base::events! {
    /// Reads answered from the writes since the savepoint.
    counter DeltaHits("heddle_state_delta_hits_total");
    /// Reads answered from the cache of records.
    counter CacheHits("heddle_state_cache_hits_total");
    /// Reads that had to read the tables.
    counter CacheMisses("heddle_state_cache_misses_total");
    /// Bytes of records in the caches.
    gauge CacheBytes("heddle_state_cache_bytes");
    /// Bytes of writes that the tables may not hold yet.
    gauge DeltaBytes("heddle_state_delta_bytes");
    /// Reads rejected because their snapshot was too far behind.
    counter ViewsRejected("heddle_state_views_rejected_total");
    /// Bytes that the metadata caches of disaggregated states are charged with.
    gauge MetadataCacheBytes("heddle_state_metadata_cache_bytes");
    /// Bytes that the data caches of disaggregated states are charged with.
    gauge DataCacheBytes("heddle_state_data_cache_bytes");
    /// Look-ups of a key whose newest version the metadata cache knew.
    counter MetadataCacheHits("heddle_state_metadata_cache_hits_total");
    /// Look-ups of a key that the metadata cache did not know.
    counter MetadataCacheMisses("heddle_state_metadata_cache_misses_total");
    /// Reads answered from the data cache.
    counter DataCacheHits("heddle_state_data_cache_hits_total");
    /// Reads whose version was known but whose value was not in the data cache.
    counter DataCacheMisses("heddle_state_data_cache_misses_total");
    /// Steps from a version that was too new to the one before.
    counter ChainSteps("heddle_state_chain_steps_total");
    /// Reads that started over because their lease ended during the read.
    counter ReadsLate("heddle_state_reads_late_total");
    /// Buckets of the index that did not belong to the subtable expected there.
    counter DirectoriesStale("heddle_state_directories_stale_total");
    /// Records under a live lease, in a live section, whose bytes could not be trusted: damage, or a defect.
    counter RecordsUntrusted("heddle_state_records_untrusted_total");
    /// Reads of keys from storage.
    counter StorageReads("heddle_state_storage_reads_total");
    /// Pages of ranges read from storage.
    counter RangePages("heddle_state_range_pages_total");
    /// Versions that memory had lost and storage materialised again.
    counter VersionsRefetched("heddle_state_versions_refetched_total");
    /// Records that were brought from storage to remote memory.
    counter Fills("heddle_state_fills_total");
    /// Fills dropped because the key changed meanwhile.
    counter FillsDropped("heddle_state_fills_dropped_total");
    /// Versions for which remote memory had no space, kept in the delta until storage has them.
    counter VersionsNotInMemory("heddle_state_versions_not_in_memory_total");
    /// Versions that could not be linked to their successor.
    counter LinksMissed("heddle_state_links_missed_total");
    /// Index slots that differed from what the primary had written there: damage, or a defect.
    counter SlotsMissed("heddle_state_slots_missed_total");
    /// Parts of the index that were split.
    counter SubtablesSplit("heddle_state_subtables_split_total");
    /// Sections that were adopted with what an earlier primary left in them.
    counter SectionsAdopted("heddle_state_sections_adopted_total");
    /// Sections of an earlier primary that were returned, because their content was damaged or out of date.
    counter SectionsNotAdopted("heddle_state_sections_not_adopted_total");
    /// Parts of the index that were adopted.
    counter SubtablesAdopted("heddle_state_subtables_adopted_total");
    /// Parts of an adopted index that were dropped because they were damaged.
    counter SubtablesDropped("heddle_state_subtables_dropped_total");
    /// Records in adopted memory that the index led to when the memory had been surveyed.
    counter RecordsAdopted("heddle_state_records_adopted_total");
    /// Keys of adopted memory that were written again, because the index might have lacked their newest version.
    counter KeysMended("heddle_state_keys_mended_total");
    /// Time until the free space of adopted memory was known.
    histogram SurveyTime("heddle_state_survey_seconds", seconds);
    /// Sections leased from the pool.
    counter SectionsLeased("heddle_state_sections_leased_total");
    /// Sections abandoned because they were lost or a verb to them was ambiguous.
    counter SectionsGivenUp("heddle_state_sections_given_up_total");
    /// Sections moved to another memory node while they were in use.
    counter SectionsMigrated("heddle_state_sections_migrated_total");
    /// Sections emptied and returned because the budget was lowered, or their memory node was vacated.
    counter SectionsDrained("heddle_state_sections_drained_total");
    /// Parts of the index that were moved out of sections being emptied.
    counter SubtablesMoved("heddle_state_subtables_moved_total");
    /// Unreachable records that a sweep found.
    counter OrphansFound("heddle_state_orphans_found_total");
    /// Records evicted from remote memory.
    counter RecordsEvicted("heddle_state_evicted_records_total");
    /// Bytes that evicted records took in remote memory.
    counter BytesEvicted("heddle_state_evicted_bytes_total");
    /// Superseded versions evicted although a view may still ask for them: storage has them.
    counter SupersededEvicted("heddle_state_evicted_superseded_total");
    /// Passes of eviction over remote memory.
    counter EvictionPasses("heddle_state_eviction_passes_total");
    /// Records that eviction left in place because they were in use.
    counter EvictionsSpared("heddle_state_eviction_spared_total");
    /// Times that eviction had storage materialise blocks, for want of records that storage has.
    counter EvictionsPersisting("heddle_state_eviction_persists_total");
    /// Time of a pass of eviction over remote memory.
    histogram EvictionTime("heddle_state_eviction_seconds", seconds);
    /// Bytes of remote memory that became free again after eviction or supersession.
    counter BytesReclaimed("heddle_state_reclaimed_bytes_total");
    /// Bytes of remote memory leased, as last reported by a state.
    gauge RemoteBytesLeased("heddle_state_remote_leased_bytes");
    /// Bytes of the leased remote memory that are free, as last reported by a state.
    gauge RemoteBytesFree("heddle_state_remote_free_bytes");
    /// Blocks that followers have applied.
    counter BlocksFollowed("heddle_state_follower_blocks_total");
    /// Answers that a follower withheld for want of a lease.
    counter ReadsWithoutLease("heddle_state_reads_without_lease_total");
    /// Time to apply a block.
    histogram ApplyTime("heddle_state_apply_seconds", seconds);
}
