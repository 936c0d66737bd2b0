// What the cases about terms share: threads that call on terms, and a context that is kept busy.
#ifndef TERMS_H
#define TERMS_H

#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

// A thread that pushes a function down on terms, and what came of it.
struct caller_thread {
    pthread_t thread;
    void (*function)(void *);
    void *argument;
    struct heddle_pushdown_terms terms;
    struct heddle_pushdown_ticket ticket;
    int kind;
    struct heddle_pushdown_failure failure;
};

void start_caller(struct caller_thread *caller, void (*function)(void *), void *argument);
void join_caller(struct caller_thread *caller, int kind);

// Keeps a context busy until it is released.
struct busy {
    _Alignas(4096) atomic_int has_begun;
    _Alignas(4096) atomic_int is_released;
};
void stays(void *argument);
void wait_for_begin(struct busy *busy);
void release(struct busy *busy);

void rest(long milliseconds);
long milliseconds_now(void);
struct heddle_pushdown_statistics statistics_now(void);
int is_torn(const void *address);

#endif
