// Threads of the caller beside pushed functions, and several pushed functions beside each other.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"

// What waits without waiting in the kernel, but for a processor.
static void yield(void) { CHECK(sched_yield() == 0); }

static pthread_t started(void *(*function)(void *), void *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, function, argument) == 0);
    return thread;
}

static void join(pthread_t thread) { CHECK(pthread_join(thread, NULL) == 0); }

struct counter {
    pthread_mutex_t mutex;
    uint64_t count;
    uint64_t again;
};

static void count_under_mutex(struct counter *counter, int times) {
    for (int i = 0; i < times; i++) {
        CHECK(pthread_mutex_lock(&counter->mutex) == 0);
        CHECK(counter->count == counter->again);
        counter->count++;
        counter->again++;
        CHECK(pthread_mutex_unlock(&counter->mutex) == 0);
    }
}

static void counts(void *argument) { count_under_mutex(argument, 1000); }

static void *thread_counts(void *argument) {
    count_under_mutex(argument, 20000);
    return NULL;
}

static void unlocks_and_locks(void *argument) {
    pthread_mutex_t *mutex = argument;
    CHECK(pthread_mutex_lock(mutex) == EDEADLK);
    CHECK(pthread_mutex_unlock(mutex) == 0);
    CHECK(pthread_mutex_unlock(mutex) == EPERM);
    CHECK(pthread_mutex_trylock(mutex) == 0);
}

void mutexes(void) {
    static struct counter counter = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    pthread_t thread = started(thread_counts, &counter);
    for (int round = 0; round < 20; round++) CALL(counts, &counter);
    join(thread);
    CHECK(counter.count == 40000 && counter.again == 40000);

    // This kind knows its owner: the function is the thread that called.
    pthread_mutexattr_t attributes;
    pthread_mutex_t mutex;
    CHECK(pthread_mutexattr_init(&attributes) == 0);
    CHECK(pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK) == 0);
    CHECK(pthread_mutex_init(&mutex, &attributes) == 0 && pthread_mutex_lock(&mutex) == 0);
    CALL(unlocks_and_locks, &mutex);
    CHECK(pthread_mutex_unlock(&mutex) == 0 && pthread_mutex_destroy(&mutex) == 0);
}

struct game {
    pthread_mutex_t mutex;
    pthread_cond_t turned;
    sem_t ball[2];
    int turn;
};
enum { TURNS = 500 };

static void play(struct game *game, int side) {
    CHECK(pthread_mutex_lock(&game->mutex) == 0);
    for (int turn = 0; turn < TURNS; turn++) {
        while (game->turn % 2 != side) CHECK(pthread_cond_wait(&game->turned, &game->mutex) == 0);
        CHECK(game->turn == 2 * turn + side);
        game->turn++;
        CHECK(pthread_cond_signal(&game->turned) == 0);
    }
    CHECK(pthread_mutex_unlock(&game->mutex) == 0);
    for (int turn = 0; turn < TURNS; turn++) {
        CHECK(sem_wait(&game->ball[side]) == 0);
        CHECK(sem_post(&game->ball[1 - side]) == 0);
    }
}

static void plays(void *argument) { play(argument, 1); }

static void *thread_plays(void *argument) {
    play(argument, 0);
    return NULL;
}

void conditions(void) {
    static struct game game = {.mutex = PTHREAD_MUTEX_INITIALIZER, .turned = PTHREAD_COND_INITIALIZER};
    CHECK(sem_init(&game.ball[0], 0, 1) == 0 && sem_init(&game.ball[1], 0, 0) == 0);
    pthread_t thread = started(thread_plays, &game);
    CALL(plays, &game);
    join(thread);
    CHECK(game.turn == 2 * TURNS);
}

// The parts lie on pages of their own, so that each test is about what it says.
struct shared {
    _Alignas(4096) atomic_uint arrived;
    _Alignas(4096) atomic_uint_fast64_t sum;
    atomic_uint_fast64_t swapped;
    _Alignas(4096) atomic_flag lock;
    uint64_t locked[2];
    _Alignas(4096) volatile uint64_t data;
    _Alignas(4096) atomic_uint_fast64_t published;
};
enum { ADDITIONS = 20000, LOCKS = 2000, MESSAGES = 5000 };

// Both sides go on when both are there.
static void meet(struct shared *shared, unsigned count) {
    atomic_fetch_add(&shared->arrived, 1);
    while (atomic_load(&shared->arrived) < count) yield();
}

static void use_atomics(struct shared *shared) {
    meet(shared, 2);
    for (int i = 0; i < ADDITIONS; i++) {
        atomic_fetch_add(&shared->sum, 3);
        uint_fast64_t old = atomic_load(&shared->swapped);
        while (!atomic_compare_exchange_weak(&shared->swapped, &old, old + 1)) {}
    }
    for (int i = 0; i < LOCKS; i++) {
        while (atomic_flag_test_and_set_explicit(&shared->lock, memory_order_acquire)) yield();
        CHECK(shared->locked[0] == shared->locked[1]);
        shared->locked[0]++;
        shared->locked[1]++;
        atomic_flag_clear_explicit(&shared->lock, memory_order_release);
    }
}

static void publish(struct shared *shared) {
    for (uint64_t message = 1; message <= MESSAGES; message++) {
        shared->data = message;
        atomic_store_explicit(&shared->published, message, memory_order_release);
    }
}

// Whoever sees that a message is published sees the message.
static void receive(struct shared *shared) {
    for (uint64_t seen = 0; seen < MESSAGES;) {
        uint64_t now = atomic_load_explicit(&shared->published, memory_order_acquire);
        CHECK(now >= seen && shared->data >= now);
        seen = now;
    }
}

static void pushed_atomics(void *argument) {
    use_atomics(argument);
    publish(argument);
}

static void *thread_atomics(void *argument) {
    use_atomics(argument);
    receive(argument);
    return NULL;
}

static void pushed_receiver(void *argument) { receive(argument); }

static void *thread_publisher(void *argument) {
    publish(argument);
    return NULL;
}

void atomics(void) {
    static struct shared shared;
    pthread_t thread = started(thread_atomics, &shared);
    CALL(pushed_atomics, &shared);
    join(thread);
    CHECK(shared.sum == 2 * 3 * ADDITIONS && shared.swapped == 2 * ADDITIONS);
    CHECK(shared.locked[0] == 2 * LOCKS && shared.locked[1] == 2 * LOCKS);
    // The other way round.
    shared.published = shared.data = 0;
    thread = started(thread_publisher, &shared);
    CALL(pushed_receiver, &shared);
    join(thread);
}

struct words {
    _Alignas(4096) volatile uint64_t word[2];
    _Alignas(4096) atomic_uint arrived;
};
enum { WRITES = 200000 };

static void write_word(struct words *words, int which) {
    atomic_fetch_add(&words->arrived, 1);
    while (atomic_load(&words->arrived) < 2) yield();
    for (uint64_t i = 0; i < WRITES; i++) {
        CHECK(words->word[which] == i);
        words->word[which] = i + 1;
    }
}

static void writes_word(void *argument) { write_word(argument, 0); }

static void *thread_writes_word(void *argument) {
    write_word(argument, 1);
    return NULL;
}

void false_sharing(void) {
    static struct words words;
    pthread_t thread = started(thread_writes_word, &words);
    CALL(writes_word, &words);
    join(thread);
    CHECK(words.word[0] == WRITES && words.word[1] == WRITES);
}

struct own {
    uint64_t number;
    uint64_t calls;
    uint64_t *squares;
    char text[100];
};
static __thread uint64_t calls_of_thread;

static void works(void *argument) {
    struct own *own = argument;
    CHECK(own->squares[own->calls] == 0 && calls_of_thread == own->calls);
    own->squares[own->calls] = own->number * own->calls * own->calls;
    own->calls++;
    calls_of_thread++;
    uint64_t *larger = realloc(own->squares, (own->calls + 1) * sizeof *larger);
    CHECK(larger != NULL);
    larger[own->calls] = 0;
    own->squares = larger;
    snprintf(own->text, sizeof own->text, "thread %d has called %d times", (int)own->number, (int)own->calls);
}

static void *thread_calls(void *argument) {
    struct own own = {.number = (uintptr_t)argument, .squares = calloc(1, sizeof(uint64_t))};
    CHECK(own.squares != NULL);
    char text[100];
    for (int round = 0; round < 100; round++) {
        CALL(works, &own);
        snprintf(text, sizeof text, "thread %d has called %d times", (int)own.number, round + 1);
        CHECK(strcmp(own.text, text) == 0);
    }
    CHECK(own.calls == 100 && calls_of_thread == 100);
    for (uint64_t i = 0; i < 100; i++) CHECK(own.squares[i] == own.number * i * i);
    free(own.squares);
    return NULL;
}

void threads(void) {
    pthread_t thread[8];
    for (uintptr_t i = 0; i < 8; i++) thread[i] = started(thread_calls, (void *)(i + 1));
    for (int i = 0; i < 8; i++) join(thread[i]);
}

static atomic_uint meeting;

static void meets(void *argument) {
    (void)argument;
    atomic_fetch_add(&meeting, 1);
    while (atomic_load(&meeting) < 2) yield();
}

static void *thread_meets(void *argument) {
    (void)argument;
    CALL(meets, NULL);
    return NULL;
}

// With two contexts, each of two functions can wait for the other.
void contexts(void) {
    pthread_t first = started(thread_meets, NULL), second = started(thread_meets, NULL);
    join(first);
    join(second);
}
