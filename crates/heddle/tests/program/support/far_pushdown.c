// A program that pushes functions down, and whose heap `heddle farmem run --executor` makes far. It has as much of it as it says, so a
// function that found its data elsewhere than here would fail. Each part is one argument; "all" runs those that need no other arrangement.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../../pushdown_caller/include/heddle_pushdown.h"

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)

extern char **environ;

static void fail(const char *what, int line) {
    fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
    _exit(3);
}
#define CHECK(condition) do { if (!(condition)) fail(#condition, __LINE__); } while (0)

// The library is preloaded, and the program is not linked with it.
static int (*push)(void (*)(void *), void *, unsigned, struct heddle_pushdown_failure *);
static int (*open_library)(const struct heddle_pushdown_options *);
static int (*process)(void);
static const char *(*reason)(void);
#define CALL(function, argument) CHECK(push(function, argument, HEDDLE_PUSHDOWN_COHERENT, NULL) == HEDDLE_PUSHDOWN_OK)

// How many pages of the process are in memory.
static size_t resident(void) {
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%*s %zu", &pages) == 1);
    fclose(file);
    return pages;
}

// How many pages the executor has in memory, but for those that it shares.
static size_t resident_in_executor(void) {
    char name[40];
    size_t all, resident, shared;
    snprintf(name, sizeof name, "/proc/%d/statm", process());
    FILE *file = fopen(name, "r");
    CHECK(file != NULL && fscanf(file, "%zu %zu %zu", &all, &resident, &shared) == 3);
    fclose(file);
    return resident - shared;
}

struct node {
    struct node *next;
    uint64_t value;
    char filling[1000];
};

struct list {
    struct node *first;
    uint64_t sum, count;
};

static void build(struct list *list, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        struct node *node = malloc(sizeof *node);
        CHECK(node != NULL);
        *node = (struct node){.next = list->first, .value = i};
        list->first = node;
    }
}

static void add_up(void *argument) {
    struct list *list = argument;
    list->sum = list->count = 0;
    for (struct node *node = list->first; node != NULL; node = node->next) {
        list->sum += node->value;
        list->count++;
    }
}

// Frees every second node, and allocates others.
static void change(void *argument) {
    struct list *list = argument;
    for (struct node *node = list->first; node != NULL && node->next != NULL; node = node->next) {
        struct node *second = node->next;
        node->next = second->next;
        node->value += second->value;
        free(second);
    }
    char *text = NULL;
    CHECK(asprintf(&text, "%zu", (size_t)getpid()) > 0);
    CHECK((size_t)atol(text) == (size_t)getpid());
    free(text);
}

// A list of 20 MiB of which a few are here: a function goes through it, frees what this side has allocated, and the other way round.
static void lists(void) {
    enum { COUNT = 20000 };
    struct list list = {0};
    build(&list, COUNT);
    const uint64_t sum = (uint64_t)COUNT * (COUNT - 1) / 2;
    CALL(add_up, &list);
    CHECK(list.sum == sum && list.count == COUNT);
    CALL(change, &list);
    add_up(&list);
    CHECK(list.sum == sum && list.count == COUNT / 2);
    build(&list, COUNT / 2);
    CALL(add_up, &list);
    CHECK(list.count == COUNT);
    while (list.first != NULL) {
        struct node *node = list.first;
        list.first = node->next;
        free(node);
    }
}

static void fill(void *argument) {
    unsigned char **block = argument;
    *block = malloc(24 * MIB);
    if (*block != NULL) memset(*block, 0x5a, 24 * MIB);
}

// A block that a function has allocated and filled; most of it stays there.
static void block_of_a_function(void) {
    unsigned char *block = NULL;
    size_t before = resident();
    CALL(fill, &block);
    CHECK(block != NULL);
    for (size_t at = 0; at < 24 * MIB; at += PAGE) CHECK(block[at] == 0x5a && block[at + PAGE - 1] == 0x5a);
    CHECK(resident() < before + 8 * MIB / PAGE);
    block = realloc(block, 25 * MIB);
    CHECK(block != NULL && block[24 * MIB - 1] == 0x5a);
    free(block);
}

static void write_mapping(void *argument) { memset(*(char **)argument, 3, 4 * MIB); }

// Large mappings are far too. What is given back is zero when it comes again.
static void mappings(void) {
    size_t before = resident();
    for (int round = 0; round < 8; round++) {
        char *memory = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED);
        for (size_t at = 0; at < 4 * MIB; at += PAGE) CHECK(memory[at] == 0);
        CALL(write_mapping, &memory);
        for (size_t at = 0; at < 4 * MIB; at += PAGE / 2) CHECK(memory[at] == 3);
        CHECK(madvise(memory + MIB, MIB, MADV_DONTNEED) == 0);
        for (size_t at = 0; at < 4 * MIB; at += PAGE) CHECK(memory[at] == (at / MIB == 1 ? 0 : 3));
        memory = mremap(memory, 4 * MIB, 5 * MIB, MREMAP_MAYMOVE);
        CHECK(memory != MAP_FAILED && memory[4 * MIB - 1] == 3 && memory[4 * MIB] == 0);
        CHECK(mprotect(memory, MIB, PROT_READ) == 0);
        CHECK(munmap(memory, 5 * MIB) == 0);
    }
    CHECK(resident() < before + 8 * MIB / PAGE);
}

static uint64_t total;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void work(void *argument) {
    uint64_t seed = *(uint64_t *)argument;
    char *kept[64] = {0};
    for (int i = 0; i < 1000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        char **place = &kept[seed >> 58];
        if (*place != NULL) CHECK(**place == (char)(place - kept));
        free(*place);
        CHECK((*place = malloc(16 + (seed >> 40) % 20000)) != NULL);
        **place = (char)(place - kept);
        CHECK(pthread_mutex_lock(&mutex) == 0);
        total++;
        CHECK(pthread_mutex_unlock(&mutex) == 0);
    }
    for (int i = 0; i < 64; i++) free(kept[i]);
}

static void *thread(void *argument) {
    uint64_t seed = (uint64_t)argument;
    for (int round = 0; round < 4; round++) {
        if ((seed + (uint64_t)round) % 2) CALL(work, &seed);
        else work(&seed);
    }
    return NULL;
}

// Threads of both sides use the heap at the same time.
static void threads(void) {
    pthread_t running[4];
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&running[i], NULL, thread, (void *)i) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(running[i], NULL) == 0);
    CHECK(total == 4 * 4 * 1000);
}

// The executor serves one process.
static void children(void) {
    errno = 0;
    CHECK(fork() == -1 && errno == EAGAIN);
    pid_t child;
    char *arguments[] = {"true", NULL};
    CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    // A shell has an ordinary heap, so it forks.
    CHECK(system("true | true && (exit 0)") == 0);
}

static void fill_up(void *argument) {
    size_t *blocks = argument;
    while (malloc(MIB / 4) != NULL) ++*blocks;
    CHECK(errno == ENOMEM);
}

static void read_byte(void *argument) { CHECK(*(volatile char *)argument == 0); }

// Memory that functions cannot have is an error that says why.
static void out_of_reach(void) {
    char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    struct heddle_pushdown_failure failure;
    CHECK(push(read_byte, shared, HEDDLE_PUSHDOWN_COHERENT, &failure) == HEDDLE_PUSHDOWN_SIGNAL);
    CHECK(failure.signal == SIGSEGV && failure.address == shared && strstr(reason(), "shared memory") != NULL);
    CHECK(push(read_byte, NULL, HEDDLE_PUSHDOWN_COHERENT, &failure) == HEDDLE_PUSHDOWN_SIGNAL && *reason() == 0);
}

// In a far heap that has no executor as its home, functions cannot have the heap.
static void elsewhere(void) {
    const char *library = getenv("PUSHDOWN_LIBRARY");
    void *handle = library == NULL ? NULL : dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    CHECK(handle != NULL);
    *(void **)&open_library = dlsym(handle, "heddle_pushdown_open");
    *(void **)&reason = dlsym(handle, "heddle_pushdown_reason");
    CHECK(open_library(NULL) == HEDDLE_PUSHDOWN_REFUSED);
    puts(reason());
}

int main(int count, char **arguments) {
    const char *part = count > 1 ? arguments[1] : "all";
    if (strcmp(part, "elsewhere") == 0) {
        elsewhere();
        return 0;
    }
    *(void **)&push = dlsym(RTLD_DEFAULT, "heddle_pushdown");
    *(void **)&open_library = dlsym(RTLD_DEFAULT, "heddle_pushdown_open");
    *(void **)&reason = dlsym(RTLD_DEFAULT, "heddle_pushdown_reason");
    *(void **)&process = dlsym(RTLD_DEFAULT, "heddle_pushdown_process");
    CHECK(push != NULL && open_library != NULL && reason != NULL && process != NULL);
    CHECK(open_library(NULL) == HEDDLE_PUSHDOWN_OK);
    if (strcmp(part, "fills-up") == 0) {
        size_t here = 0, there = 0;
        CALL(fill_up, &there);
        fill_up(&here);
        CHECK(there > 300 && here < 8);
    } else if (strcmp(part, "stored") == 0) {
        // Of 30 MiB the executor keeps 4 in memory.
        struct list list = {0};
        build(&list, 30000);
        CALL(add_up, &list);
        CHECK(list.count == 30000 && resident_in_executor() < 16 * MIB / PAGE);
        lists();
    } else {
        CHECK(strcmp(part, "all") == 0);
        lists();
        block_of_a_function();
        mappings();
        threads();
        children();
        out_of_reach();
    }
    puts("done");
    return 0;
}
