//! The metrics of the role. Those of calls are what programs' executors say of themselves, as far as it can be.

base::events! {
    /// Executors that have not begun yet.
    gauge ExecutorsStarting("heddle_executors_starting");
    /// Executors that serve their programs.
    gauge ExecutorsServing("heddle_executors_serving");
    /// Executors that have messages and take none, for a quarter of the silence that is allowed or longer.
    gauge ExecutorsSick("heddle_executors_sick");
    /// Executors that were killed and have not ended yet.
    gauge ExecutorsEnding("heddle_executors_ending");
    /// Executors that were started.
    counter ExecutorsStarted("heddle_executors_started_total");
    /// Executors that ended with their program, or because it closed its connection.
    counter EndedWithProgram("heddle_executors_ended_with_program_total");
    /// Executors that needed more than their memory and their storage, or than their owner's memory.
    counter EndedForMemory("heddle_executors_ended_for_memory_total");
    /// Executors that were killed because they did not answer, or did not begin.
    counter EndedForSilence("heddle_executors_ended_for_silence_total");
    /// Executors that were killed because the role stopped.
    counter EndedWithRole("heddle_executors_ended_with_role_total");
    /// Executors that ended in any other way: by a signal, or because a side broke the protocol.
    counter EndedOtherwise("heddle_executors_ended_otherwise_total");
    /// Programs that were refused because they have as many executors as one owner may have, or because there are as many as there may be.
    counter RefusedFull("heddle_executors_refused_full_total");
    /// Programs that were refused because their user may have no executors.
    counter RefusedOwner("heddle_executors_refused_owner_total");
    /// Programs that were refused because of another release, or of a processor that has what this host's lacks.
    counter RefusedRelease("heddle_executors_refused_release_total");
    /// Hellos that were refused because of what they ask for or contain.
    counter RefusedHello("heddle_executors_refused_hello_total");
    /// Programs that were refused because no executor could be started.
    counter RefusedStart("heddle_executors_refused_start_total");
    /// Programs that were refused because the role is stopping.
    counter RefusedStopping("heddle_executors_refused_stopping_total");
    /// Connections that were closed without a hello: others came, or their time was over.
    counter StrangersClosed("heddle_executors_strangers_closed_total");
    /// Functions that executors have begun.
    counter CallsBegun("heddle_executors_calls_begun_total");
    /// Calls whose function returned.
    counter CallsReturned("heddle_executors_calls_returned_total");
    /// Calls whose function a signal ended.
    counter CallsSignalled("heddle_executors_calls_signalled_total");
    /// Calls whose function its limit ended.
    counter CallsKilled("heddle_executors_calls_killed_total");
    /// Calls that were cancelled before their function began.
    counter CallsCancelled("heddle_executors_calls_cancelled_total");
    /// Calls that executors refused, because too many others waited.
    counter CallsBusy("heddle_executors_calls_busy_total");
    /// Calls that wait for their turn.
    gauge CallsWaiting("heddle_executors_calls_waiting");
    /// Functions that run.
    gauge ContextsRunning("heddle_executors_contexts_running");
    /// Functions that may run at the same time in the executors that there are.
    gauge Contexts("heddle_executors_contexts");
    /// Bytes that the executors use, if their memory is limited.
    gauge MemoryBytes("heddle_executors_memory_bytes");
}
