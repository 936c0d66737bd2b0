// What the weaker modes of coherence guarantee, and what they do not cost. A case runs in the mode that PUSHDOWN_MODE names.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"

// Two pipes: by them the sides tell each other that something has been done. Memory need not.
static struct {
    int to_function[2];
    int to_thread[2];
} pipes;

static void open_pipes(void) { CHECK(pipe(pipes.to_function) == 0 && pipe(pipes.to_thread) == 0); }

// A function's system calls are synchronisation points. A thread needs heddle_syncmem() before it says something, and after it has heard it.
static void say(const int *to) { CHECK(write(to[1], "x", 1) == 1); }

static void hear(const int *from) {
    char byte;
    CHECK(read(from[0], &byte, 1) == 1);
}

static pthread_t started(void *(*function)(void *), void *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, function, argument) == 0);
    return thread;
}

static void join(pthread_t thread) { CHECK(pthread_join(thread, NULL) == 0); }

static unsigned long long messages(void) {
    struct heddle_pushdown_counts counts = {.size = sizeof counts};
    CHECK(heddle_pushdown_counts(&counts) == HEDDLE_PUSHDOWN_OK);
    return counts.sent + counts.received;
}

// Partial store order: no write is lost, and atomic operations work between the sides.

static struct {
    _Alignas(4096) atomic_uint_fast64_t sum;
    uint64_t guarded;
    _Alignas(4096) volatile uint64_t published;
    _Alignas(4096) volatile uint64_t other;
} ordered;
enum { ADDITIONS = 20000, PUBLISHED = 2000000 };

static void add(void) {
    for (int i = 0; i < ADDITIONS; i++) atomic_fetch_add(&ordered.sum, 3);
}

static void publish(volatile uint64_t *place) {
    for (uint64_t value = 1; value <= PUBLISHED; value++) *place = value;
}

// Reads until the last value is there. None is older than one that was read before.
static void follow(volatile uint64_t *place) {
    for (uint64_t seen = 0; seen < PUBLISHED;) {
        for (int reads = 0; reads < 1000; reads++) {
            uint64_t now = *place;
            CHECK(now >= seen);
            seen = now;
        }
        heddle_syncmem((const void *)place, sizeof *place);
    }
}

static void adds_publishes_follows(void *argument) {
    (void)argument;
    add();
    publish(&ordered.published);
    follow(&ordered.other);
}

static void *thread_follows_adds_publishes(void *argument) {
    (void)argument;
    add();
    follow(&ordered.published);
    publish(&ordered.other);
    return NULL;
}

void counter(void) {
    pthread_t thread = started(thread_follows_adds_publishes, NULL);
    CALL(adds_publishes_follows, NULL);
    join(thread);
    CHECK(ordered.sum == 2 * 3 * ADDITIONS);
}

// One side writes, the other reads: a reader that need not see the newest value costs no messages, however much is written.

static _Alignas(4096) struct {
    volatile uint64_t value;
    volatile int stop;
} watched;

static void *thread_watches(void *argument) {
    uint64_t seen = 0;
    say(pipes.to_function);
    while (!*(volatile int *)argument) {
        CHECK(watched.value >= seen);
        seen = watched.value;
    }
    return NULL;
}

static void writes_watched(void *argument) {
    (void)argument;
    hear(pipes.to_function);
    for (int i = 0; i < 3000000; i++) watched.value++;
}

void watcher(void) {
    static _Alignas(4096) volatile int stop;
    open_pipes();
    pthread_t thread = started(thread_watches, (void *)&stop);
    unsigned long long before = messages();
    CALL(writes_watched, NULL);
    unsigned long long cost = messages() - before;
    stop = 1;
    join(thread);
    CHECK(watched.value == 3000000);
    printf("%llu messages\n", cost);
    CHECK(cost < 100);
}

// Both sides write neighbouring bytes of one page: with shared writes no message is sent meanwhile, and all are kept.

static _Alignas(4096) volatile unsigned char interleaved[4096];
enum { ROUNDS = 1000 };

static void write_every_second(int first) {
    for (int round = 1; round <= ROUNDS; round++) {
        for (int at = first; at < 4096; at += 2) interleaved[at] = (unsigned char)(round + at);
    }
}

static void writes_odd(void *argument) {
    (void)argument;
    hear(pipes.to_function);
    write_every_second(1);
}

static void *thread_writes_even(void *argument) {
    (void)argument;
    say(pipes.to_function);
    write_every_second(0);
    return NULL;
}

void neighbours_written(void) {
    open_pipes();
    unsigned long long before = messages();
    pthread_t thread = started(thread_writes_even, NULL);
    CALL(writes_odd, NULL);
    unsigned long long cost = messages() - before;
    join(thread);
    for (int at = 0; at < 4096; at++) CHECK(interleaved[at] == (unsigned char)(ROUNDS + at));
    printf("%llu messages\n", cost);
    CHECK(mode_of_case() < HEDDLE_PUSHDOWN_WEAK || cost < 100);
}

// What one side hands over, the other finds, in every mode, if both synchronise. The numbers are never seen half written.

enum { HANDED = 300, WORDS = 1500 };
static struct {
    _Alignas(4096) volatile uint64_t words[WORDS];
    _Alignas(4096) volatile uint64_t flag;
    _Alignas(4096) volatile uint64_t words_back[WORDS];
    _Alignas(4096) volatile uint64_t flag_back;
} handed;
static const uint64_t ALL_BYTES = 0x0101010101010101u;

static int is_whole(uint64_t word) { return word == (word & 0xff) * ALL_BYTES; }

static void hand_over(volatile uint64_t *words, volatile uint64_t *flag, uint64_t round) {
    for (int i = 0; i < WORDS; i++) words[i] = (round + i) % 256 * ALL_BYTES;
    CHECK(heddle_syncmem((const void *)words, WORDS * sizeof *words) == HEDDLE_PUSHDOWN_OK);
    *flag = round;
    CHECK(heddle_syncmem((const void *)flag, sizeof *flag) == HEDDLE_PUSHDOWN_OK);
}

static void take_over(volatile uint64_t *words, volatile uint64_t *flag, uint64_t round) {
    for (int turn = 0; *flag < round; turn++) {
        CHECK(is_whole(words[turn % WORDS]));
        CHECK(heddle_pullmem((const void *)flag, sizeof *flag) == HEDDLE_PUSHDOWN_OK);
    }
    CHECK(heddle_pullmem((const void *)words, WORDS * sizeof *words) == HEDDLE_PUSHDOWN_OK);
    for (int i = 0; i < WORDS; i++) CHECK(words[i] == (round + i) % 256 * ALL_BYTES);
}

static void hands_and_takes(void *argument) {
    (void)argument;
    for (uint64_t round = 1; round <= HANDED; round++) {
        hand_over(handed.words, &handed.flag, round);
        take_over(handed.words_back, &handed.flag_back, round);
    }
}

static void *thread_takes_and_hands(void *argument) {
    (void)argument;
    for (uint64_t round = 1; round <= HANDED; round++) {
        take_over(handed.words, &handed.flag, round);
        hand_over(handed.words_back, &handed.flag_back, round);
    }
    return NULL;
}

void handover(void) {
    pthread_t thread = started(thread_takes_and_hands, NULL);
    CALL(hands_and_takes, NULL);
    join(thread);
}

// With coherence off, ranges travel to the byte in both directions, and what lies beside them is merged: the other side does not see bytes
// outside of the ranges, which a synchronisation by pages would bring. With weak ordering it may see them. While the function runs it makes
// no system call, which would synchronise all that both sides have: the sides wait for each other's steps.

static _Alignas(4096) volatile unsigned char ranges[2 * 4096];
enum { RANGE = 3000, RANGE_END = 5000, PULLED_EVERY = 3 * 64 };
static struct {
    _Alignas(4096) volatile int of_function;
    _Alignas(4096) volatile int of_thread;
    _Alignas(4096) int is_to_the_byte;
} steps;

static int is_in_range(int at) { return at >= RANGE && at < RANGE_END; }

static void take_step(volatile int *step, int number) {
    *step = number;
    CHECK(heddle_syncmem((const void *)step, sizeof *step) == HEDDLE_PUSHDOWN_OK);
}

// In a function this synchronises all that it has, without its caller.
static void write_ranges(unsigned char value) {
    for (int at = 1; at < 2 * 4096; at += 3) ranges[at] = value;
    CHECK(heddle_syncmem((const void *)ranges, sizeof ranges) == HEDDLE_PUSHDOWN_OK);
}

static void await_function(int number) {
    while (steps.of_function != number) {
        CHECK(heddle_pullmem((const void *)&steps.of_function, sizeof steps.of_function) == HEDDLE_PUSHDOWN_OK);
    }
}

static void sees_ranges(void *argument) {
    (void)argument;
    // The pages are here from now on, with what they had before the call.
    CHECK(ranges[0] == 1 && ranges[4096] == 1 && steps.of_thread == 0);
    write_ranges(20);
    take_step(&steps.of_function, 1);
    // The thread's bytes are the multiples of three. The range has them on both pages.
    while (ranges[RANGE] != 10 || ranges[RANGE_END - 2] != 10) {}
    for (int at = 0; at < 2 * 4096; at++) {
        unsigned char seen = ranges[at];
        if (at % 3 == 0 && is_in_range(at)) CHECK(seen == 10);
        if (at % 3 == 0 && !is_in_range(at)) CHECK(seen == 1 || (seen == 10 && !steps.is_to_the_byte));
        if (at % 3 == 1) CHECK(seen == 20);
        if (at % 3 == 2) CHECK(seen == 1);
    }
    write_ranges(21);
    take_step(&steps.of_function, 2);
    while (steps.of_thread != 1) {}
}

static void *thread_sends_and_pulls_ranges(void *argument) {
    (void)argument;
    await_function(1);
    for (int at = 0; at < 2 * 4096; at += 3) ranges[at] = 10;
    CHECK(heddle_syncmem((const void *)&ranges[RANGE], RANGE_END - RANGE) == HEDDLE_PUSHDOWN_OK);
    await_function(2);
    for (int at = 1; at < 2 * 4096; at += PULLED_EVERY) {
        CHECK(heddle_pullmem((const void *)&ranges[at], 1) == HEDDLE_PUSHDOWN_OK);
        CHECK(ranges[at] == 21);
    }
    // Bytes that were not pulled are older.
    for (int at = 0; at < 2 * 4096; at++) {
        unsigned char seen = ranges[at];
        if (at % 3 == 0) CHECK(seen == 10);
        if (at % 3 == 1 && at % PULLED_EVERY != 1) CHECK(seen != 21 || !steps.is_to_the_byte);
        if (at % 3 == 2) CHECK(seen == 1);
    }
    take_step(&steps.of_thread, 1);
    return NULL;
}

void byte_ranges(void) {
    memset((void *)ranges, 1, sizeof ranges);
    steps.is_to_the_byte = mode_of_case() == HEDDLE_PUSHDOWN_OFF;
    pthread_t thread = started(thread_sends_and_pulls_ranges, NULL);
    CALL(sees_ranges, NULL);
    join(thread);
    for (int at = 0; at < 2 * 4096; at++) CHECK(ranges[at] == (at % 3 == 0 ? 10 : at % 3 == 1 ? 21 : 1));
}

// A call of another mode does not run beside others.

static void waits(void *argument) {
    (void)argument;
    say(pipes.to_thread);
    hear(pipes.to_function);
}

static void sets(void *argument) { *(volatile int *)argument = 1; }

static void *thread_waits(void *argument) {
    (void)argument;
    CALL(waits, NULL);
    return NULL;
}

void other_mode(void) {
    open_pipes();
    pthread_t thread = started(thread_waits, NULL);
    hear(pipes.to_thread);
    static volatile int was_run;
    struct heddle_pushdown_failure failure;
    unsigned other = mode_of_case() == HEDDLE_PUSHDOWN_PSO ? HEDDLE_PUSHDOWN_COHERENT : HEDDLE_PUSHDOWN_PSO;
    CHECK(heddle_pushdown(sets, (void *)&was_run, other, &failure) == HEDDLE_PUSHDOWN_BUSY && !was_run);
    // One of the same does.
    CALL(sets, (void *)&was_run);
    CHECK(was_run);
    say(pipes.to_function);
    join(thread);
    was_run = 0;
    CHECK(heddle_pushdown(sets, (void *)&was_run, other, &failure) == HEDDLE_PUSHDOWN_OK && was_run);
}

// Modes one after another: each call finds what the others left.

static uint64_t *mixed;
enum { MIXED_PAGES = 40, MIXED_WORDS = MIXED_PAGES * 512 };

static void increments(void *argument) {
    unsigned step = *(unsigned *)argument;
    for (unsigned i = 0; i < MIXED_WORDS; i += step) mixed[i]++;
}

void mixed_modes(void) {
    static uint64_t expected[MIXED_WORDS];
    mixed = mmap(NULL, MIXED_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mixed != MAP_FAILED);
    unsigned random = 1;
    for (int round = 0; round < 400; round++) {
        random = random * 1664525 + 1013904223;
        unsigned step = 1 + (random >> 8) % 3000, mode = random >> 28 & 3;
        if (random >> 20 & 1) CHECK(heddle_syncmem(&mixed[random >> 9 & 0x3fff], random >> 6 & 0x3fff) == HEDDLE_PUSHDOWN_OK);
        CHECK(heddle_pushdown(increments, &step, mode, NULL) == HEDDLE_PUSHDOWN_OK);
        for (unsigned i = 0; i < MIXED_WORDS; i += step) expected[i]++;
        for (unsigned i = random >> 12 & 7; i < MIXED_WORDS; i += 1 + (random >> 4 & 1023)) {
            mixed[i] += 2;
            expected[i] += 2;
        }
        if (round % 16 == 0) CHECK(memcmp(mixed, expected, sizeof expected) == 0);
        if (round % 50 == 49) {
            CHECK(madvise(mixed, 7 * PAGE, MADV_DONTNEED) == 0);
            memset(expected, 0, 7 * PAGE);
        }
    }
    CHECK(memcmp(mixed, expected, sizeof expected) == 0);
    munmap(mixed, MIXED_PAGES * PAGE);
}

// Memory that is moved, dropped and copied while both sides have written it.

enum { MOVED_PAGES = 8, MOVED_BYTES = MOVED_PAGES * 4096 };
static unsigned char *volatile moved;

static void fill_every_second(int first, unsigned char value) {
    for (int at = first; at < MOVED_BYTES; at += 2) moved[at] = value;
}

static void check_moved(unsigned char even, unsigned char odd) {
    for (int at = 0; at < MOVED_BYTES; at++) CHECK(moved[at] == (at % 2 == 0 ? even : odd));
}

static void writes_moved(void *argument) {
    (void)argument;
    for (int round = 0; round < 3; round++) {
        fill_every_second(1, (unsigned char)(10 + round));
        say(pipes.to_thread);
        hear(pipes.to_function);
    }
    check_moved(22, 12);
    say(pipes.to_thread);
    hear(pipes.to_function);
    check_moved(0, 0);
    say(pipes.to_thread);
    fill_every_second(1, 13);
}

static void *thread_moves(void *argument) {
    unsigned char *places = argument;
    for (int round = 0; round < 3; round++) {
        hear(pipes.to_thread);
        if (round == 1) {
            // Before this thread synchronises: what the function wrote is not lost.
            fill_every_second(0, (unsigned char)(20 + round));
            CHECK(mremap(moved, MOVED_BYTES, MOVED_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, places + MOVED_BYTES) != MAP_FAILED);
            moved = places + MOVED_BYTES;
            check_moved(21, 11);
        } else {
            heddle_syncmem(moved, MOVED_BYTES);
            fill_every_second(0, (unsigned char)(20 + round));
            check_moved((unsigned char)(20 + round), (unsigned char)(10 + round));
            // The child has what this thread sees.
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                check_moved((unsigned char)(20 + round), (unsigned char)(10 + round));
                fill_every_second(0, 99);
                _exit(0);
            }
            int status = -1;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
        heddle_syncmem(moved, MOVED_BYTES);
        heddle_syncmem((const void *)&moved, sizeof moved);
        say(pipes.to_function);
    }
    hear(pipes.to_thread);
    CHECK(madvise(moved, MOVED_BYTES, MADV_DONTNEED) == 0);
    check_moved(0, 0);
    say(pipes.to_function);
    hear(pipes.to_thread);
    fill_every_second(0, 23);
    return NULL;
}

void moved_and_copied(void) {
    open_pipes();
    unsigned char *places = mmap(NULL, 2 * MOVED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(places != MAP_FAILED);
    moved = places;
    memset(places, 1, 2 * MOVED_BYTES);
    pthread_t thread = started(thread_moves, places);
    CALL(writes_moved, NULL);
    join(thread);
    check_moved(23, 13);
}

// Many writers on both sides, each with bytes of its own on the same pages, which synchronise at random.

enum { WRITERS = 4, SHARED_BYTES = 16 * 4096 };
static struct {
    volatile unsigned char bytes[SHARED_BYTES];
    _Alignas(4096) unsigned char owner[SHARED_BYTES];
} stressed;
static struct writer {
    _Alignas(4096) unsigned number;
    unsigned random;
    double seconds;
    int is_function;
    unsigned long writes;
    unsigned char written[SHARED_BYTES];
} writers[WRITERS];

static unsigned draw(struct writer *writer, unsigned below) {
    writer->random = writer->random * 1664525 + 1013904223;
    return (unsigned)((uint64_t)(writer->random >> 4) * below >> 28);
}

static void write_at_random(struct writer *writer) {
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (;;) {
        for (int i = 0; i < 200; i++) {
            unsigned at = draw(writer, SHARED_BYTES);
            if (stressed.owner[at] != writer->number) continue;
            // Its own bytes it sees as it has written them, at once and always.
            CHECK(stressed.bytes[at] == writer->written[at]);
            stressed.bytes[at] = writer->written[at] = (unsigned char)draw(writer, 256);
            writer->writes++;
        }
        unsigned from = draw(writer, SHARED_BYTES), bytes = 1 + draw(writer, 9000);
        if (bytes > SHARED_BYTES - from) bytes = SHARED_BYTES - from;
        switch (draw(writer, 6)) {
        case 0:
            CHECK(heddle_syncmem((const void *)&stressed.bytes[from], bytes) == HEDDLE_PUSHDOWN_OK);
            break;
        case 1:
            CHECK(heddle_pullmem((const void *)&stressed.bytes[from], bytes) == HEDDLE_PUSHDOWN_OK);
            break;
        case 2:
            CHECK(sched_yield() == 0);
            break;
        default:
            break;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begun.tv_sec + 1e-9 * (now.tv_nsec - begun.tv_nsec) > writer->seconds) return;
    }
}

static void writes_at_random(void *argument) { write_at_random(argument); }

static void *thread_writes_at_random(void *argument) {
    struct writer *writer = argument;
    // Functions come and go while other writers write.
    if (writer->is_function) {
        for (int call = 0; call < 5; call++) CALL(writes_at_random, writer);
    } else {
        write_at_random(writer);
    }
    return NULL;
}

void stress(void) {
    const char *set = getenv("PUSHDOWN_STRESS_SECONDS");
    double seconds = set == NULL ? 5 : atof(set);
    unsigned random = (unsigned)getpid();
    printf("seed %u\n", random);
    // Runs of one to nine bytes have one writer.
    for (unsigned at = 0, rest = 0, owner = 0; at < SHARED_BYTES; at++, rest--) {
        if (rest == 0) {
            random = random * 1664525 + 1013904223;
            rest = 1 + (random >> 8) % 9;
            owner = random >> 20 & (WRITERS - 1);
        }
        stressed.owner[at] = (unsigned char)owner;
    }
    pthread_t threads[WRITERS];
    for (unsigned i = 0; i < WRITERS; i++) {
        int is_function = i % 2 == 1;
        writers[i].number = i;
        writers[i].random = random + i;
        writers[i].is_function = is_function;
        writers[i].seconds = is_function ? seconds / 5 : seconds;
    }
    for (unsigned i = 0; i < WRITERS; i++) threads[i] = started(thread_writes_at_random, &writers[i]);
    for (unsigned i = 0; i < WRITERS; i++) join(threads[i]);
    for (unsigned at = 0; at < SHARED_BYTES; at++) CHECK(stressed.bytes[at] == writers[stressed.owner[at]].written[at]);
    for (unsigned i = 0; i < WRITERS; i++) CHECK(writers[i].writes > 0);
    printf("%lu %lu %lu %lu writes, %llu messages\n", writers[0].writes, writers[1].writes, writers[2].writes,
           writers[3].writes, messages());
}
