//! The metrics of storage: counts and times.

base::events! {
    /// Blocks appended to block stores.
    counter BlocksAppended("heddle_storage_blocks_appended_total");
    /// Bytes appended to block stores, headers and transaction lists included.
    counter BlockBytesAppended("heddle_storage_block_bytes_appended_total");
    /// Segments of block stores that were sealed.
    counter SegmentsSealed("heddle_storage_segments_sealed_total");
    /// Incomplete last records that were removed when a block store was opened.
    counter TornTailsTruncated("heddle_storage_torn_tails_truncated_total");
    /// Damaged structures found, at opening or at reading.
    counter CorruptionsFound("heddle_storage_corruptions_found_total");
    /// Requests to make a file durable.
    counter SyncsRequested("heddle_storage_syncs_requested_total");
    /// Rounds of fsync; each serves every request that waited when it began.
    counter SyncRounds("heddle_storage_sync_rounds_total");
    /// Files synced in rounds of fsync.
    counter FilesSynced("heddle_storage_files_synced_total");
    /// Time of one round of fsync.
    histogram SyncRoundTime("heddle_storage_sync_round_seconds", seconds);
    /// Rows written to world-state tables, deletions included.
    counter RowsWritten("heddle_storage_rows_written_total");
    /// Row versions removed by pruning.
    counter RowsPruned("heddle_storage_rows_pruned_total");
    /// Row lookups answered from the table of newest versions, without searching the engine.
    counter HintHits("heddle_storage_hint_hits_total");
    /// Row lookups that had to search the engine for the newest version.
    counter HintMisses("heddle_storage_hint_misses_total");
    /// Time to make written rows and their savepoint durable.
    histogram PersistTime("heddle_storage_persist_seconds", seconds);
    /// Newer primaries that storage nodes admitted.
    counter EpochsStarted("heddle_storage_node_epochs_started_total");
    /// Writes of older primaries that storage nodes refused.
    counter WritesFenced("heddle_storage_node_writes_fenced_total");
    /// Times that appends waited because the savepoint of a storage node was too far behind.
    counter AppendsHeldBack("heddle_storage_node_appends_held_back_total");
    /// Blocks that storage nodes materialised.
    counter BlocksMaterialized("heddle_storage_node_blocks_materialized_total");
    /// Time to materialise blocks durably.
    histogram MaterializeTime("heddle_storage_node_materialize_seconds", seconds);
    /// Links that clients opened to storage nodes.
    counter NodeLinksOpened("heddle_storage_node_client_links_total");
    /// Blocks that clients sent to storage nodes again after a lost link.
    counter BlocksResent("heddle_storage_node_client_blocks_resent_total");
    /// Links on which a storage node had fewer rows than it had reported durable.
    counter RowsLost("heddle_storage_node_client_rows_lost_total");
    /// Watermarks of channels that could not be written: until a later one is written, an older copy of the data may pass
    /// for the newest.
    counter WatermarksMissed("heddle_storage_watermarks_missed_total");
    /// Blocks whose keys were entered into the history of a channel.
    counter BlocksIndexed("heddle_storage_history_blocks_total");
}
