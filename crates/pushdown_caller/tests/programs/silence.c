// An executor that is there, and does not answer.

#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "cases.h"
#include "terms.h"

static void counts(void *argument) { ++*(int *)argument; }

static void *stops_and_continues(void *argument) {
    pid_t executor = *(pid_t *)argument;
    rest(100);
    stop_executor(executor);
    rest(500);
    CHECK(kill(executor, SIGCONT) == 0);
    return NULL;
}

// One that is stopped is given up, and killed. Its call is lost.
void frozen(void) {
    pid_t executor = executor_process();
    // Nothing is expected from it, so that nobody notices.
    stop_executor(executor);
    rest(3000);
    CHECK(kill(executor, SIGCONT) == 0);
    static int count;
    CALL(counts, &count);
    // For less than the time that it has.
    static struct busy busy;
    static struct caller_thread other;
    start_caller(&other, stays, &busy);
    wait_for_begin(&busy);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, stops_and_continues, &executor) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    rest(500);
    release(&busy);
    join_caller(&other, HEDDLE_PUSHDOWN_OK);

    stop_executor(executor);
    long begin = milliseconds_now();
    static struct heddle_pushdown_failure failure;
    CHECK(call_deeply(counts, &failure) == HEDDLE_PUSHDOWN_LOST && failure.kind == HEDDLE_PUSHDOWN_LOST);
    long took = milliseconds_now() - begin;
    CHECK(took >= 1500 && took < 20000);
    wait_for_end_of(executor);
    CHECK(statistics_now().lost == 1 && statistics_now().open == 0);
    static struct heddle_pushdown_ticket ticket;
    struct heddle_pushdown_terms terms = {.size = sizeof terms, .ticket = &ticket, .flags = HEDDLE_PUSHDOWN_OR_HERE};
    CHECK(heddle_pushdown_with(counts, NULL, &terms, NULL) == HEDDLE_PUSHDOWN_LOST);
    CHECK(heddle_try_cancel(&ticket) == HEDDLE_PUSHDOWN_DECLINED);
}

static void *stops(void *argument) {
    pid_t executor = *(pid_t *)argument;
    rest(200);
    stop_executor(executor);
    return NULL;
}

// It writes nothing that its thread needs afterwards: a system call would write the thread's block.
static void spins(void *argument) {
    struct busy *busy = argument;
    atomic_store(&busy->has_begun, 1);
    while (!atomic_load(&busy->is_released)) __builtin_ia32_pause();
}

// A time-out and a ticket of a call that waits in a stopped executor: nobody knows whether it has begun.
void frozen_queue(void) {
    pid_t executor = executor_process();
    static struct busy busy;
    static struct caller_thread blocker, waiting;
    start_caller(&blocker, spins, &busy);
    wait_for_begin(&busy);
    stop_executor(executor);
    waiting.terms.timeout_ms = 100;
    waiting.terms.flags = HEDDLE_PUSHDOWN_OR_HERE | HEDDLE_PUSHDOWN_AGAIN;
    static int count;
    start_caller(&waiting, counts, &count);
    while (__atomic_load_n(&waiting.ticket.number, __ATOMIC_ACQUIRE) == 0 || statistics_now().open < 2) rest(1);
    CHECK(heddle_try_cancel(&waiting.ticket) == HEDDLE_PUSHDOWN_LOST);
    join_caller(&waiting, HEDDLE_PUSHDOWN_LOST);
    join_caller(&blocker, HEDDLE_PUSHDOWN_LOST);
    CHECK(count == 0);
    wait_for_end_of(executor);
}

static void writes_all(void *argument) { memset(argument, 7, 64 * PAGE); }

// A thread that waits for memory of a stopped executor, while no call is open: the process ends, with a message.
void frozen_page(void) {
    pid_t executor = executor_process();
    char *memory = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CALL(writes_all, memory);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, stops, &executor) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(*(volatile char *)(memory + 40 * PAGE) == 0 || !"the executor has it");
}

// More than the ring holds, for an executor that takes nothing.
void frozen_ring(void) {
    pid_t executor = executor_process();
    size_t bytes = 64 * MIB;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    static int count;
    CALL(counts, memory);
    memset(memory, 3, bytes);
    stop_executor(executor);
    CHECK(heddle_syncmem(memory, bytes) == HEDDLE_PUSHDOWN_LOST && count == 0);
    wait_for_end_of(executor);
}

static void computes(void *argument) {
    long begin = milliseconds_now();
    while (milliseconds_now() - begin < 4000) counts(argument);
}

// One whose functions compute is there.
void busy_is_not_frozen(void) {
    int count = 0;
    CALL(computes, &count);
    CHECK(count > 0 && statistics_now().lost == 0);
}

// This process is stopped with its executor, and goes on before that does.
void stopped_together(void) {
    pid_t executor = executor_process(), this = getpid();
    static struct busy busy;
    static struct caller_thread other;
    start_caller(&other, stays, &busy);
    wait_for_begin(&busy);
    rest(700);
    pid_t helper = fork();
    if (helper == 0) {
        CHECK(kill(executor, SIGSTOP) == 0);
        rest(300);
        CHECK(kill(this, SIGSTOP) == 0);
        rest(4000);
        CHECK(kill(this, SIGCONT) == 0);
        rest(300);
        CHECK(kill(executor, SIGCONT) == 0);
        _exit(0);
    }
    int status = 1;
    CHECK(helper > 0 && waitpid(helper, &status, 0) == helper && status == 0);
    release(&busy);
    join_caller(&other, HEDDLE_PUSHDOWN_OK);
    CALL(counts, &status);
    CHECK(status == 1);
}
