// A program that knows nothing of far memory, and uses its heap in every way that a far heap could get wrong. It needs about
// 60 MiB. Each part is one argument; "all" runs those that need no other arrangement.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)

static void fail(const char *what, int line) {
    fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
    _exit(3);
}
#define CHECK(condition) do { if (!(condition)) fail(#condition, __LINE__); } while (0)

static uint64_t mix(uint64_t x) {
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    return x ^ (x >> 29);
}

// One word of each 512 bytes says where and when it was written.
static void fill(void *block, size_t bytes, uint64_t version) {
    for (size_t at = 0; at + 8 <= bytes; at += 512) {
        *(volatile uint64_t *)((char *)block + at) = mix(at + version * 1000003 + 1);
    }
}

static int holds(const void *block, size_t bytes, uint64_t version) {
    for (size_t at = 0; at + 8 <= bytes; at += 512) {
        if (*(const volatile uint64_t *)((const char *)block + at) != mix(at + version * 1000003 + 1)) return 0;
    }
    return 1;
}

static int is_zero(const char *block, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) {
        if (block[at] != 0) return 0;
    }
    return 1;
}

static void blocks(void) {
    enum { COUNT = 3000 };
    static char *block[COUNT];
    static size_t size[COUNT];
    for (int i = 0; i < COUNT; i++) {
        size[i] = 16 + mix(i) % 40000;
        CHECK((block[i] = malloc(size[i])) != NULL);
        fill(block[i], size[i], i);
    }
    for (int i = 0; i < COUNT; i += 2) {
        CHECK(holds(block[i], size[i], i));
        if (i % 3 == 0) {
            free(block[i]);
            block[i] = NULL;
        } else {
            CHECK((block[i] = realloc(block[i], size[i] * 2)) != NULL);
            CHECK(holds(block[i], size[i], i));
        }
    }
    char *zeroed = calloc(5, MIB);
    CHECK(zeroed != NULL && is_zero(zeroed, 5 * MIB));
    free(zeroed);
    void *aligned = NULL;
    CHECK(posix_memalign(&aligned, 1 << 16, 100000) == 0 && (uintptr_t)aligned % (1 << 16) == 0);
    free(aligned);
    for (int i = 0; i < COUNT; i++) {
        if (block[i] != NULL) CHECK(holds(block[i], size[i], i));
        free(block[i]);
    }
}

static char *map(size_t bytes) {
    char *mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mapping != MAP_FAILED);
    return mapping;
}

static void mappings(void) {
    char *mapping = map(16 * MIB);
    CHECK(is_zero(mapping, 16 * MIB));
    fill(mapping, 16 * MIB, 1);
    // Most of these pages are remote by now.
    CHECK(madvise(mapping + MIB, 3 * MIB, MADV_DONTNEED) == 0);
    CHECK(is_zero(mapping + MIB, 3 * MIB));
    CHECK(holds(mapping, MIB, 1));
    CHECK(munmap(mapping + 8 * MIB, 4 * MIB) == 0);
    CHECK(*(uint64_t *)(mapping + 12 * MIB) == mix(12 * MIB + 1000003 + 1));
    // What is mapped next may have the same addresses, and reads as zeros.
    char *again = map(4 * MIB);
    CHECK(is_zero(again, 4 * MIB));
    CHECK(munmap(again, 4 * MIB) == 0);
    CHECK(munmap(mapping, 8 * MIB) == 0 && munmap(mapping + 12 * MIB, 4 * MIB) == 0);

    mapping = map(2 * MIB);
    fill(mapping, 2 * MIB, 2);
    mapping = mremap(mapping, 2 * MIB, 12 * MIB, MREMAP_MAYMOVE);
    CHECK(mapping != MAP_FAILED && holds(mapping, 2 * MIB, 2) && is_zero(mapping + 2 * MIB, 10 * MIB));
    mapping = mremap(mapping, 12 * MIB, MIB, 0);
    CHECK(mapping != MAP_FAILED && holds(mapping, MIB, 2));
    CHECK(mprotect(mapping, PAGE, PROT_READ) == 0 && holds(mapping, PAGE, 2));
    CHECK(mprotect(mapping, PAGE, PROT_READ | PROT_WRITE) == 0);
    mapping[0] = 1;
    CHECK(munmap(mapping, MIB) == 0);
    CHECK(getenv("LD_PRELOAD") == NULL || mlockall(MCL_CURRENT) == -1);
}

static void system_calls(void) {
    char *mapping = map(20 * MIB);
    fill(mapping, 20 * MIB, 3);
    char name[] = "/tmp/far-heap-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0);
    // From pages that are mostly absent, and back into others.
    for (size_t at = 0; at < 20 * MIB; at += 4 * MIB) CHECK(write(file, mapping + at, 4 * MIB) == (ssize_t)(4 * MIB));
    char *back = map(20 * MIB);
    struct iovec parts[2] = {{back, 9 * MIB}, {back + 9 * MIB, 11 * MIB}};
    CHECK(lseek(file, 0, SEEK_SET) == 0);
    CHECK(readv(file, parts, 2) == (ssize_t)(20 * MIB));
    CHECK(holds(back, 20 * MIB, 3) && memcmp(back, mapping, 20 * MIB) == 0);
    close(file);
    munmap(mapping, 20 * MIB);
    munmap(back, 20 * MIB);
}

static void *churn(void *seed) {
    enum { COUNT = 120 };
    char *block[COUNT] = {NULL};
    size_t size[COUNT];
    uint64_t random = (uintptr_t)seed;
    for (int step = 0; step < 4000; step++) {
        random = mix(random + step);
        int i = random % COUNT;
        if (block[i] != NULL) CHECK(holds(block[i], size[i], i + (uintptr_t)seed));
        free(block[i]);
        size[i] = 16 + (random >> 20) % 100000;
        CHECK((block[i] = malloc(size[i])) != NULL);
        fill(block[i], size[i], i + (uintptr_t)seed);
    }
    for (int i = 0; i < COUNT; i++) free(block[i]);
    return NULL;
}

static void threads(void) {
    pthread_t thread[4];
    for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&thread[i], NULL, churn, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

static void wait_for(pid_t child) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    if (status != 0) fprintf(stderr, "a child ended with status %x\n", status);
    CHECK(status == 0);
}

// Parent and child see what was there at the fork, and then each its own writes.
static void forks(void) {
    char *mapping = map(24 * MIB);
    fill(mapping, 24 * MIB, 10);
    int go[2];
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        CHECK(read(go[0], &byte, 1) == 1);
        CHECK(holds(mapping, 24 * MIB, 10));
        fill(mapping, 12 * MIB, 20);
        pid_t grandchild = fork();
        CHECK(grandchild >= 0);
        if (grandchild == 0) {
            CHECK(holds(mapping, 12 * MIB, 20) && holds(mapping + 16 * MIB, PAGE, 10) == 0);
            char *own = malloc(8 * MIB);
            CHECK(own != NULL);
            fill(own, 8 * MIB, 30);
            fill(mapping, 12 * MIB, 31);
            CHECK(holds(own, 8 * MIB, 30) && holds(mapping, 12 * MIB, 31));
            free(own);
            _exit(0);
        }
        wait_for(grandchild);
        CHECK(holds(mapping, 12 * MIB, 20));
        CHECK(madvise(mapping, 4 * MIB, MADV_DONTNEED) == 0 && is_zero(mapping, 4 * MIB));
        _exit(0);
    }
    fill(mapping, 24 * MIB, 11);
    CHECK(write(go[1], "x", 1) == 1);
    CHECK(holds(mapping, 24 * MIB, 11));
    wait_for(child);
    CHECK(holds(mapping, 24 * MIB, 11));
    munmap(mapping, 24 * MIB);
    close(go[0]);
    close(go[1]);
}

// While other threads allocate and write.
static void forks_beside_threads(void) {
    pthread_t thread[2];
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&thread[i], NULL, churn, (void *)(i + 7)) == 0);
    char *mapping = map(4 * MIB);
    for (int round = 0; round < 10; round++) {
        fill(mapping, 4 * MIB, round);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(holds(mapping, 4 * MIB, round) ? 0 : 4);
        fill(mapping, 4 * MIB, 100 + round);
        wait_for(child);
        CHECK(holds(mapping, 4 * MIB, 100 + round));
    }
    for (int i = 0; i < 2; i++) CHECK(pthread_join(thread[i], NULL) == 0);
    munmap(mapping, 4 * MIB);
}

static void executes(const char *self) {
    pid_t child = vfork();
    CHECK(child >= 0);
    if (child == 0) {
        execl(self, self, "blocks", NULL);
        _exit(5);
    }
    wait_for(child);
}

// As daemons do. The heap is served all the same.
static void closes_all(void) {
    for (int file = 3; file < 1024; file++) close(file);
    blocks();
}

// Allocations fail as on a small machine, and work again.
static void fills_up(void) {
    enum { COUNT = 1000 };
    static char *block[COUNT];
    int count = 0;
    while (count < COUNT && (block[count] = malloc(4 * MIB)) != NULL) {
        fill(block[count], 4 * MIB, count);
        count++;
    }
    CHECK(count > 5 && count < COUNT);
    for (int i = 0; i < count; i++) CHECK(holds(block[i], 4 * MIB, i));
    for (int i = 0; i < count; i++) free(block[i]);
    char *again = malloc(12 * MIB);
    CHECK(again != NULL);
    fill(again, 12 * MIB, 1);
    CHECK(holds(again, 12 * MIB, 1));
    free(again);
}

int main(int count, char **arguments) {
    const char *part = count > 1 ? arguments[1] : "all";
    int all = strcmp(part, "all") == 0;
    if (all || strcmp(part, "blocks") == 0) blocks();
    if (all || strcmp(part, "mappings") == 0) mappings();
    if (all || strcmp(part, "system-calls") == 0) system_calls();
    if (all || strcmp(part, "threads") == 0) threads();
    if (all || strcmp(part, "forks") == 0) forks();
    if (all || strcmp(part, "forks-beside-threads") == 0) forks_beside_threads();
    if (all || strcmp(part, "executes") == 0) executes("/proc/self/exe");
    if (all || strcmp(part, "closes-all") == 0) closes_all();
    if (strcmp(part, "fills-up") == 0) fills_up();
    if (strcmp(part, "waits") == 0) {
        char *block = map(30 * MIB);
        fill(block, 30 * MIB, 1);
        puts("ready");
        fflush(stdout);
        pause();
    }
    if (strcmp(part, "segfaults") == 0) *(volatile int *)8 = 1;
    if (strcmp(part, "fails") == 0) return 7;
    puts("done");
    return 0;
}
