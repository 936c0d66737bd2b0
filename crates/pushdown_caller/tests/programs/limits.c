// Functions that run for longer than they may.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cases.h"
#include "terms.h"

static void counts(void *argument) { ++*(int *)argument; }

static void check_goes_on(void) {
    int count = 0;
    CALL(counts, &count);
    CHECK(count == 1);
}

static struct heddle_pushdown_failure call_killed(void (*function)(void *), void *argument, unsigned limit_ms) {
    struct heddle_pushdown_terms terms = {.size = sizeof terms, .limit_ms = limit_ms, .flags = HEDDLE_PUSHDOWN_OR_HERE};
    struct heddle_pushdown_failure failure = {0};
    long begin = milliseconds_now();
    int kind = heddle_pushdown_with(function, argument, &terms, &failure);
    long took = milliseconds_now() - begin;
    check_kind(kind, &failure, HEDDLE_PUSHDOWN_KILLED, __LINE__);
    CHECK(failure.kind == kind && failure.signal == 0 && took >= (long)limit_ms && took < (long)limit_ms + 5000);
    return failure;
}

int is_torn(const void *address) {
    size_t count = heddle_pushdown_torn(NULL, 0), found = 0;
    CHECK(count != HEDDLE_PUSHDOWN_TORN_UNKNOWN);
    struct heddle_pushdown_range *ranges = calloc(count + 1, sizeof *ranges);
    CHECK(ranges != NULL && heddle_pushdown_torn(ranges, count) == count);
    CHECK(ranges[count].start == NULL && ranges[count].bytes == 0);
    for (size_t i = 0; i < count; i++) {
        CHECK((uintptr_t)ranges[i].start % PAGE == 0 && ranges[i].bytes > 0 && ranges[i].bytes % PAGE == 0);
        CHECK(i == 0 || (char *)ranges[i - 1].start + ranges[i - 1].bytes < (char *)ranges[i].start);
        found += (uintptr_t)address - (uintptr_t)ranges[i].start < ranges[i].bytes;
    }
    free(ranges);
    return (int)found;
}

struct looping {
    _Alignas(4096) volatile uint64_t turns;
    _Alignas(4096) volatile uint64_t only_read;
    _Alignas(4096) volatile uint64_t untouched;
    _Alignas(4096) volatile uint64_t written_before;
};

static void loops(void *argument) {
    struct looping *looping = argument;
    for (;;) looping->turns += 1 + looping->only_read;
}

static void writes_before(void *argument) { ((struct looping *)argument)->written_before = 5; }

static void *has_no_torn_memory(void *argument) {
    CHECK(heddle_pushdown_torn(NULL, 0) == 0);
    return argument;
}

// An endless loop is ended, where it is, and its caller learns what it may have half-written.
void limit(void) {
    static struct looping looping;
    CHECK(heddle_pushdown_torn(NULL, 0) == 0);
    CALL(writes_before, &looping);
    for (int round = 0; round < 3; round++) {
        uint64_t before = looping.turns;
        struct heddle_pushdown_failure failure = call_killed(loops, &looping, 50);
        CHECK((uintptr_t)failure.instruction - (uintptr_t)loops < 1000 && looping.turns > before);
        CHECK(is_torn((void *)&looping.turns));
        CHECK(!is_torn((void *)&looping.only_read) && !is_torn((void *)&looping.untouched));
        check_goes_on();
    }
    // The executor has kept it, so that writing it again would have been no fault.
    CHECK(is_torn((void *)&looping.written_before));
    // Another thread's calls have nothing to do with it.
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, has_no_torn_memory, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(is_torn((void *)&looping.turns));
    struct heddle_pushdown_statistics statistics = statistics_now();
    CHECK(statistics.killed == 3 && statistics.signalled == 0 && statistics.running == 0);
    // Only the last killed calls are remembered.
    static struct caller_thread caller;
    for (int round = 0; round < 64; round++) {
        caller.terms.limit_ms = 1;
        start_caller(&caller, loops, &looping);
        join_caller(&caller, HEDDLE_PUSHDOWN_KILLED);
    }
    CHECK(heddle_pushdown_torn(NULL, 0) == HEDDLE_PUSHDOWN_TORN_UNKNOWN);
}

struct given_back {
    _Alignas(4096) volatile uint64_t word;
    _Alignas(4096) _Atomic int has_begun;
    _Alignas(4096) _Atomic int is_taken;
};

static void gives_back(void *argument) {
    struct given_back *given = argument;
    given->word++;
    atomic_store(&given->has_begun, 1);
    while (!atomic_load(&given->is_taken)) rest(1);
    for (;;) {}
}

static void writes_word(void *argument) { ((struct given_back *)argument)->word++; }

static void *takes_back(void *argument) {
    struct given_back *given = argument;
    while (!atomic_load(&given->has_begun)) rest(1);
    given->word++;
    atomic_store(&given->is_taken, 1);
    return NULL;
}

// A page that an earlier function wrote, so that writing it was no fault, and that this process has taken back since.
void limit_of_page_given_back(void) {
    static struct given_back given;
    CALL(writes_word, &given);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, takes_back, &given) == 0);
    call_killed(gives_back, &given, 500);
    CHECK(pthread_join(thread, NULL) == 0 && given.word == 3 && atomic_load(&given.is_taken));
    CHECK(is_torn((void *)&given.word));
}

// The limit of the options, which terms can replace.
void limit_of_options(void) {
    static struct looping looping;
    struct heddle_pushdown_failure failure = {0};
    CHECK(heddle_pushdown(loops, &looping, HEDDLE_PUSHDOWN_COHERENT, &failure) == HEDDLE_PUSHDOWN_KILLED);
    CHECK(failure.kind == HEDDLE_PUSHDOWN_KILLED);
    CHECK(heddle_pushdown_with(loops, &looping, NULL, &failure) == HEDDLE_PUSHDOWN_KILLED);
    call_killed(loops, &looping, 400);
    check_goes_on();
}

static _Atomic int is_stopped;

static void *calls_all_the_time(void *argument) {
    int *count = argument;
    int calls = 0;
    while (!atomic_load(&is_stopped)) {
        CALL(counts, count);
        CHECK(*count == ++calls);
    }
    return NULL;
}

// With two contexts: what runs in the other one goes on, however often a function is killed beside it.
void limit_beside(void) {
    static struct looping looping;
    static int count;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, calls_all_the_time, &count) == 0);
    for (int round = 0; round < 30; round++) {
        int before = *(volatile int *)&count;
        call_killed(loops, &looping, 20);
        while (*(volatile int *)&count == before) rest(1);
    }
    atomic_store(&is_stopped, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(statistics_now().killed == 30 && statistics_now().lost == 0);
    // One that runs all the time, without a limit.
    static struct busy busy;
    static struct caller_thread other;
    start_caller(&other, stays, &busy);
    wait_for_begin(&busy);
    for (int round = 0; round < 10; round++) call_killed(loops, &looping, 10);
    CHECK(statistics_now().running == 1);
    release(&busy);
    join_caller(&other, HEDDLE_PUSHDOWN_OK);
}

enum { WORDS = 16 << 20 };

struct sweep {
    _Atomic uint64_t *words;
    _Atomic int is_over;
};

// Two pages of each three are far from each other, so that pages are asked for one by one and ahead.
static void sweeps(void *argument) {
    struct sweep *sweep = argument;
    for (uint64_t at = 0;; at = (at + (at % 3 ? 512 : 512 * 101)) % WORDS) atomic_fetch_add(&sweep->words[at], 1);
}

static void *sweeps_here(void *argument) {
    struct sweep *sweep = argument;
    for (uint64_t at = 1; !atomic_load(&sweep->is_over); at = (at + 512 * 7) % WORDS) atomic_fetch_add(&sweep->words[at], 1);
    return NULL;
}

static void sums(void *argument) {
    struct sweep *sweep = argument;
    uint64_t sum = 0;
    for (uint64_t at = 0; at < WORDS; at++) sum += atomic_load(&sweep->words[at]);
    atomic_store(&sweep->words[0], sum);
}

// Killed with many pages on their way in both directions: none is lost, and none comes twice.
void limit_faults(void) {
    static struct sweep sweep;
    sweep.words = mmap(NULL, WORDS * sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(sweep.words != MAP_FAILED);
    static struct busy busy;
    static struct caller_thread other;
    start_caller(&other, stays, &busy);
    wait_for_begin(&busy);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, sweeps_here, &sweep) == 0);
    for (int round = 0; round < 25; round++) call_killed(sweeps, &sweep, 5 + round);
    atomic_store(&sweep.is_over, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    uint64_t here = 0;
    for (uint64_t at = 0; at < WORDS; at++) here += atomic_load(&sweep.words[at]);
    CALL(sums, &sweep);
    CHECK(atomic_load(&sweep.words[0]) == here && here > 0);
    release(&busy);
    join_caller(&other, HEDDLE_PUSHDOWN_OK);
}

struct pipe_read {
    int ends[2];
    char byte;
    _Atomic int has_begun;
};

static void reads_pipe(void *argument) {
    struct pipe_read *pipe_read = argument;
    atomic_store(&pipe_read->has_begun, 1);
    CHECK(read(pipe_read->ends[0], &pipe_read->byte, 1) == 1);
    pipe_read->byte = 'z';
    for (;;) {}
}

// One that waits in a system call gives its context free at once; its caller returns when the system call does.
void limit_in_system_call(void) {
    static struct pipe_read pipe_read;
    CHECK(pipe(pipe_read.ends) == 0);
    static struct caller_thread caller;
    // Long enough for it to get there on a loaded machine.
    caller.terms.limit_ms = 1000;
    start_caller(&caller, reads_pipe, &pipe_read);
    while (!atomic_load(&pipe_read.has_begun)) rest(1);
    long begin = milliseconds_now();
    check_goes_on();
    CHECK(milliseconds_now() - begin < 5000 && statistics_now().killed == 0);
    CHECK(write(pipe_read.ends[1], "a", 1) == 1);
    join_caller(&caller, HEDDLE_PUSHDOWN_KILLED);
    CHECK(pipe_read.byte == 'a' && statistics_now().killed == 1);
    check_goes_on();
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void locks(void *argument) {
    counts(argument);
    CHECK(pthread_mutex_lock(&mutex) == 0);
    counts(argument);
}

static void *unlocks_later(void *argument) {
    CHECK(pthread_mutex_lock(&mutex) == 0);
    atomic_store((_Atomic int *)argument, 1);
    rest(300);
    CHECK(pthread_mutex_unlock(&mutex) == 0);
    return NULL;
}

static void locks_and_loops(void *argument) {
    CHECK(pthread_mutex_lock(&mutex) == 0);
    for (;;) counts(argument);
}

// Locks of the program stay as the function left them.
void limit_in_lock(void) {
    _Atomic int is_locked = 0;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, unlocks_later, &is_locked) == 0);
    while (!atomic_load(&is_locked)) rest(1);
    int count = 0;
    call_killed(locks, &count, 50);
    CHECK(count == 1 && pthread_join(thread, NULL) == 0);
    CHECK(pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
    call_killed(locks_and_loops, &count, 50);
    CHECK(pthread_mutex_trylock(&mutex) == EBUSY && pthread_mutex_unlock(&mutex) == 0);
    check_goes_on();
}

struct maps {
    _Atomic(char *) mapping;
    _Atomic uint64_t turns;
};

static void maps_for_ever(void *argument) {
    struct maps *maps = argument;
    for (;;) {
        char *start = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(start != MAP_FAILED);
        start[PAGE] = 3;
        atomic_store(&maps->mapping, start);
        CHECK(mprotect(start, 4 * PAGE, PROT_READ) == 0 && start[PAGE] == 3);
        CHECK(mprotect(start, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
        start[2 * PAGE] = 4;
        atomic_store(&maps->mapping, NULL);
        CHECK(munmap(start, 4 * PAGE) == 0);
        atomic_fetch_add(&maps->turns, 1);
    }
}

static void writes_page(void *argument) { ((char *)argument)[PAGE]++; }

// Killed while it maps, protects and unmaps memory: both sides know what there is.
void limit_mappings(void) {
    static struct maps maps;
    for (int round = 0; round < 25; round++) {
        // Long enough for some turns on a loaded machine, in the end.
        call_killed(maps_for_ever, &maps, 5 + round * 4);
        char *left = atomic_exchange(&maps.mapping, NULL);
        if (left == NULL) continue;
        // Its protection is known to this side alone.
        CHECK(mprotect(left, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
        char before = left[PAGE];
        CALL(writes_page, left);
        CHECK(left[PAGE] == before + 1 && munmap(left, 4 * PAGE) == 0);
    }
    CHECK(atomic_load(&maps.turns) > 0);
}

struct brief {
    _Alignas(4096) _Atomic uint64_t begun;
    _Atomic uint64_t ended;
    uint64_t turns;
};

static void is_brief(void *argument) {
    struct brief *brief = argument;
    atomic_fetch_add(&brief->begun, 1);
    for (volatile uint64_t turn = 0; turn < brief->turns; turn++) {}
    atomic_fetch_add(&brief->ended, 1);
}

static void *calls_briefly(void *argument) {
    struct brief *brief = argument;
    uint64_t returned = 0, killed = 0;
    for (unsigned round = 0; round < 300; round++) {
        // Around a limit of a millisecond, so that the end of the function and that of its time meet.
        brief->turns = 10000 + round % 50 * 40000;
        struct heddle_pushdown_terms terms = {.size = sizeof terms, .limit_ms = 1};
        int kind = heddle_pushdown_with(is_brief, brief, &terms, NULL);
        CHECK(kind == HEDDLE_PUSHDOWN_OK || kind == HEDDLE_PUSHDOWN_KILLED);
        returned += kind == HEDDLE_PUSHDOWN_OK;
        killed += kind == HEDDLE_PUSHDOWN_KILLED;
        // One that returned has ended. One that was killed may just have.
        CHECK(atomic_load(&brief->ended) >= returned && atomic_load(&brief->ended) <= returned + killed);
        CHECK(atomic_load(&brief->begun) >= returned);
    }
    CHECK(returned > 0 && killed > 0);
    return NULL;
}

// Limits that pass when functions end, and when the next ones begin in the same context.
void limit_races(void) {
    static struct brief briefs[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, calls_briefly, &briefs[i]) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    struct heddle_pushdown_statistics statistics = statistics_now();
    CHECK(statistics.returned + statistics.killed == 900 && statistics.running == 0 && statistics.open == 0);
    check_goes_on();
}
