// The cases of `features`.
#ifndef CASES_H
#define CASES_H

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
void freed(void);
void neighbours(void);
void constant_written(void);
void without_access(void);

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

#endif
