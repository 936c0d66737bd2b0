// Many threads on few pages, half of them by functions that come and go. Each checks what it reads against what it has read before.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cases.h"
#include "check.h"

enum { THREADS = 64, PAGES = 16, STEPS_OF_CALL = 100, SUMS = 4 };

// A word for each writer, and words that all increment.
static struct page {
    _Alignas(4096) _Atomic uint64_t words[THREADS];
    _Atomic uint64_t sums[SUMS];
    // Before and behind an increment of both, under a lock.
    atomic_flag lock;
    uint64_t locked[2];
} pages[PAGES];

static _Alignas(4096) atomic_int is_over;

// What a thread knows. Of each writer's word it knows the newest value that it has read.
struct history {
    _Alignas(4096) uint64_t newest[PAGES][THREADS];
    uint64_t added[PAGES][SUMS];
    uint64_t locked[PAGES];
    uint64_t written;
    uint64_t random;
    uint64_t steps;
    int number;
};

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

// The halves are each other's complement, so that a value of two writes is noticed.
static uint64_t whole(uint64_t count) { return count | (uint64_t)(uint32_t)~count << 32; }

static uint64_t count_in(uint64_t word) {
    CHECK(word == 0 || (uint32_t)word == (uint32_t)~(word >> 32));
    return (uint32_t)word;
}

static uint64_t read_word(struct history *history, int page, int writer) {
    uint64_t count = count_in(atomic_load_explicit(&pages[page].words[writer], memory_order_acquire));
    CHECK(count >= history->newest[page][writer]);
    // Nobody else writes this thread's own words.
    CHECK(writer != history->number || count == history->newest[page][writer]);
    history->newest[page][writer] = count;
    return count;
}

static void write_word(struct history *history, int page, uint64_t count) {
    read_word(history, page, history->number);
    atomic_store_explicit(&pages[page].words[history->number], whole(count), memory_order_release);
    history->newest[page][history->number] = count;
}

static void take_step(struct history *history) {
    uint64_t random = next_random(&history->random);
    int page = random % PAGES, other = random / PAGES % PAGES, writer = random / 256 % THREADS;
    switch (random >> 32 & 3) {
    case 0:
        // Whoever sees the second write sees the first one.
        history->written++;
        write_word(history, page & ~1, history->written);
        write_word(history, page | 1, history->written);
        break;
    case 1: {
        uint64_t second = read_word(history, other | 1, writer);
        CHECK(read_word(history, other & ~1, writer) >= second);
        break;
    }
    case 2:
        history->added[page][other % SUMS] += random >> 40 & 7;
        atomic_fetch_add(&pages[page].sums[other % SUMS], random >> 40 & 7);
        break;
    case 3:
        // Who has the lock may not be running.
        if (atomic_flag_test_and_set_explicit(&pages[page].lock, memory_order_acquire)) break;
        CHECK(pages[page].locked[0] == pages[page].locked[1]);
        pages[page].locked[0]++;
        pages[page].locked[1]++;
        history->locked[page]++;
        atomic_flag_clear_explicit(&pages[page].lock, memory_order_release);
        break;
    }
    history->steps++;
}

static void takes_steps(void *argument) {
    for (int i = 0; i < STEPS_OF_CALL && !atomic_load(&is_over); i++) take_step(argument);
}

static void *thread_takes_steps(void *argument) {
    struct history *history = argument;
    // A thread that has all pages would take steps alone.
    struct timespec pause = {.tv_nsec = 100000};
    while (!atomic_load(&is_over)) {
        if (history->number % 2 == 0) {
            CALL(takes_steps, argument);
            continue;
        }
        takes_steps(argument);
        CHECK(nanosleep(&pause, NULL) == 0);
    }
    return NULL;
}

void histories(void) {
    struct history *histories = aligned_alloc(PAGE, THREADS * sizeof *histories);
    CHECK(histories != NULL);
    memset(histories, 0, THREADS * sizeof *histories);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        histories[i].number = i;
        histories[i].random = (uint64_t)(i + 1) << 20 | 1;
        CHECK(pthread_create(&threads[i], NULL, thread_takes_steps, &histories[i]) == 0);
    }
    double left = stress_seconds(5);
    struct timespec pause = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
    CHECK(nanosleep(&pause, NULL) == 0);
    atomic_store(&is_over, 1);
    uint64_t steps[2] = {0};
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        steps[i % 2] += histories[i].steps;
    }
    for (int page = 0; page < PAGES; page++) {
        uint64_t locked = 0;
        for (int sum = 0; sum < SUMS; sum++) {
            uint64_t added = 0;
            for (int i = 0; i < THREADS; i++) added += histories[i].added[page][sum];
            CHECK(atomic_load(&pages[page].sums[sum]) == added);
        }
        for (int i = 0; i < THREADS; i++) {
            locked += histories[i].locked[page];
            CHECK(count_in(pages[page].words[i]) == histories[i].newest[page][i]);
        }
        CHECK(pages[page].locked[0] == locked && pages[page].locked[1] == locked);
    }
    printf("%lu steps of functions, %lu of the caller's threads\n", steps[0], steps[1]);
    CHECK(steps[0] > 0 && steps[1] > 0);
}
