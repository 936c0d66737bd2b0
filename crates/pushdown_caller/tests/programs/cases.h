// The cases of `features`.
#ifndef CASES_H
#define CASES_H

#include <sys/types.h>

#include "heddle_pushdown.h"

// memory.c
void empty(void);
void statics(void);
void thread_local_variables(void);
void stack(void);
void function_pointer(void);
void list(void);
void allocate(void);
void many_pages(void);
void syncmem(void);

// mappings.c
void unmapped(void);
void mappings(void);
void file_mapping(void);
void moves(void);
void protections(void);
void shared_mapping(void);

// unusual_memory.c
void kinds(void);
void scattered(void);
void fork_large(void);
void fork_beside(void);
void fork_beside_allocation(void);
void far_memory(void);
void far_beside(void);
void far_refused(void);
void far_evicted(void);
void far_dropped(void);
void far_stored(void);
void freed(void);
void neighbours(void);
void constant_written(void);
void without_access(void);
void served_elsewhere(void);

// system.c
void files(void);
void stdio(void);
void identity(void);
void times(void);
void library_functions(void);
void wide_characters(void);
void rounding(void);
void found_functions(void);
void loaded_library(void);
void forks(void);
void exits(void);
void signals(void);

// threads.c
void mutexes(void);
void conditions(void);
void atomics(void);
void false_sharing(void);
void threads(void);
void contexts(void);

// litmus.c
void litmus(void);

// histories.c
void histories(void);

// changing.c
void blocks(void);
void blocks_trimmed(void);
void blocks_threads(void);
void blocks_library(void);
void blocks_alarms(void);
void lines_of_both(void);

// slots.c
void slots_changed(void);
void dropped_ahead(void);
void moved_ahead(void);

// modes.c
void counter(void);
void watcher(void);
void neighbours_written(void);
void handover(void);
void byte_ranges(void);
void other_mode(void);
void mixed_modes(void);
void moved_and_copied(void);
void stress(void);

// failures.c
void sigsegv(void);
void sigfpe(void);
void sigill(void);
void sigbus(void);
void recursion(void);
void aborts(void);
void null_function(void);
void nested(void);
void unknown_flags(void);
void lost(void);
void lost_calls(void);
void lost_faults(void);
void killed(void);

// terms.c
void timeout(void);
void timeout_of_running(void);
void or_here(void);
void again(void);
void try_cancel(void);
void terms_are_checked(void);
void busy(void);
void cancel_races(void);

// limits.c
void limit(void);
void limit_of_page_given_back(void);
void limit_of_options(void);
void limit_beside(void);
void limit_faults(void);
void limit_in_system_call(void);
void limit_in_lock(void);
void limit_mappings(void);
void limit_races(void);

// measured.c
void call_times(void);
void message_counts(void);
void sent_ahead(void);
void syncmem_before_calls(void);
void imitated_link(void);

// silence.c
void frozen(void);
void frozen_queue(void);
void frozen_page(void);
void frozen_ring(void);
void busy_is_not_frozen(void);
void stopped_together(void);

// failures.c, for others
pid_t executor_process(void);
void stop_executor(pid_t executor);
void wait_for_end_of(pid_t executor);
int call_deeply(void (*function)(void *), struct heddle_pushdown_failure *failure);

#endif
