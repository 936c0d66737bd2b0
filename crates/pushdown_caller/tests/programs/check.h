// What the programs share: how a check fails, and how a function is pushed down.
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "heddle_pushdown.h"

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)
// What the executor keeps in memory, if it has storage for the rest.
#define EXECUTOR_MEMORY (2 * MIB)

// Works in a pushed function too: the process ends. It does not use a stream of the program, whose lock may be held.
static inline void fail(const char *what, int line) {
    int error = errno;
    dprintf(STDERR_FILENO, "line %d: %s (errno: %s)\n", line, what, strerror(error));
    _exit(1);
}
#define CHECK(condition) do { if (!(condition)) fail(#condition, __LINE__); } while (0)

static inline void check_kind(int kind, const struct heddle_pushdown_failure *failure, int wanted, int line) {
    if (kind == wanted) return;
    dprintf(STDERR_FILENO, "line %d: the call ended with kind %d instead of %d (signal %d, code %d, address %p, instruction %p)\n",
            line, kind, wanted, failure->signal, failure->code, failure->address, failure->instruction);
    _exit(1);
}

// The mode in which a case is to run: a number, for those that work in each.
static inline unsigned mode_of_case(void) {
    const char *mode = getenv("PUSHDOWN_MODE");
    return mode == NULL ? 0 : (unsigned)(mode[0] - '0');
}

static inline void call_at(void (*function)(void *), void *argument, int line) {
    struct heddle_pushdown_failure failure;
    memset(&failure, 0, sizeof failure);
    int kind = heddle_pushdown(function, argument, mode_of_case(), &failure);
    check_kind(kind, &failure, HEDDLE_PUSHDOWN_OK, line);
}
// Pushes a function down that is to return.
#define CALL(function, argument) call_at(function, argument, __LINE__)

static inline struct heddle_pushdown_failure call_signalled_at(void (*function)(void *), void *argument, int signal, int line) {
    struct heddle_pushdown_failure failure;
    memset(&failure, 0, sizeof failure);
    int kind = heddle_pushdown(function, argument, mode_of_case(), &failure);
    check_kind(kind, &failure, HEDDLE_PUSHDOWN_SIGNAL, line);
    if (failure.kind != kind || failure.signal != signal) {
        dprintf(STDERR_FILENO, "line %d: kind %d, signal %d instead of %d (code %d, address %p, instruction %p)\n", line,
                failure.kind, failure.signal, signal, failure.code, failure.address, failure.instruction);
        _exit(1);
    }
    return failure;
}
// Pushes a function down that is to be ended by a signal.
#define CALL_SIGNALLED(function, argument, signal) call_signalled_at(function, argument, signal, __LINE__)

// How long a case of random accesses takes, in seconds: so long, or what the environment says.
static inline double stress_seconds(double usual) {
    const char *wanted = getenv("HEDDLE_STRESS_SECONDS");
    return wanted != NULL ? strtod(wanted, NULL) : usual;
}

#endif
