// Uses functions that are pushed down in every way that could go wrong. Each case is one argument: it prints "ok" and exits with 0,
// or says what is wrong and exits with 1.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"

static const struct {
    const char *name;
    void (*run)(void);
    unsigned contexts, limit_ms, silence_ms;
} CASES[] = {
    {"empty", empty, 0, 0, 0},
    {"statics", statics, 0, 0, 0},
    {"thread_local", thread_local_variables, 0, 0, 0},
    {"stack", stack, 0, 0, 0},
    {"function_pointer", function_pointer, 0, 0, 0},
    {"list", list, 0, 0, 0},
    {"allocate", allocate, 0, 0, 0},
    {"many_pages", many_pages, 0, 0, 0},
    {"unmapped", unmapped, 0, 0, 0},
    {"mmap", mappings, 0, 0, 0},
    {"file_mapping", file_mapping, 0, 0, 0},
    {"mremap", moves, 0, 0, 0},
    {"mprotect", protections, 0, 0, 0},
    {"shared_mapping", shared_mapping, 0, 0, 0},
    {"syncmem", syncmem, 0, 0, 0},
    {"syncmem_before_calls", syncmem_before_calls, 0, 0, 0},
    {"kinds", kinds, 0, 0, 0},
    {"scattered", scattered, 0, 0, 0},
    {"fork_large", fork_large, 0, 0, 0},
    {"fork_beside", fork_beside, 0, 0, 0},
    {"fork_beside_allocation", fork_beside_allocation, 0, 0, 0},
    {"far_memory", far_memory, 0, 0, 0},
    {"far_beside", far_beside, 0, 0, 0},
    {"far_refused", far_refused, 0, 0, 0},
    {"far_evicted", far_evicted, 0, 0, 0},
    {"far_dropped", far_dropped, 0, 0, 0},
    {"far_stored", far_stored, 2, 0, 0},
    {"litmus", litmus, 5, 0, 0},
    {"histories", histories, 4, 0, 0},
    {"blocks", blocks, 2, 0, 0},
    {"blocks_trimmed", blocks_trimmed, 2, 0, 0},
    {"blocks_threads", blocks_threads, 2, 0, 0},
    {"blocks_library", blocks_library, 2, 0, 0},
    {"blocks_alarms", blocks_alarms, 2, 0, 0},
    {"lines_of_both", lines_of_both, 2, 0, 0},
    {"lost_calls", lost_calls, 3, 0, 0},
    {"lost_faults", lost_faults, 0, 0, 0},
    {"killed", killed, 2, 0, 0},
    {"slots_changed", slots_changed, 2, 0, 0},
    {"dropped_ahead", dropped_ahead, 0, 0, 0},
    {"moved_ahead", moved_ahead, 0, 0, 0},
    {"freed", freed, 0, 0, 0},
    {"neighbours", neighbours, 0, 0, 0},
    {"constant_written", constant_written, 0, 0, 0},
    {"without_access", without_access, 0, 0, 0},
    {"served_elsewhere", served_elsewhere, 0, 0, 0},
    {"files", files, 0, 0, 0},
    {"stdio", stdio, 0, 0, 0},
    {"getpid", identity, 0, 0, 0},
    {"time", times, 0, 0, 0},
    {"qsort", library_functions, 0, 0, 0},
    {"wide_characters", wide_characters, 0, 0, 0},
    {"rounding", rounding, 0, 0, 0},
    {"dlsym", found_functions, 0, 0, 0},
    {"dlopen", loaded_library, 0, 0, 0},
    {"fork", forks, 0, 0, 0},
    {"exit", exits, 0, 0, 0},
    {"signals", signals, 0, 0, 0},
    {"mutex", mutexes, 0, 0, 0},
    {"condition", conditions, 0, 0, 0},
    {"atomics", atomics, 0, 0, 0},
    {"false_sharing", false_sharing, 0, 0, 0},
    {"threads", threads, 4, 0, 0},
    {"threads_in_turn", threads, 1, 0, 0},
    {"contexts", contexts, 2, 0, 0},
    {"sigsegv", sigsegv, 0, 0, 0},
    {"sigfpe", sigfpe, 0, 0, 0},
    {"sigill", sigill, 0, 0, 0},
    {"sigbus", sigbus, 0, 0, 0},
    {"recursion", recursion, 0, 0, 0},
    {"abort", aborts, 0, 0, 0},
    {"null_function", null_function, 0, 0, 0},
    {"nested", nested, 0, 0, 0},
    {"unknown_flags", unknown_flags, 0, 0, 0},
    {"lost", lost, 0, 0, 0},
    {"timeout", timeout, 0, 0, 0},
    {"timeout_of_running", timeout_of_running, 0, 0, 0},
    {"or_here", or_here, 0, 0, 0},
    {"again", again, 0, 0, 0},
    {"try_cancel", try_cancel, 0, 0, 0},
    {"terms_are_checked", terms_are_checked, 0, 0, 0},
    {"busy", busy, 1, 0, 0},
    {"cancel_races", cancel_races, 2, 0, 0},
    {"limit", limit, 0, 0, 0},
    {"limit_of_page_given_back", limit_of_page_given_back, 0, 0, 0},
    {"limit_of_options", limit_of_options, 0, 50, 0},
    {"limit_beside", limit_beside, 2, 0, 0},
    {"limit_faults", limit_faults, 2, 0, 0},
    {"limit_in_system_call", limit_in_system_call, 1, 0, 0},
    {"limit_in_lock", limit_in_lock, 0, 0, 0},
    {"limit_mappings", limit_mappings, 0, 0, 0},
    {"limit_races", limit_races, 2, 0, 0},
    {"call_times", call_times, 0, 0, 0},
    {"message_counts", message_counts, 0, 0, 0},
    {"sent_ahead", sent_ahead, 0, 0, 0},
    {"imitated_link", imitated_link, 0, 0, 0},
    {"frozen", frozen, 0, 0, 1500},
    {"frozen_queue", frozen_queue, 1, 0, 800},
    {"frozen_page", frozen_page, 0, 0, 800},
    {"frozen_ring", frozen_ring, 0, 0, 800},
    {"busy_is_not_frozen", busy_is_not_frozen, 0, 0, 1200},
    {"stopped_together", stopped_together, 1, 0, 1500},
    {"counter", counter, 0, 0, 0},
    {"watcher", watcher, 0, 0, 0},
    {"neighbours_written", neighbours_written, 0, 0, 0},
    {"handover", handover, 0, 0, 0},
    {"byte_ranges", byte_ranges, 0, 0, 0},
    {"other_mode", other_mode, 2, 0, 0},
    {"mixed_modes", mixed_modes, 0, 0, 0},
    {"moved_and_copied", moved_and_copied, 0, 0, 0},
    {"stress", stress, 2, 0, 0},
};

int main(int count, char **arguments) {
    for (size_t i = 0; count == 2 && i < sizeof CASES / sizeof CASES[0]; i++) {
        if (strcmp(CASES[i].name, arguments[1]) != 0) continue;
        struct heddle_pushdown_options options = {
            .size = sizeof options,
            .contexts = CASES[i].contexts,
            .limit_ms = CASES[i].limit_ms,
            .silence_ms = CASES[i].silence_ms,
            .storage = getenv("PUSHDOWN_STORAGE"),
            .memory = EXECUTOR_MEMORY,
        };
        int kind = heddle_pushdown_open(&options);
        if (kind != HEDDLE_PUSHDOWN_OK) {
            fprintf(stderr, "not opened (kind %d): %s\n", kind, heddle_pushdown_reason());
            return 1;
        }
        CHECK(strcmp(heddle_pushdown_reason(), "") == 0);
        CASES[i].run();
        puts("ok");
        return 0;
    }
    fprintf(stderr, "usage: features CASE\n");
    return 2;
}
