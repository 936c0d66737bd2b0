// Threads that take steps until the time is over, half of them in pushed functions.
#ifndef WORK_H
#define WORK_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "check.h"

enum { WORKERS = 4, STEPS_OF_CALL = 20 };

static _Alignas(4096) atomic_int is_over;

static inline uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

// A thread, which pushes its steps down or takes them itself.
struct worker {
    _Alignas(4096) void (*step)(struct worker *);
    uint64_t random;
    uint64_t steps;
    int is_pushed;
};

static inline void takes_steps(void *argument) {
    struct worker *worker = argument;
    for (int i = 0; i < STEPS_OF_CALL && !atomic_load(&is_over); i++, worker->steps++) worker->step(worker);
}

static inline void *thread_works(void *argument) {
    // Threads of the caller would take most steps, with all pages at hand.
    struct timespec pause = {.tv_nsec = 300000};
    while (!atomic_load(&is_over)) {
        if (((struct worker *)argument)->is_pushed) {
            CALL(takes_steps, argument);
            continue;
        }
        takes_steps(argument);
        CHECK(nanosleep(&pause, NULL) == 0 || errno == EINTR);
    }
    return NULL;
}

static inline struct timespec now(void) {
    struct timespec time;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return time;
}

static inline double seconds_since(struct timespec begun) {
    struct timespec time = now();
    return (double)(time.tv_sec - begun.tv_sec) + (double)(time.tv_nsec - begun.tv_nsec) / 1e9;
}

// Half of the workers push down. `beside` is called again and again meanwhile, by a thread of the caller.
static inline void work(void (*step)(struct worker *), void (*beside)(void), double usual_seconds) {
    static struct worker workers[WORKERS];
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.step = step, .random = (uint64_t)(i + 1) << 24 | 1, .is_pushed = i % 2 == 0};
        CHECK(pthread_create(&threads[i], NULL, thread_works, &workers[i]) == 0);
    }
    struct timespec begun = now(), pause = {.tv_nsec = 1000000};
    while (seconds_since(begun) < stress_seconds(usual_seconds)) {
        if (beside != NULL) beside();
        else CHECK(nanosleep(&pause, NULL) == 0 || errno == EINTR);
    }
    atomic_store(&is_over, 1);
    for (int i = 0; i < WORKERS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0 && workers[i].steps > 0);
        printf("%s%lu steps", i == 0 ? "" : ", ", workers[i].steps);
    }
    printf("\n");
}

#endif
