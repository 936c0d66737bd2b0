// Programs whose executor the role "executors" runs. Each is one argument, a second one is how many functions may run at the same time.
// What the test has to know is written to standard output, a line each.

#define _GNU_SOURCE
#include <elf.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { CALLERS = 3 };

static _Alignas(4096) atomic_int has_begun, is_released;

static void say(const char *what) { dprintf(STDOUT_FILENO, "%s\n", what); }

static void counts(void *argument) { ++*(int *)argument; }

static void stays(void *argument) {
    (void)argument;
    atomic_fetch_add(&has_begun, 1);
    // Not at full speed: the processor is shared with what is observed.
    struct timespec pause = {.tv_nsec = 1000000};
    while (!atomic_load(&is_released)) nanosleep(&pause, NULL);
}

static void spins(void *argument) {
    (void)argument;
    atomic_store(&has_begun, 1);
    for (;;) __builtin_ia32_pause();
}

// The executor has its part of the stack, and it is lost with it.
__attribute__((noinline)) static int call_deeply(void (*function)(void *), void *argument) {
    volatile char frames[128 * 1024];
    frames[0] = frames[sizeof frames - 1] = 1;
    int kind = heddle_pushdown(function, argument, HEDDLE_PUSHDOWN_COHERENT, NULL);
    return frames[0] == 1 ? kind : -1;
}

// Pushes a function down that is to lose its executor, and says why it did.
static void expect_loss(void (*function)(void *), void *argument) {
    int kind = call_deeply(function, argument);
    dprintf(STDOUT_FILENO, "kind %d: %s\n", kind, heddle_pushdown_reason());
}

static void answers(void) {
    static int count;
    for (int i = 0; i < 10; i++) CALL(counts, &count);
    CHECK(count == 10);
    say("ok");
}

// Until somebody closes standard input.
static void waits(void) {
    static int count;
    CALL(counts, &count);
    say("ready");
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    say("ok");
}

// Calls until standard input is closed, and says how many functions have returned, again and again.
static void *reads_input(void *argument) {
    (void)argument;
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    atomic_store(&is_released, 1);
    return NULL;
}

static void calls(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, reads_input, NULL) == 0);
    static int count;
    while (!atomic_load(&is_released)) {
        CALL(counts, &count);
        if (count % 100 == 0) dprintf(STDOUT_FILENO, "calls %d\n", count);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    say("ok");
}

static void *calls_and_stays(void *argument) {
    CHECK(heddle_pushdown(stays, argument, HEDDLE_PUSHDOWN_COHERENT, NULL) == HEDDLE_PUSHDOWN_OK);
    return NULL;
}

// More calls than contexts, until standard input is closed.
static void queue(void) {
    pthread_t threads[CALLERS];
    for (int i = 0; i < CALLERS; i++) CHECK(pthread_create(&threads[i], NULL, calls_and_stays, NULL) == 0);
    struct heddle_pushdown_statistics statistics = {.size = sizeof statistics};
    struct timespec pause = {.tv_nsec = 1000000};
    do {
        nanosleep(&pause, NULL);
        CHECK(heddle_pushdown_statistics(&statistics) == HEDDLE_PUSHDOWN_OK);
    } while (statistics.open < CALLERS || statistics.running == 0);
    say("queued");
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    atomic_store(&is_released, 1);
    for (int i = 0; i < CALLERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    say("ok");
}

// Memory of the executor: pages that are new are made there.
static void fills(void *argument) {
    volatile char *memory = argument;
    for (size_t at = 0; at < 4096 * MIB; at += PAGE) memory[at] = 1;
}

static void allocates(void) {
    void *memory = mmap(NULL, 4096 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    expect_loss(fills, memory);
}

// A part of that, which stays until somebody closes standard input.
static void fills_part(void *argument) {
    volatile char *memory = argument;
    for (size_t at = 0; at < 24 * MIB; at += PAGE) memory[at] = 1;
}

static void holds(void) {
    void *memory = mmap(NULL, 24 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CALL(fills_part, memory);
    waits();
}

// Far memory, several times as large as the executor's memory. Says what has come of it, and stays until somebody closes standard input.
#define FAR (192 * MIB)
#define FAR_WORDS (FAR / sizeof(unsigned long))

static unsigned long *far_words, far_sum;

static void writes_far(void *argument) {
    (void)argument;
    for (size_t at = 0; at < FAR_WORDS; at++) far_words[at] = at;
}

static void adds_far_up(void *argument) {
    (void)argument;
    far_sum = 0;
    for (size_t at = 0; at < FAR_WORDS; at++) far_sum += far_words[at];
}

static void far(void) {
    far_words = heddle_far_map(FAR, MIB);
    CHECK(far_words != NULL);
    int kind = call_deeply(writes_far, NULL);
    if (kind != HEDDLE_PUSHDOWN_OK) {
        dprintf(STDOUT_FILENO, "kind %d: %s\n", kind, heddle_pushdown_reason());
        return;
    }
    CALL(adds_far_up, NULL);
    CHECK(far_sum == FAR_WORDS * (FAR_WORDS - 1) / 2);
    // The program's part of it, which comes from storage too.
    for (size_t at = 0; at < FAR_WORDS; at += 1000 * PAGE / sizeof *far_words) {
        CHECK(far_words[at] == at);
        far_words[at] = 0;
        far_sum -= at;
    }
    unsigned long sum = far_sum;
    CALL(adds_far_up, NULL);
    CHECK(far_sum == sum);
    waits();
}

// Says when its function has begun, which then runs until the executor is lost.
static void *says_begun(void *argument) {
    (void)argument;
    struct timespec pause = {.tv_nsec = 1000000};
    while (!atomic_load(&has_begun)) {
        nanosleep(&pause, NULL);
        heddle_pullmem(&has_begun, sizeof has_begun);
    }
    say("begun");
    return NULL;
}

static void runs(void) {
    heddle_syncmem(&has_begun, sizeof has_begun);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, says_begun, NULL) == 0);
    expect_loss(spins, NULL);
}

// A system call by an instruction of the executor's own program, of which the kernel stops none by itself.
static const unsigned char *found;
static long number;

static void finds_instruction(void *argument) {
    (void)argument;
    const unsigned char *program = (const unsigned char *)0x100000000000;
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)program;
    const Elf64_Phdr *segments = (const Elf64_Phdr *)(program + header->e_phoff);
    for (int i = 0; i < header->e_phnum; i++) {
        if (segments[i].p_type != PT_LOAD || (segments[i].p_flags & PF_X) == 0) continue;
        const unsigned char *code = (const unsigned char *)segments[i].p_vaddr;
        for (size_t at = 0; at + 1 < segments[i].p_memsz && found == NULL; at++) {
            if (code[at] == 0x0f && code[at + 1] == 0x05) found = code + at;
        }
    }
}

static void jumps(void *argument) {
    (void)argument;
    __asm__ volatile("mov %0, %%rax\n\txor %%edi, %%edi\n\txor %%esi, %%esi\n\txor %%edx, %%edx\n\tjmp *%1"
                     : : "r"(number), "r"(found) : "rax", "rdi", "rsi", "rdx", "memory");
}

static void forbidden(const char *name) {
    number = strcmp(name, "openat") == 0 ? SYS_openat : strcmp(name, "socket") == 0 ? SYS_socket : SYS_kill;
    CALL(finds_instruction, NULL);
    CHECK(found != NULL);
    expect_loss(jumps, NULL);
}

// Writes two pages to the file for pages, of which there may be one. The rest is as lost as it may be: nobody knows where the instruction returns to.
static void jumps_to_write(void *argument) {
    register unsigned long offset __asm__("r10") = *(unsigned long *)argument;
    __asm__ volatile("jmp *%0" : : "r"(found), "a"((long)SYS_pwrite64), "D"(100L), "S"(0x100000000000L), "d"(2 * PAGE), "r"(offset)
                     : "memory");
}

static void writes_beyond(void) {
    static unsigned long offset;
    CALL(finds_instruction, NULL);
    CHECK(found != NULL);
    char text[32] = {0};
    say("ready");
    CHECK(read(STDIN_FILENO, text, sizeof text - 1) > 0);
    offset = strtoul(text, NULL, 10);
    call_deeply(jumps_to_write, &offset);
}

int main(int count, char **arguments) {
    CHECK(count >= 2);
    const char *memory = getenv("PUSHDOWN_MEMORY");
    struct heddle_pushdown_options options = {
        .size = sizeof options,
        .contexts = count > 2 ? (unsigned)atoi(arguments[2]) : 1,
        .storage = getenv("PUSHDOWN_STORAGE"),
        .memory = memory == NULL ? 0 : strtoul(memory, NULL, 10),
    };
    if (heddle_pushdown_open(&options) != HEDDLE_PUSHDOWN_OK) {
        dprintf(STDOUT_FILENO, "not opened: %s\n", heddle_pushdown_reason());
        return 3;
    }
    dprintf(STDOUT_FILENO, "executor %d\n", heddle_pushdown_process());
    static const struct {
        const char *name;
        void (*run)(void);
    } CASES[] = {{"answers", answers}, {"waits", waits}, {"calls", calls}, {"queue", queue}, {"allocates", allocates},
                 {"holds", holds}, {"far", far}, {"writes_beyond", writes_beyond}, {"runs", runs}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        if (strcmp(CASES[i].name, arguments[1]) == 0) {
            CASES[i].run();
            return 0;
        }
    }
    forbidden(arguments[1]);
    return 0;
}
