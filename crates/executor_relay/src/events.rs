//! The metrics of the relay.

base::events! {
    /// Programs whose executors run on another host, at this moment; counted at either end of the relay.
    gauge RelaySessions("heddle_executor_relay_sessions");
    /// Programs that got an executor on another host.
    counter RelayStarted("heddle_executor_relay_started_total");
    /// Programs that got none, for whatever reason.
    counter RelayRefused("heddle_executor_relay_refused_total");
    /// Sessions that ended because the link between both hosts did.
    counter RelayLinksLost("heddle_executor_relay_links_lost_total");
    /// Sessions that ended because an end of the area or the link broke its rules.
    counter RelayBroken("heddle_executor_relay_broken_total");
    /// Messages with frames that were sent to the other host.
    counter RelayMessages("heddle_executor_relay_messages_total");
    /// Bytes of frames that were sent to the other host.
    counter RelayBytes("heddle_executor_relay_bytes_total");
}
