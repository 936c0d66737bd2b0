// Time-outs, tickets, and what follows a call that was cancelled.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "cases.h"
#include "terms.h"

static void *calls(void *argument) {
    struct caller_thread *caller = argument;
    caller->kind = heddle_pushdown_with(caller->function, caller->argument, &caller->terms, &caller->failure);
    return NULL;
}

void start_caller(struct caller_thread *caller, void (*function)(void *), void *argument) {
    caller->function = function;
    caller->argument = argument;
    caller->terms.size = sizeof caller->terms;
    caller->terms.ticket = &caller->ticket;
    CHECK(pthread_create(&caller->thread, NULL, calls, caller) == 0);
}

void join_caller(struct caller_thread *caller, int kind) {
    CHECK(pthread_join(caller->thread, NULL) == 0);
    check_kind(caller->kind, &caller->failure, kind, __LINE__);
    CHECK(caller->failure.kind == kind);
}

void rest(long milliseconds) {
    struct timespec time = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    while (nanosleep(&time, &time) != 0) {}
}

long milliseconds_now(void) {
    struct timespec time;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

void stays(void *argument) {
    struct busy *busy = argument;
    atomic_store(&busy->has_begun, 1);
    while (!atomic_load(&busy->is_released)) rest(1);
}

void wait_for_begin(struct busy *busy) {
    while (!atomic_load(&busy->has_begun)) rest(1);
}

void release(struct busy *busy) { atomic_store(&busy->is_released, 1); }

struct heddle_pushdown_statistics statistics_now(void) {
    struct heddle_pushdown_statistics statistics = {.size = sizeof statistics};
    CHECK(heddle_pushdown_statistics(&statistics) == HEDDLE_PUSHDOWN_OK);
    return statistics;
}

static void counts(void *argument) { ++*(int *)argument; }

static int with(void (*function)(void *), void *argument, unsigned flags, unsigned timeout_ms) {
    struct heddle_pushdown_terms terms = {.size = sizeof terms, .flags = flags, .timeout_ms = timeout_ms};
    struct heddle_pushdown_failure failure = {0};
    int kind = heddle_pushdown_with(function, argument, &terms, &failure);
    CHECK(failure.kind == kind && failure.signal == 0);
    return kind;
}

// A call that waits for its turn is removed when its time-out has passed, and not before; its function never runs.
void timeout(void) {
    static struct busy busy;
    static struct caller_thread blocker;
    start_caller(&blocker, stays, &busy);
    wait_for_begin(&busy);
    int count = 0;
    long begin = milliseconds_now();
    CHECK(with(counts, &count, 0, 200) == HEDDLE_PUSHDOWN_CANCELLED);
    long took = milliseconds_now() - begin;
    CHECK(took >= 200 && took < 5000);
    release(&busy);
    join_caller(&blocker, HEDDLE_PUSHDOWN_OK);
    CALL(counts, &count);
    CHECK(count == 1);
    struct heddle_pushdown_statistics statistics = statistics_now();
    CHECK(statistics.calls == 3 && statistics.returned == 2 && statistics.cancelled == 1 && statistics.declined == 0);
    CHECK(statistics.open == 0 && statistics.running == 0 && statistics.queued_ns >= 150000000);
}

static void takes_a_while(void *argument) {
    rest(300);
    counts(argument);
}

// A function that has begun is not cancelled: its caller waits on.
void timeout_of_running(void) {
    int count = 0;
    CHECK(with(takes_a_while, &count, HEDDLE_PUSHDOWN_OR_HERE | HEDDLE_PUSHDOWN_AGAIN, 20) == HEDDLE_PUSHDOWN_OK);
    CHECK(count == 1 && statistics_now().declined == 1 && statistics_now().cancelled == 0);
    // It ends before its time-out, which then concerns nobody.
    CHECK(with(counts, &count, 0, 50) == HEDDLE_PUSHDOWN_OK);
    rest(150);
    CHECK(with(counts, &count, 0, 5000) == HEDDLE_PUSHDOWN_OK && count == 3);
    CHECK(statistics_now().declined == 1);
}

static __thread int here;

static void notes_place(void *argument) {
    here++;
    counts(argument);
}

// The function runs here, once, on the thread that has called.
void or_here(void) {
    static struct busy busy;
    static struct caller_thread blocker;
    start_caller(&blocker, stays, &busy);
    wait_for_begin(&busy);
    int count = 0;
    unsigned long long before = statistics_now().returned;
    CHECK(with(notes_place, &count, HEDDLE_PUSHDOWN_OR_HERE, 20) == HEDDLE_PUSHDOWN_OK);
    CHECK(count == 1 && here == 1 && statistics_now().returned == before && statistics_now().cancelled == 1);
    CHECK(with(notes_place, &count, HEDDLE_PUSHDOWN_OR_HERE | HEDDLE_PUSHDOWN_AGAIN, 1) == HEDDLE_PUSHDOWN_OK);
    CHECK(count == 2 && statistics_now().cancelled == 11);
    release(&busy);
    join_caller(&blocker, HEDDLE_PUSHDOWN_OK);
    // One that fails in the executor is not run here.
    struct heddle_pushdown_terms terms = {.size = sizeof terms, .flags = HEDDLE_PUSHDOWN_OR_HERE};
    CHECK(heddle_pushdown_with(NULL, NULL, &terms, NULL) == HEDDLE_PUSHDOWN_SIGNAL);
}

static void *releases_later(void *argument) {
    rest(150);
    release(argument);
    return NULL;
}

// The function is pushed down until its turn comes.
void again(void) {
    static struct busy busy;
    static struct caller_thread blocker;
    start_caller(&blocker, stays, &busy);
    wait_for_begin(&busy);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, releases_later, &busy) == 0);
    int count = 0;
    CHECK(with(counts, &count, HEDDLE_PUSHDOWN_AGAIN, 40) == HEDDLE_PUSHDOWN_OK && count == 1);
    CHECK(pthread_join(thread, NULL) == 0);
    join_caller(&blocker, HEDDLE_PUSHDOWN_OK);
    unsigned long long cancelled = statistics_now().cancelled;
    CHECK(cancelled >= 1 && cancelled < 10);
    // In vain: it ends.
    static struct busy second;
    static struct caller_thread other;
    start_caller(&other, stays, &second);
    wait_for_begin(&second);
    CHECK(with(counts, &count, HEDDLE_PUSHDOWN_AGAIN, 1) == HEDDLE_PUSHDOWN_CANCELLED && count == 1);
    CHECK(statistics_now().cancelled == cancelled + 10);
    release(&second);
    join_caller(&other, HEDDLE_PUSHDOWN_OK);
}

static void wait_for_ticket(const struct heddle_pushdown_ticket *ticket, unsigned long long other) {
    unsigned long long number;
    while ((number = __atomic_load_n(&ticket->number, __ATOMIC_ACQUIRE)) == other) rest(1);
}

// Another thread cancels: what waits is removed, what runs is not.
void try_cancel(void) {
    static struct busy busy;
    static struct caller_thread blocker, waiting, other;
    static int count;
    start_caller(&blocker, stays, &busy);
    wait_for_begin(&busy);
    start_caller(&waiting, counts, &count);
    start_caller(&other, counts, &count);
    wait_for_ticket(&waiting.ticket, 0);
    wait_for_ticket(&other.ticket, 0);
    CHECK(heddle_try_cancel(&blocker.ticket) == HEDDLE_PUSHDOWN_DECLINED);
    CHECK(heddle_try_cancel(&waiting.ticket) == HEDDLE_PUSHDOWN_OK);
    join_caller(&waiting, HEDDLE_PUSHDOWN_CANCELLED);
    CHECK(heddle_try_cancel(&waiting.ticket) == HEDDLE_PUSHDOWN_DECLINED);
    CHECK(heddle_try_cancel(&blocker.ticket) == HEDDLE_PUSHDOWN_DECLINED && count == 0);
    release(&busy);
    join_caller(&blocker, HEDDLE_PUSHDOWN_OK);
    join_caller(&other, HEDDLE_PUSHDOWN_OK);
    CHECK(count == 1 && heddle_try_cancel(&other.ticket) == HEDDLE_PUSHDOWN_DECLINED);
    struct heddle_pushdown_ticket unknown = {.number = 1000000}, none = {0};
    CHECK(heddle_try_cancel(&unknown) == HEDDLE_PUSHDOWN_REFUSED);
    CHECK(heddle_try_cancel(&none) == HEDDLE_PUSHDOWN_REFUSED && heddle_try_cancel(NULL) == HEDDLE_PUSHDOWN_REFUSED);
}

static void cancels_and_asks(void *argument) {
    struct heddle_pushdown_statistics statistics = {.size = sizeof statistics};
    CHECK(heddle_try_cancel(argument) == HEDDLE_PUSHDOWN_REFUSED);
    CHECK(heddle_pushdown_statistics(&statistics) == HEDDLE_PUSHDOWN_REFUSED);
    CHECK(heddle_pushdown_torn(NULL, 0) == 0);
    CHECK(heddle_pushdown_with(counts, argument, NULL, NULL) == HEDDLE_PUSHDOWN_REFUSED);
}

void terms_are_checked(void) {
    int count = 0;
    CHECK(heddle_pushdown_with(counts, &count, NULL, NULL) == HEDDLE_PUSHDOWN_OK && count == 1);
    struct heddle_pushdown_terms terms = {.size = sizeof terms - 8};
    CHECK(heddle_pushdown_with(counts, &count, &terms, NULL) == HEDDLE_PUSHDOWN_REFUSED);
    CHECK(with(counts, &count, 1u << 20, 0) == HEDDLE_PUSHDOWN_REFUSED && count == 1);
    // What follows a cancelled call is for terms alone.
    CHECK(heddle_pushdown(counts, &count, HEDDLE_PUSHDOWN_OR_HERE, NULL) == HEDDLE_PUSHDOWN_REFUSED && count == 1);
    struct heddle_pushdown_ticket ticket = {.number = 1};
    CALL(cancels_and_asks, &ticket);
    struct heddle_pushdown_statistics small = {.size = 8};
    CHECK(heddle_pushdown_statistics(&small) == HEDDLE_PUSHDOWN_REFUSED);
    CHECK(statistics_now().calls == 2);
}

enum { CALLERS = 80 };

// More calls than the queue holds.
void busy(void) {
    static struct busy busy;
    static struct caller_thread blocker, callers[CALLERS];
    static int counted[CALLERS];
    start_caller(&blocker, stays, &busy);
    wait_for_begin(&busy);
    int count = 0, refused = 0;
    for (int i = 0; i < CALLERS; i++) {
        callers[i].terms.flags = i % 2 ? HEDDLE_PUSHDOWN_OR_HERE : 0;
        start_caller(&callers[i], counts, &counted[i]);
        while (statistics_now().open + statistics_now().busy < (unsigned)i + 2) rest(1);
    }
    CHECK(with(counts, &count, HEDDLE_PUSHDOWN_OR_HERE, 0) == HEDDLE_PUSHDOWN_OK && count == 1);
    release(&busy);
    join_caller(&blocker, HEDDLE_PUSHDOWN_OK);
    for (int i = 0; i < CALLERS; i++) {
        CHECK(pthread_join(callers[i].thread, NULL) == 0);
        if (callers[i].kind == HEDDLE_PUSHDOWN_BUSY) refused++;
        else CHECK(callers[i].kind == HEDDLE_PUSHDOWN_OK);
        CHECK(i % 2 == 0 || callers[i].kind == HEDDLE_PUSHDOWN_OK);
        CHECK(counted[i] == (callers[i].kind == HEDDLE_PUSHDOWN_OK));
    }
    CHECK(refused == 8 && statistics_now().busy == 17);
}

struct race {
    struct caller_thread caller;
    int count;
};

// Many threads call and cancel each other: each function runs exactly once, or was removed.
static void *races(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int round = 0; round < 150; round++) {
        struct race race;
        memset(&race, 0, sizeof race);
        race.caller.terms.timeout_ms = rand_r(&seed) % 3;
        race.caller.terms.limit_ms = 60000;
        start_caller(&race.caller, counts, &race.count);
        wait_for_ticket(&race.caller.ticket, 0);
        int kind = heddle_try_cancel(&race.caller.ticket);
        CHECK(kind == HEDDLE_PUSHDOWN_OK || kind == HEDDLE_PUSHDOWN_DECLINED);
        CHECK(pthread_join(race.caller.thread, NULL) == 0);
        int ended = race.caller.kind;
        CHECK(kind == HEDDLE_PUSHDOWN_OK ? ended == HEDDLE_PUSHDOWN_CANCELLED
                                         : ended == HEDDLE_PUSHDOWN_OK || ended == HEDDLE_PUSHDOWN_CANCELLED);
        CHECK(race.count == (ended == HEDDLE_PUSHDOWN_OK));
    }
    return NULL;
}

void cancel_races(void) {
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, races, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    struct heddle_pushdown_statistics statistics = statistics_now();
    CHECK(statistics.calls == statistics.returned + statistics.cancelled && statistics.open == 0);
}
