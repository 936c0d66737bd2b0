//! Planted mistakes, each of which the simulation's checkers must find ([`base::rt::fault`]).

base::mutants! {
    "manager" {
        /// An action is executed before the record that announces it is durable.
        ActUnrecorded,
        /// A record is stored, and an action executed, although a newer manager has started.
        IgnoreFence,
        /// A node is launched without being recorded.
        ForgetLaunch,
        /// A peer shrinks as soon as it is not hot.
        NoHysteresis,
        /// A peer changes again at once.
        NoCooldown,
        /// A peer gets more nodes than its limit.
        LaunchBeyondLimit,
        /// A node gets a larger quota than its limit.
        RaiseBeyondLimit,
        /// A peer gets more memory than its limit.
        GrowBeyondLimit,
        /// A node is launched while another one could get a larger quota.
        NodesFirst,
        /// Nodes of the plan are drained too.
        DrainPlanned,
        /// A launched node that no record names is left running.
        KeepStray,
        /// A launched node that has fallen silent is left running.
        KeepSilent,
        /// The last report of a silent node counts as its load.
        CountSilent,
        /// Memory grows whenever it is full, whatever its misses cost.
        GrowWhenFull,
        /// Memory goes on growing although its last growth has saved nothing.
        GrowInVain,
        /// A quota that was lost with its process is not set again.
        LoseQuota,
        /// A storage process is stopped although a peer has a copy there.
        StopHolder,
        /// A storage process is stopped although a peer was not heard.
        StopUnheard,
        /// A storage process is started as soon as a copy is lost.
        StartAtOnce,
        /// A storage process without a copy is left running.
        KeepIdle,
        /// No storage process is started for a peer that lacks a copy.
        KeepStopped,
        /// What a peer lacks is forgotten whenever its primary does not answer.
        ForgetLacking,
    }
}
