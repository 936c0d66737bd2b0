// Memory that is not simply read and written: locked, executable, freed but kept, scattered, of a file, and much of it.

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"

static void increments(void *argument) { (*(volatile int *)argument)++; }

static void increments_seven(void *argument) {
    volatile int *number = argument;
    if (*number == 7) *number = 8;
}

static int *map_page(int protection) {
    int *page = mmap(NULL, PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    return page;
}

// The kernel moves pages between mappings that are alike only.
void kinds(void) {
    int protections[] = {PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE | PROT_EXEC};
    for (int kind = 0; kind < 4; kind++) {
        int *page = map_page(protections[kind % 2]);
        if (kind >= 2 && mlock(page, PAGE) != 0) continue;
        *page = 7;
        CALL(increments, page);
        CHECK(*page == 8);
        *page = 7;
        CALL(increments_seven, page);
        CHECK(*page == 8);
        *page = 20;
        CALL(increments, page);
        CHECK(*page == 21 && munmap(page, PAGE) == 0);
    }
}

static void reads_every_second_page(void *argument) {
    volatile unsigned char *bytes = *(unsigned char **)argument;
    int sum = 0;
    for (size_t page = 0; page < 40960; page += 2) sum += bytes[page * PAGE];
    CHECK(sum == 20480);
}

// The list of resident pages is long.
void scattered(void) {
    size_t bytes = (size_t)40960 * PAGE;
    unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (size_t page = 0; page < 40960; page++) memory[page * PAGE] = 1;
    CALL(reads_every_second_page, &memory);
    CALL(reads_every_second_page, &memory);
    CHECK(munmap(memory, bytes) == 0);
}

struct large {
    unsigned char *bytes;
    size_t count;
};

static void writes_all(void *argument) {
    struct large *large = argument;
    memset(large->bytes, 0x5a, large->count);
}

static void check_all(struct large *large) {
    for (size_t at = 0; at < large->count; at += PAGE) CHECK(large->bytes[at] == 0x5a && large->bytes[at + PAGE - 1] == 0x5a);
}

// More than a ring holds comes home at once.
void fork_large(void) {
    struct large large = {.bytes = malloc(64 * MIB), .count = 64 * MIB};
    CHECK(large.bytes != NULL);
    CALL(writes_all, &large);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        check_all(&large);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CALL(writes_all, &large);
    large.bytes = realloc(large.bytes, 80 * MIB);
    CHECK(large.bytes != NULL);
    check_all(&large);
    free(large.bytes);
}

static void reads_pages(void *argument) {
    struct large *large = argument;
    volatile unsigned char *bytes = large->bytes;
    for (size_t at = 0; at < large->count; at += PAGE) (void)bytes[at];
}

// Freed pages may keep their contents, and their protection.
void freed(void) {
    struct large large = {.bytes = (unsigned char *)mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), .count = MIB};
    CHECK(large.bytes != MAP_FAILED);
    memset(large.bytes, 1, MIB);
    CALL(reads_pages, &large);
    CHECK(madvise(large.bytes, MIB, MADV_FREE) == 0);
    memset(large.bytes, 0x5a, MIB);
    check_all(&large);
    CALL(reads_pages, &large);
    CHECK(munmap(large.bytes, MIB) == 0);
}

// One run of pages for us, two mappings for the kernel.
void neighbours(void) {
    unsigned char *upper = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(upper != MAP_FAILED && munmap(upper, 64 * PAGE) == 0);
    unsigned char *lower = upper;
    upper = mmap(lower + 32 * PAGE, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(upper == lower + 32 * PAGE);
    memset(upper, 1, 32 * PAGE);
    struct large large = {.bytes = upper, .count = PAGE};
    CALL(reads_pages, &large);
    CHECK(mmap(lower, 32 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == lower);
    lower[0] = 1;
    large.bytes = lower;
    CALL(reads_pages, &large);
    lower[31 * PAGE] = 2;
    CHECK(upper[0] == 1 && lower[31 * PAGE] == 2);
    CHECK(munmap(lower, 64 * PAGE) == 0);
}

static void reads_first(void *argument) {
    struct large *large = argument;
    large->count = large->bytes[0];
}

static void writes_first(void *argument) { ((struct large *)argument)->bytes[0] = 'w'; }

// What was constant can be written later.
void constant_written(void) {
    char name[] = "/tmp/heddle-pushdown-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0 && write(file, "first", 5) == 5);
    struct large large = {.bytes = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0)};
    CHECK(large.bytes != MAP_FAILED);
    CALL(reads_first, &large);
    CHECK(large.count == 'f' && mprotect(large.bytes, PAGE, PROT_READ | PROT_WRITE) == 0);
    CALL(writes_first, &large);
    CHECK(large.bytes[0] == 'w');
    large.bytes[0] = 'x';
    CHECK(mprotect(large.bytes, PAGE, PROT_READ) == 0);
    CALL(reads_first, &large);
    CHECK(large.count == 'x');
    close(file);
}

// What the program may not access comes home all the same.
void without_access(void) {
    struct large large = {.bytes = (unsigned char *)mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), .count = MIB};
    CHECK(large.bytes != MAP_FAILED);
    CALL(writes_all, &large);
    CHECK(mprotect(large.bytes, MIB, PROT_NONE) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(mprotect(large.bytes, MIB, PROT_READ) == 0);
        check_all(&large);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(mprotect(large.bytes, MIB, PROT_READ | PROT_WRITE) == 0);
    check_all(&large);
}

static atomic_int beside;

static void counts_until_stopped(void *argument) {
    struct large *large = argument;
    for (int round = 0; round < 2000; round++) {
        atomic_fetch_add(&beside, 1);
        large->bytes[round % 8 * PAGE] = 0x5a;
    }
}

static void *pushes_beside(void *argument) {
    for (int i = 0; i < 20; i++) CALL(counts_until_stopped, argument);
    return NULL;
}

// The thread that forks writes pages, locks of the C library's among them, while a function wants them too.
void fork_beside(void) {
    struct large large = {.bytes = malloc(8 * PAGE), .count = 8 * PAGE};
    CHECK(large.bytes != NULL);
    memset(large.bytes, 0x5a, large.count);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, pushes_beside, &large) == 0);
    for (int i = 0; i < 10; i++) {
        for (int before = atomic_load(&beside); before < 30000 && atomic_load(&beside) < before + 100;) usleep(1000);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            check_all(&large);
            free(malloc(100));
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    CHECK(pthread_join(thread, NULL) == 0 && atomic_load(&beside) == 40000);
    free(large.bytes);
}

static atomic_int allocates, stops_allocating;

static void allocates_until_stopped(void *argument) {
    (void)argument;
    atomic_store(&allocates, 1);
    while (!atomic_load(&stops_allocating))
        for (int i = 0; i < 100; i++) {
            char *volatile block = malloc(50000);
            block[0] = 1;
            free(block);
        }
}

static void *allocates_beside(void *argument) {
    (void)argument;
    CALL(allocates_until_stopped, NULL);
    return NULL;
}

// The function holds the allocator's lock most of the time, which the fork needs too.
void fork_beside_allocation(void) {
    struct large large = {.bytes = malloc(8 * PAGE), .count = 8 * PAGE};
    memset(large.bytes, 0x5a, large.count);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocates_beside, NULL) == 0);
    while (!atomic_load(&allocates)) usleep(1000);
    for (int i = 0; i < 10; i++) {
        usleep(2000);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            check_all(&large);
            free(malloc(50000));
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    atomic_store(&stops_allocating, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    free(large.bytes);
}

// Another library of the process serves the faults of some memory, as far memory of its own does. Functions cannot have it, and say why.
void served_elsewhere(void) {
    unsigned char *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    int faults = (int)syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY);
    CHECK(faults >= 0);
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(ioctl(faults, UFFDIO_API, &api) == 0);
    struct uffdio_register range = {.range = {(size_t)memory, 2 * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(ioctl(faults, UFFDIO_REGISTER, &range) == 0);
    struct heddle_pushdown_failure failure = CALL_SIGNALLED(increments, memory + PAGE, SIGSEGV);
    CHECK(failure.address == memory + PAGE);
    CHECK(strstr(heddle_pushdown_reason(), "another userfaultfd") != NULL);
    // The reason is that of the last failure.
    CALL_SIGNALLED(increments, NULL, SIGSEGV);
    CHECK(heddle_pushdown_reason()[0] == 0);
    CHECK(ioctl(faults, UFFDIO_UNREGISTER, &range.range) == 0 && close(faults) == 0);
    CALL(increments, memory + PAGE);
    CHECK(*(int *)(memory + PAGE) == 1 && munmap(memory, 2 * PAGE) == 0);
}
