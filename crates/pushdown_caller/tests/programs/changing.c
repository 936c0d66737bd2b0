// Memory that threads of the caller allocate, free, map, drop, move and protect while functions do the same beside them. Each byte that
// comes back is checked.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>

#include "cases.h"
#include "check.h"
#include "work.h"

// Blocks of the heap in lists, from which any thread takes and to which any thread adds.
struct block {
    struct block *next;
    size_t bytes;
    uint64_t seed;
    unsigned char rest[];
};

enum { LISTS = 4, BLOCKS_MAX = 64 };
static struct list {
    _Alignas(4096) pthread_mutex_t mutex;
    struct block *first;
    int count;
} lists[LISTS];

static void fill(struct block *block) {
    size_t count = block->bytes - sizeof *block;
    for (size_t at = 0; at < count; at += at < 64 ? 1 : 509) block->rest[at] = (unsigned char)(block->seed + at);
    if (count > 0) block->rest[count - 1] = (unsigned char)(block->seed + count - 1);
}

static void check_block(const struct block *block) {
    size_t count = block->bytes - sizeof *block;
    for (size_t at = 0; at < count; at += at < 64 ? 1 : 509) CHECK(block->rest[at] == (unsigned char)(block->seed + at));
    if (count > 0) CHECK(block->rest[count - 1] == (unsigned char)(block->seed + count - 1));
}

// Small ones are frequent; the largest are mappings of their own.
static size_t some_bytes(uint64_t random) {
    static const size_t LARGEST[] = {64, 64, 64, 64, 1024, 1024, 1024, 1024, 1024, 16384, 16384, 16384, 16384, 262144, 262144, 4 * MIB};
    size_t bytes = (random >> 8) % LARGEST[random % 16];
    return bytes < sizeof(struct block) ? sizeof(struct block) : bytes;
}

static void walk(struct list *list) {
    int count = 0;
    for (struct block *block = list->first; block != NULL; block = block->next, count++) CHECK(block->bytes >= sizeof *block);
    CHECK(count == list->count);
}

static void use_blocks(struct worker *worker) {
    uint64_t random = next_random(&worker->random);
    struct list *list = &lists[random % LISTS];
    struct block *block = NULL;
    if (random >> 8 & 1) {
        size_t bytes = some_bytes(random >> 16);
        int is_zero = random >> 9 & 1;
        block = is_zero ? calloc(1, bytes) : malloc(bytes);
        CHECK(block != NULL);
        for (size_t at = 0; is_zero && at < bytes; at += at < 64 ? 1 : 509) CHECK(((unsigned char *)block)[at] == 0);
        block->bytes = bytes;
        block->seed = random >> 12;
        fill(block);
    }
    CHECK(pthread_mutex_lock(&list->mutex) == 0);
    if (random >> 10 % 8 == 0) walk(list);
    if (block != NULL && list->count < BLOCKS_MAX) {
        block->next = list->first;
        list->first = block;
        list->count++;
        block = NULL;
    } else if (block == NULL && list->first != NULL) {
        block = list->first;
        list->first = block->next;
        list->count--;
    }
    CHECK(pthread_mutex_unlock(&list->mutex) == 0);
    if (block == NULL) return;
    check_block(block);
    if (random >> 11 & 1) {
        size_t before = block->bytes, bytes = some_bytes(random >> 20);
        struct block *other = realloc(block, bytes);
        CHECK(other != NULL);
        block = other;
        block->bytes = bytes < before ? bytes : before;
        // The last byte of the smaller one need not be one that was filled.
        size_t count = block->bytes - sizeof *block;
        for (size_t at = 0; at + 1 < count; at += at < 64 ? 1 : 509) CHECK(block->rest[at] == (unsigned char)(block->seed + at));
    }
    free(block);
}

static void begin_lists(void) {
    for (int i = 0; i < LISTS; i++) CHECK(pthread_mutex_init(&lists[i].mutex, NULL) == 0);
}

static void end_lists(void) {
    for (int i = 0; i < LISTS; i++) {
        walk(&lists[i]);
        for (struct block *block = lists[i].first, *next; block != NULL; block = next) {
            next = block->next;
            check_block(block);
            free(block);
        }
    }
}

void blocks(void) {
    begin_lists();
    work(use_blocks, NULL, 2);
    end_lists();
}

// The heap grows and shrinks by `brk` all the time.
void blocks_trimmed(void) {
    CHECK(mallopt(M_TRIM_THRESHOLD, 4096) == 1 && mallopt(M_TOP_PAD, 0) == 1 && mallopt(M_MMAP_THRESHOLD, 1 << 30) == 1);
    CHECK(mallopt(M_ARENA_MAX, 1) == 1);
    begin_lists();
    work(use_blocks, NULL, 2);
    end_lists();
}

static void *allocates(void *argument) {
    struct worker worker = {.random = (uintptr_t)argument};
    for (int i = 0; i < 20; i++) use_blocks(&worker);
    return NULL;
}

static void starts_threads(void) {
    static uintptr_t seed = 1000;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, allocates, (void *)++seed) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

// Threads come and go: their stacks and arenas are used again.
void blocks_threads(void) {
    begin_lists();
    work(use_blocks, starts_threads, 2);
    end_lists();
}

static void loads_library(void) {
    void *library = dlopen("libresolv.so.2", RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL && dlsym(library, "ns_initparse") != NULL);
    CHECK(dlclose(library) == 0);
}

// A library comes and goes.
void blocks_library(void) {
    begin_lists();
    work(use_blocks, loads_library, 2);
    end_lists();
}

static atomic_ulong alarms;

static void on_alarm(int signal) {
    (void)signal;
    atomic_fetch_add(&alarms, 1);
}

// Each thread of the caller may be interrupted at any instruction, in calls and out of them.
void blocks_alarms(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval every = {.it_interval = {.tv_usec = 300}, .it_value = {.tv_usec = 300}}, never = {.it_value = {.tv_usec = 0}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
    begin_lists();
    work(use_blocks, NULL, 2);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && atomic_load(&alarms) > 0);
    end_lists();
}

static FILE *lines;
static atomic_ulong lines_written;

static void write_line(struct worker *worker) {
    uint64_t number = next_random(&worker->random) >> 32;
    CHECK(fprintf(lines, "%lu and again %lu\n", number, number) > 0);
    atomic_fetch_add(&lines_written, 1);
    if (number % 64 == 0) CHECK(fflush(lines) == 0);
}

// Both sides write lines to one stream.
void lines_of_both(void) {
    lines = tmpfile();
    CHECK(lines != NULL);
    work(write_line, NULL, 1);
    rewind(lines);
    unsigned long first, second, count = 0;
    while (fscanf(lines, "%lu and again %lu\n", &first, &second) == 2) {
        CHECK(first == second);
        count++;
    }
    CHECK(feof(lines) && count == atomic_load(&lines_written));
    fclose(lines);
}
