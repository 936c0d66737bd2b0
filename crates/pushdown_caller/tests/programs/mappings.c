// Mappings that come, go and change while the executor has pages of them.

#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"

#define LARGE (64 * MIB)

struct range {
    unsigned char *start;
    size_t bytes;
    unsigned char value;
};

// At this address if it is free, and anywhere if it is NULL.
static unsigned char *map(unsigned char *address, size_t bytes) {
    unsigned char *start = mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED && (address == NULL || start == address));
    return start;
}

static void write_pages(void *argument) {
    struct range *range = argument;
    for (size_t at = 0; at < range->bytes; at += PAGE) range->start[at] = range->value;
}

static void read_pages(void *argument) {
    struct range *range = argument;
    for (size_t at = 0; at < range->bytes; at += PAGE) CHECK(range->start[at] == range->value);
}

static void unmap(void *argument) {
    struct range *range = argument;
    CHECK(munmap(range->start, range->bytes) == 0);
}

static void drop(void *argument) {
    struct range *range = argument;
    CHECK(madvise(range->start, range->bytes, MADV_DONTNEED) == 0);
}

static void free_block(void *argument) { free(argument); }

static void map_and_write(void *argument) {
    struct range *range = argument;
    range->start = map(range->start, range->bytes);
    struct range zeros = *range;
    zeros.value = 0;
    read_pages(&zeros);
    write_pages(range);
}

static void unmap_between(int is_unmapped_by_function, void (*gone)(void *), int is_mapped_again) {
    // Half of the pages are the executor's, half are the caller's.
    struct range range = {.start = map(NULL, MIB), .bytes = MIB, .value = 2};
    struct range half = {.start = range.start, .bytes = MIB / 2, .value = 1};
    write_pages(&range);
    CALL(write_pages, &half);
    if (is_unmapped_by_function) CALL(gone, &range);
    else gone(&range);
    if (is_mapped_again) map(range.start, MIB);
    range.value = 0;
    CALL(read_pages, &range);
    read_pages(&range);
    CALL(write_pages, &half);
    CHECK(range.start[0] == 1 && range.start[MIB / 2] == 0);
    unmap(&range);
}

void unmapped(void) {
    for (int round = 0; round < 4; round++) {
        unmap_between(round % 2, unmap, 1);
        unmap_between(round % 2, drop, 0);
    }
    // As a program does: a large block is a mapping of its own.
    unsigned char *block = malloc(LARGE);
    CHECK(block != NULL);
    struct range range = {.start = block, .bytes = LARGE, .value = 5};
    write_pages(&range);
    CALL(read_pages, &range);
    CALL(free_block, block);
    unsigned char *again = calloc(LARGE, 1);
    CHECK(again != NULL);
    range = (struct range){.start = again, .bytes = LARGE, .value = 0};
    CALL(read_pages, &range);
    read_pages(&range);
    free(again);
    // A part of a mapping.
    range = (struct range){.start = map(NULL, MIB), .bytes = MIB, .value = 6};
    CALL(write_pages, &range);
    CHECK(munmap(range.start + 16 * PAGE, 16 * PAGE) == 0);
    struct range hole = {.start = range.start + 16 * PAGE, .bytes = 16 * PAGE, .value = 7};
    CALL_SIGNALLED(write_pages, &hole, SIGSEGV);
    CALL(map_and_write, &hole);
    read_pages(&hole);
    hole = (struct range){.start = range.start, .bytes = 16 * PAGE, .value = 6};
    read_pages(&hole);
    hole.start = range.start + 32 * PAGE;
    read_pages(&hole);
    unmap(&range);
}

struct file_range {
    int file;
    char *start;
};

static void map_file(void *argument) {
    struct file_range *range = argument;
    range->start = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, range->file, 0);
    CHECK(range->start != MAP_FAILED);
    CHECK(strcmp(range->start, "first page") == 0 && strcmp(range->start + PAGE, "second page") == 0);
    strcpy(range->start, "written");
}

static void read_constant_file(void *argument) {
    struct file_range *range = argument;
    CHECK(strcmp(range->start, "first page") == 0 && strcmp(range->start + PAGE, "second page") == 0);
}

void mappings(void) {
    struct range range = {.bytes = MIB, .value = 1};
    CALL(map_and_write, &range);
    read_pages(&range);
    range.value = 2;
    write_pages(&range);
    CALL(read_pages, &range);
    CALL(unmap, &range);
    // The caller maps there anew, and over pages that the executor has.
    range.value = 0;
    CHECK(map(range.start, MIB) == range.start);
    CALL(read_pages, &range);
    range.value = 3;
    CALL(write_pages, &range);
    void *over = mmap(range.start, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(over == range.start);
    range.value = 0;
    CALL(read_pages, &range);
    read_pages(&range);
    unmap(&range);
}

// Pages of a file, in mappings that the function and the caller make.
void file_mapping(void) {
    char name[] = "/tmp/heddle-pushdown-XXXXXX";
    struct file_range file = {.file = mkstemp(name)};
    CHECK(file.file >= 0 && unlink(name) == 0);
    CHECK(pwrite(file.file, "first page", 11, 0) == 11 && pwrite(file.file, "second page", 12, PAGE) == 12);
    CALL(map_file, &file);
    CHECK(strcmp(file.start, "written") == 0 && strcmp(file.start + PAGE, "second page") == 0);
    CHECK(munmap(file.start, 2 * PAGE) == 0);
    file.start = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE, file.file, 0);
    CHECK(file.start != MAP_FAILED);
    CALL(read_constant_file, &file);
    close(file.file);
}

// The pages of a mapping that moves stay what they are, wherever they are. A kernel or a library may refuse to move it.
void moves(void) {
    struct range range = {.start = map(NULL, MIB), .bytes = MIB, .value = 4};
    CALL(write_pages, &range);
    struct range old = range;
    unsigned char *moved = mremap(range.start, MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, map(NULL, 8 * MIB));
    if (moved != MAP_FAILED) {
        range.start = moved;
        CALL_SIGNALLED(read_pages, &old, SIGSEGV);
    } else {
        CHECK(errno == ENOMEM);
    }
    read_pages(&range);
    CALL(read_pages, &range);
    if (moved != MAP_FAILED) {
        struct range tail = {.start = moved + MIB, .bytes = 3 * MIB, .value = 0};
        CALL(read_pages, &tail);
        tail.value = 5;
        CALL(write_pages, &tail);
        read_pages(&tail);
    }
    // The C library moves large blocks, or copies them.
    range = (struct range){.start = malloc(MIB), .bytes = MIB, .value = 6};
    CHECK(range.start != NULL);
    CALL(write_pages, &range);
    CHECK((range.start = realloc(range.start, LARGE)) != NULL);
    read_pages(&range);
    range.value = 7;
    CALL(write_pages, &range);
    CHECK((range.start = realloc(range.start, MIB / 2)) != NULL);
    range.bytes = MIB / 2;
    read_pages(&range);
    free(range.start);
}

static sigjmp_buf after_fault;
static void *volatile fault_address;

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    fault_address = info->si_addr;
    siglongjmp(after_fault, 1);
}

static void protect(unsigned char *start, int protection) { CHECK(mprotect(start, 4 * PAGE, protection) == 0); }
static void protect_for_reading(void *argument) { protect(((struct range *)argument)->start, PROT_READ); }
static void protect_for_nothing(void *argument) { protect(((struct range *)argument)->start, PROT_NONE); }
static void protect_for_writing(void *argument) { protect(((struct range *)argument)->start, PROT_READ | PROT_WRITE); }

static void check_caller_faults(void (*access)(void *), struct range *range) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    CHECK(sigaction(SIGSEGV, &action, &before) == 0);
    fault_address = NULL;
    if (sigsetjmp(after_fault, 1) == 0) {
        access(range);
        CHECK(!"the access is an error");
    }
    CHECK(fault_address == range->start);
    CHECK(sigaction(SIGSEGV, &before, NULL) == 0);
}

void protections(void) {
    struct range range = {.start = map(NULL, 4 * PAGE), .bytes = 4 * PAGE, .value = 1};
    // The side that protects, in turn.
    for (int by_function = 0; by_function < 2; by_function++) {
        range.value = 1;
        CALL(write_pages, &range);
        if (by_function) CALL(protect_for_reading, &range);
        else protect_for_reading(&range);
        struct heddle_pushdown_failure failure = CALL_SIGNALLED(write_pages, &range, SIGSEGV);
        CHECK(failure.address == range.start);
        check_caller_faults(write_pages, &range);
        read_pages(&range);
        CALL(read_pages, &range);

        if (by_function) CALL(protect_for_nothing, &range);
        else protect_for_nothing(&range);
        failure = CALL_SIGNALLED(read_pages, &range, SIGSEGV);
        CHECK(failure.address == range.start);
        check_caller_faults(read_pages, &range);

        if (by_function) CALL(protect_for_writing, &range);
        else protect_for_writing(&range);
        CALL(read_pages, &range);
        range.value = 2;
        CALL(write_pages, &range);
        read_pages(&range);
        range.value = 3;
        write_pages(&range);
        CALL(read_pages, &range);
    }
    unmap(&range);
}

void shared_mapping(void) {
    unsigned char *start = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(start != MAP_FAILED);
    struct range range = {.start = start, .bytes = PAGE, .value = 1};
    write_pages(&range);
    CHECK(CALL_SIGNALLED(read_pages, &range, SIGSEGV).address == start);
    range.value = 2;
    CHECK(CALL_SIGNALLED(write_pages, &range, SIGSEGV).address == start);
    range.value = 1;
    read_pages(&range);
    // A private mapping beside it is unharmed.
    range.start = map(NULL, PAGE);
    CALL(write_pages, &range);
    read_pages(&range);
}
