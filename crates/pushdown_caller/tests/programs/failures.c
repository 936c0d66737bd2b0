// Functions that fail, calls that are refused, and an executor that is lost.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"

static void returns(void *argument) { *(int *)argument += 1; }

// The caller and the executor work as before.
static void check_goes_on(void) {
    int value = 1;
    CALL(returns, &value);
    CHECK(value == 2);
}

static int is_within(const void *instruction, void (*function)(void *)) {
    return (uintptr_t)instruction - (uintptr_t)function < 1000;
}

struct failing {
    volatile int *address;
    int written;
    pthread_mutex_t mutex;
};

static void writes_address(void *argument) {
    struct failing *failing = argument;
    failing->written = 1;
    CHECK(pthread_mutex_lock(&failing->mutex) == 0);
    *failing->address = 5;
    failing->written = 2;
}

static void calls_address(void *argument) {
    void (*function)(void) = (void (*)(void))(uintptr_t)((struct failing *)argument)->address;
    function();
}

static volatile sig_atomic_t handled;
static void handle(int signal) {
    (void)signal;
    handled++;
}

void sigsegv(void) {
    struct sigaction action = {.sa_handler = handle};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    static const int constant = 7;
    int *without_access = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(without_access != MAP_FAILED);
    volatile int *addresses[] = {(int *)8, without_access, (int *)&constant};
    for (size_t i = 0; i < 3; i++) {
        struct failing failing = {.address = addresses[i], .mutex = PTHREAD_MUTEX_INITIALIZER};
        struct heddle_pushdown_failure failure = CALL_SIGNALLED(writes_address, &failing, SIGSEGV);
        CHECK(failure.address == addresses[i] && is_within(failure.instruction, writes_address));
        // The executor need not have a mapping that nobody can access.
        CHECK(i == 1 || failure.code == (i == 0 ? SEGV_MAPERR : SEGV_ACCERR));
        CHECK(failing.written == 1 && pthread_mutex_trylock(&failing.mutex) == EBUSY);
        CHECK(pthread_mutex_unlock(&failing.mutex) == 0);
        check_goes_on();
    }
    CHECK(*(const volatile int *)&constant == 7);
    // No address at all. The processor does not say which one it was.
    struct failing failing = {.address = (int *)(UINT64_C(1) << 63), .mutex = PTHREAD_MUTEX_INITIALIZER};
    CALL_SIGNALLED(writes_address, &failing, SIGSEGV);
    check_goes_on();
    // Data is not executed.
    int *data = malloc(sizeof *data);
    CHECK(data != NULL);
    *data = 0xc3;
    failing.address = data;
    struct heddle_pushdown_failure failure = CALL_SIGNALLED(calls_address, &failing, SIGSEGV);
    CHECK(failure.address == data && failure.instruction == data);
    check_goes_on();
    CHECK(handled == 0);
}

static void divides(void *argument) {
    volatile int *zero = argument, hundred = 100;
    *zero = hundred / *zero;
}

void sigfpe(void) {
    int zero = 0;
    struct heddle_pushdown_failure failure = CALL_SIGNALLED(divides, &zero, SIGFPE);
    CHECK(failure.code == FPE_INTDIV && is_within(failure.instruction, divides));
    check_goes_on();
}

static void traps(void *argument) {
    *(volatile int *)argument = 3;
    __builtin_trap();
}

void sigill(void) {
    int written = 0;
    struct heddle_pushdown_failure failure = CALL_SIGNALLED(traps, &written, SIGILL);
    CHECK(written == 3 && is_within(failure.instruction, traps));
    check_goes_on();
}

static void reads_address(void *argument) { (void)*(volatile char *)argument; }

// A page of a mapping that lies behind the end of its file. The executor has no file there, so that it may see no memory at all.
void sigbus(void) {
    char name[] = "/tmp/heddle-pushdown-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0 && ftruncate(file, 10) == 0);
    for (int protection = PROT_READ; protection <= (PROT_READ | PROT_WRITE); protection += PROT_WRITE) {
        char *start = mmap(NULL, 2 * PAGE, protection, MAP_PRIVATE, file, 0);
        CHECK(start != MAP_FAILED);
        CALL(reads_address, start);
        struct heddle_pushdown_failure failure = {0};
        int kind = heddle_pushdown(reads_address, start + PAGE, mode_of_case(), &failure);
        check_kind(kind, &failure, HEDDLE_PUSHDOWN_SIGNAL, __LINE__);
        CHECK((failure.signal == SIGBUS || failure.signal == SIGSEGV) && failure.address == start + PAGE);
        check_goes_on();
    }
    close(file);
}

static volatile int is_deep_enough;

static __attribute__((noinline)) int recurses(volatile char *above) {
    if (is_deep_enough) return 0;
    volatile char frame[5000];
    frame[0] = above[0] + 1;
    return recurses(frame) + frame[0];
}

static void recurses_endlessly(void *argument) {
    char start = 0;
    *(int *)argument = recurses(&start);
}

static void *overflows(void *argument) {
    int result = 0;
    CALL_SIGNALLED(recurses_endlessly, &result, SIGSEGV);
    check_goes_on();
    return argument;
}

void recursion(void) {
    overflows(NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, overflows, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static void calls_abort(void *argument) {
    *(int *)argument = 9;
    abort();
}

void aborts(void) {
    for (int round = 0; round < 3; round++) {
        int written = 0;
        CALL_SIGNALLED(calls_abort, &written, SIGABRT);
        CHECK(written == 9);
        check_goes_on();
    }
}

void null_function(void) {
    struct heddle_pushdown_failure failure = CALL_SIGNALLED(NULL, NULL, SIGSEGV);
    CHECK(failure.address == NULL && failure.instruction == NULL);
    check_goes_on();
}

static void pushes_down(void *argument) {
    int inner = 0;
    struct heddle_pushdown_failure failure = {0};
    CHECK(heddle_pushdown(returns, &inner, mode_of_case(), &failure) == HEDDLE_PUSHDOWN_REFUSED);
    CHECK(inner == 0 && failure.kind == HEDDLE_PUSHDOWN_REFUSED);
    *(int *)argument = 1;
}

void nested(void) {
    int is_done = 0;
    CALL(pushes_down, &is_done);
    CHECK(is_done);
    check_goes_on();
}

void unknown_flags(void) {
    int value = 0;
    struct heddle_pushdown_failure failure = {0};
    CHECK(heddle_pushdown(returns, &value, 1u << 20, &failure) == HEDDLE_PUSHDOWN_REFUSED);
    CHECK(value == 0 && failure.kind == HEDDLE_PUSHDOWN_REFUSED);
    check_goes_on();
}

static _Alignas(4096) atomic_int is_running;

static void runs_for_ever(void *argument) {
    (void)argument;
    atomic_store(&is_running, 1);
    heddle_syncmem(&is_running, sizeof is_running);
    for (;;) __builtin_ia32_pause();
}

pid_t executor_process(void) {
    pid_t executor = heddle_pushdown_process();
    CHECK(executor > 0);
    return executor;
}

// The state of a thread or a process, as the kernel shows it; 0 if it is gone.
static char state_of(const char *path) {
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    char line[512] = "", *end = NULL;
    if (fgets(line, sizeof line, file) != NULL) end = strrchr(line, ')');
    fclose(file);
    return end == NULL ? 0 : end[2];
}

static int are_all_stopped(pid_t process) {
    char path[512];
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *threads = opendir(path);
    CHECK(threads != NULL);
    int are_stopped = 1;
    for (struct dirent *thread; (thread = readdir(threads)) != NULL;) {
        if (thread->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/stat", process, thread->d_name);
        are_stopped &= state_of(path) == 'T';
    }
    closedir(threads);
    return are_stopped;
}

// A signal stops one of its threads, which stops the others as soon as it runs; these may go on answering until then.
void stop_executor(pid_t executor) {
    CHECK(kill(executor, SIGSTOP) == 0);
    struct timespec pause = {.tv_nsec = 1000000};
    while (!are_all_stopped(executor)) nanosleep(&pause, NULL);
}

// It ends soon after it was killed. It may be a zombie, of this process or of the role that has started it.
void wait_for_end_of(pid_t executor) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", executor);
    struct timespec pause = {.tv_nsec = 1000000};
    for (char state; (state = state_of(path)) != 0 && state != 'Z' && state != 'X';) nanosleep(&pause, NULL);
}

static void *kills(void *argument) {
    pid_t executor = *(pid_t *)argument;
    struct timespec pause = {.tv_nsec = 1000000};
    while (!atomic_load(&is_running)) {
        nanosleep(&pause, NULL);
        heddle_pullmem(&is_running, sizeof is_running);
    }
    CHECK(kill(executor, SIGKILL) == 0);
    return NULL;
}

// Far down the stack: what the executor has of it is lost, and this thread does not touch it again.
__attribute__((noinline)) int call_deeply(void (*function)(void *), struct heddle_pushdown_failure *failure) {
    volatile char frames[128 * 1024];
    frames[0] = frames[sizeof frames - 1] = 1;
    int kind = heddle_pushdown(function, NULL, mode_of_case(), failure);
    return frames[0] == 1 ? kind : -1;
}

void lost(void) {
    pid_t executor = executor_process();
    // The dynamic linker finds the function here, and not in the function, which would then have written the linker's variables.
    heddle_syncmem(&is_running, sizeof is_running);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, kills, &executor) == 0);
    static struct heddle_pushdown_failure failure;
    CHECK(call_deeply(runs_for_ever, &failure) == HEDDLE_PUSHDOWN_LOST && failure.kind == HEDDLE_PUSHDOWN_LOST);
    CHECK(pthread_join(thread, NULL) == 0);
    // Only what the executor had is lost.
    static int value;
    int kind = heddle_pushdown(returns, &value, HEDDLE_PUSHDOWN_COHERENT, NULL);
    CHECK(kind == HEDDLE_PUSHDOWN_LOST || kind == HEDDLE_PUSHDOWN_REFUSED);
    CHECK(value == 0);
}

enum { CALLERS = 8 };
static _Alignas(4096) volatile unsigned char contended[64 * 4096], held[(CALLERS + 1) * 4096];
static _Alignas(4096) atomic_int is_killed;

static void *thread_calls_for_ever(void *argument) {
    struct heddle_pushdown_failure *failure = argument;
    CHECK(call_deeply(runs_for_ever, failure) == HEDDLE_PUSHDOWN_LOST);
    return NULL;
}

// Some of these calls run, and some wait for their turn.
void lost_calls(void) {
    pid_t executor = executor_process();
    // The dynamic linker finds the function here, and not in the function, which would then have written the linker's variables.
    heddle_syncmem(&is_running, sizeof is_running);
    pthread_t threads[CALLERS], killer;
    static struct heddle_pushdown_failure failures[CALLERS];
    for (int i = 0; i < CALLERS; i++) CHECK(pthread_create(&threads[i], NULL, thread_calls_for_ever, &failures[i]) == 0);
    CHECK(pthread_create(&killer, NULL, kills, &executor) == 0);
    for (int i = 0; i < CALLERS; i++) CHECK(pthread_join(threads[i], NULL) == 0 && failures[i].kind == HEDDLE_PUSHDOWN_LOST);
    CHECK(pthread_join(killer, NULL) == 0);
}

static void writes_contended(void *argument) {
    (void)argument;
    for (size_t page = 0; page <= CALLERS; page++) held[page * PAGE] = 1;
    atomic_store(&is_running, 1);
    for (;;) {
        for (size_t page = 0; page < 64; page++) contended[page * PAGE]++;
    }
}

static void *thread_writes_contended(void *argument) {
    size_t first = (size_t)(uintptr_t)argument;
    while (!atomic_load(&is_killed)) {
        for (size_t page = 0; page < 64; page++) contended[(page + first) % 64 * PAGE + first]++;
    }
    held[first * PAGE]++;
    CHECK(!"the page is lost");
    return NULL;
}

static void *thread_calls_contended(void *argument) {
    (void)argument;
    heddle_pushdown(writes_contended, NULL, HEDDLE_PUSHDOWN_COHERENT, NULL);
    return NULL;
}

// At each moment many threads wait for pages that the executor has. The process ends, with a message: this function does not return.
void lost_faults(void) {
    pid_t executor = executor_process();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, thread_calls_contended, NULL) == 0);
    for (uintptr_t i = 1; i <= CALLERS; i++) CHECK(pthread_create(&thread, NULL, thread_writes_contended, (void *)i) == 0);
    kills(&executor);
    wait_for_end_of(executor);
    atomic_store(&is_killed, 1);
    for (;;) pause();
}

// The process is killed while functions run and threads wait for pages. It says by which process they run.
void killed(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, thread_calls_contended, NULL) == 0);
    for (uintptr_t i = 1; i <= CALLERS; i++) CHECK(pthread_create(&thread, NULL, thread_writes_contended, (void *)i) == 0);
    struct timespec pause = {.tv_nsec = 1000000};
    while (!atomic_load(&is_running)) nanosleep(&pause, NULL);
    dprintf(STDOUT_FILENO, "executor %d\n", executor_process());
    CALL(runs_for_ever, NULL);
}
