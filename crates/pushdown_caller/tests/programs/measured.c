// What the library measures: the parts of a call, messages, the imitated link.
#include "cases.h"
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define ROUNDS 20
#define PAGES 48
// Not in order, so that nothing is asked ahead: 17 and 48 have no common divisor.
#define STRIDE 17
#define RUN_NS 2000000u

static uint64_t now(void) {
    struct timespec time;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void nothing(void *argument) {
    (void)argument;
}

static void takes_time(void *argument) {
    (void)argument;
    for (uint64_t begun = now(); now() - begun < RUN_NS;) {}
}

static void writes_pages(void *argument) {
    volatile unsigned char *memory = argument;
    for (size_t i = 0; i < PAGES; i++) memory[i * STRIDE % PAGES * PAGE]++;
}

static void fails(void *argument) {
    (void)argument;
    *(volatile int *)64 = 1;
}

static struct heddle_pushdown_times last(void) {
    struct heddle_pushdown_times times = {.size = sizeof times};
    CHECK(heddle_pushdown_times(&times) == HEDDLE_PUSHDOWN_OK && times.size == sizeof times);
    CHECK(times.online_sync_ns <= times.run_ns);
    return times;
}

static uint64_t sum_of(struct heddle_pushdown_times times) {
    return times.before_ns + times.request_ns + times.set_up_ns + times.run_ns + times.response_ns + times.after_ns;
}

static void asks_in_function(void *argument) {
    struct heddle_pushdown_times times = {.size = sizeof times};
    struct heddle_pushdown_counts counts = {.size = sizeof counts};
    *(int *)argument = heddle_pushdown_times(&times) == HEDDLE_PUSHDOWN_REFUSED &&
                       heddle_pushdown_counts(&counts) == HEDDLE_PUSHDOWN_REFUSED;
}

static void *asks_without_call(void *argument) {
    struct heddle_pushdown_times times = {.size = sizeof times};
    *(int *)argument = heddle_pushdown_times(&times) == HEDDLE_PUSHDOWN_REFUSED;
    return NULL;
}

void call_times(void) {
    struct heddle_pushdown_times times = {.size = sizeof times};
    CHECK(heddle_pushdown_times(&times) == HEDDLE_PUSHDOWN_REFUSED);
    CALL(nothing, NULL);
    times.size = sizeof times - 1;
    CHECK(heddle_pushdown_times(&times) == HEDDLE_PUSHDOWN_REFUSED && heddle_pushdown_times(NULL) == HEDDLE_PUSHDOWN_REFUSED);
    // The parts are all of the call. Somebody may stop this thread at its ends, but not every time.
    int complete = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begun = now();
        CALL(takes_time, NULL);
        uint64_t taken = now() - begun;
        times = last();
        // A thousandth is more than the clock's rate is off.
        CHECK(times.run_ns >= RUN_NS - RUN_NS / 1000 && sum_of(times) <= taken + taken / 1000);
        complete += sum_of(times) >= taken - taken / 100;
    }
    CHECK(complete > 0);
    // A function waits for the pages that the caller has, and for none the next time.
    unsigned char *memory = aligned_alloc(PAGE, PAGES * PAGE);
    CHECK(memory != NULL);
    memset(memory, 1, PAGES * PAGE);
    CALL(writes_pages, memory);
    CHECK(last().online_sync_ns > 0);
    CALL(writes_pages, memory);
    CHECK(last().online_sync_ns == 0);
    free(memory);
    // One that a signal ended has times. Functions, and threads without calls, have none.
    CALL_SIGNALLED(fails, NULL, SIGSEGV);
    CHECK(last().run_ns > 0);
    int is_refused = 0;
    CALL(asks_in_function, &is_refused);
    CHECK(is_refused);
    pthread_t thread;
    is_refused = 0;
    CHECK(pthread_create(&thread, NULL, asks_without_call, &is_refused) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(is_refused);
}

static struct heddle_pushdown_counts counted(void) {
    struct heddle_pushdown_counts counts = {.size = sizeof counts};
    CHECK(heddle_pushdown_counts(&counts) == HEDDLE_PUSHDOWN_OK);
    return counts;
}

#define AHEAD_PAGES 6

static void adds_one_to_each(void *argument) {
    volatile uint64_t *words = argument;
    for (size_t i = 0; i < AHEAD_PAGES; i++) words[i * STRIDE % AHEAD_PAGES * PAGE / sizeof *words]++;
}

// What a function has needed in its first calls is there in the next ones before it asks, with what was written in between.
void sent_ahead(void) {
    uint64_t *words = mmap(NULL, AHEAD_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(words != MAP_FAILED);
    unsigned waited = 0;
    for (unsigned round = 0; round < 200; round++) {
        for (size_t i = 0; i < AHEAD_PAGES; i++) words[i * PAGE / sizeof *words] += round;
        CALL(adds_one_to_each, words);
        uint64_t expected = (uint64_t)round * (round + 1) / 2 + round + 1;
        for (size_t i = 0; i < AHEAD_PAGES; i++) CHECK(words[i * PAGE / sizeof *words] == expected);
        waited += last().online_sync_ns > 0;
    }
    // The first two, and one of 32, are for learning.
    CHECK(waited >= 2 && waited <= 20);
    // Pages that are no longer the program's to write, or are not there any more, stay where they are.
    CHECK(mprotect(words, PAGE, PROT_READ) == 0);
    CALL_SIGNALLED(adds_one_to_each, words, SIGSEGV);
    CHECK(mprotect(words, PAGE, PROT_READ | PROT_WRITE) == 0 && munmap(words + PAGE / sizeof *words, PAGE) == 0);
    struct heddle_pushdown_failure failure = CALL_SIGNALLED(adds_one_to_each, words, SIGSEGV);
    CHECK(failure.address == words + PAGE / sizeof *words);
}

void message_counts(void) {
    struct heddle_pushdown_counts counts = {.size = sizeof counts - 1};
    CHECK(heddle_pushdown_counts(&counts) == HEDDLE_PUSHDOWN_REFUSED && heddle_pushdown_counts(NULL) == HEDDLE_PUSHDOWN_REFUSED);
    unsigned char *memory = aligned_alloc(PAGE, PAGES * PAGE);
    CHECK(memory != NULL);
    memset(memory, 1, PAGES * PAGE);
    for (int round = 0; round < 4; round++) CALL(nothing, NULL);
    struct heddle_pushdown_counts before = counted();
    CALL(nothing, NULL);
    struct heddle_pushdown_counts after = counted();
    CHECK(after.sent > before.sent && after.received > before.received);
    CHECK(after.sent - before.sent + after.received - before.received < PAGES);
    before = after;
    CALL(writes_pages, memory);
    after = counted();
    // A request and an answer for each page.
    CHECK(after.sent - before.sent > PAGES && after.received - before.received > PAGES);
    before = after;
    CALL(writes_pages, memory);
    after = counted();
    CHECK(after.sent - before.sent + after.received - before.received < PAGES);
    CHECK(heddle_pushdown_link_ns() == 0);
    free(memory);
}

static void reads_pages(void *argument) {
    volatile unsigned char *memory = argument;
    for (size_t i = 0; i < PAGES; i++) CHECK(memory[i * STRIDE % PAGES * PAGE] == 1);
}

// What is sent before any function has asked for the memory need not be asked for.
void syncmem_before_calls(void) {
    unsigned char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 1, PAGES * PAGE);
    struct heddle_pushdown_counts before = counted();
    CHECK(heddle_syncmem(memory, PAGES * PAGE) == HEDDLE_PUSHDOWN_OK);
    CHECK(counted().sent - before.sent >= PAGES);
    before = counted();
    CALL(reads_pages, memory);
    CHECK(counted().received - before.received < PAGES);
    // With what is not mapped, and what nobody may have.
    CHECK(munmap(memory + PAGE, PAGE) == 0 && mprotect(memory + 2 * PAGE, PAGE, PROT_NONE) == 0);
    CHECK(heddle_syncmem(memory, PAGES * PAGE) == HEDDLE_PUSHDOWN_OK);
    CHECK(heddle_syncmem(NULL, (size_t)1 << 46) == HEDDLE_PUSHDOWN_OK);
    CHECK(memory[0] == 1 && memory[3 * PAGE] == 1);
}

// Its environment has a link of 1.2 us.
void imitated_link(void) {
    CHECK(heddle_pushdown_link_ns() == 1200);
    for (int round = 0; round < ROUNDS; round++) {
        CALL(nothing, NULL);
        // But for what the clock's rate is off.
        CHECK(last().request_ns >= 1190 && last().response_ns >= 1190);
    }
}
