/* Pushing functions down: a function of this process runs in an executor, a process beside the memory pool that has the same
 * memory at the same addresses. Link with -lheddle_pushdown. heddle_pushdown.hpp is the interface for C++.
 *
 *     static void sum(void *argument) {
 *         struct table *table = argument;
 *         for (size_t row = 0; row < table->rows; row++) table->sum += table->column[row];
 *     }
 *
 *     int main(void) {
 *         if (heddle_pushdown_open(NULL) != HEDDLE_PUSHDOWN_OK) errx(1, "%s", heddle_pushdown_reason());
 *         ...
 *         if (heddle_pushdown(sum, &table, HEDDLE_PUSHDOWN_COHERENT, NULL) != HEDDLE_PUSHDOWN_OK) ...
 *     }
 *
 * The function is an ordinary function, and pointers in its argument mean what they mean here. While it runs, the thread that
 * called heddle_pushdown() waits and the other threads of the process go on. Both sides see one memory: atomic operations,
 * mutexes and condition variables work between them. Nothing has to be copied, marked or flushed.
 *
 * What a function may do
 *
 *   The function runs as the thread that called: with its stack, its thread-local variables and errno, its thread id and
 *   the locks that it holds. It may use all private memory of the process (globals, heap, stacks, private mappings), call any
 *   function of the program and its libraries, allocate memory and free it. The calling thread makes the function's
 *   system calls, so files, allocations and waiting are those of this process.
 *
 *   - It returns when it is done. It must not leave by an exception, by longjmp() or by pthread_exit().
 *   - exit() in a function ends the process with that status, as everywhere.
 *   - It cannot start threads or processes: fork(), vfork(), posix_spawn() and pthread_create() fail with EAGAIN.
 *     System calls that would change the executor rather than the process (execve, arch_prctl, ptrace) fail too.
 *   - Shared memory (MAP_SHARED) and memory of devices are out of reach: touching them is a SIGSEGV of the function.
 *   - heddle_pushdown() and heddle_pushdown_open() return HEDDLE_PUSHDOWN_REFUSED, and heddle_syncmem() does nothing.
 *
 * Signals
 *
 *   A signal for the calling thread waits until the call has ended, and its handler then runs here. A signal that an
 *   instruction of the function causes (SIGSEGV, SIGBUS, SIGFPE, SIGILL), or abort(), ends the function and not the process: the
 *   call fails with HEDDLE_PUSHDOWN_SIGNAL. The program's handlers for these signals are not called.
 *
 * Threads and processes
 *
 *   All functions here may be called by several threads at the same time, except heddle_pushdown_open(). None may be called by
 *   a signal handler. A child made by fork() has all memory of its parent, but cannot push functions down: its calls are refused.
 *
 * Linux on x86-64 only. Nothing here is durable.
 */
#ifndef HEDDLE_PUSHDOWN_H
#define HEDDLE_PUSHDOWN_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a call ended, or heddle_pushdown_open(). */
enum {
    /* The function ran and returned. */
    HEDDLE_PUSHDOWN_OK = 0,
    /* A signal ended the function in the middle. What it had written is there, memory that it had allocated stays allocated, and
     * locks that it held stay locked. The executor goes on: other calls are not affected. */
    HEDDLE_PUSHDOWN_SIGNAL = 1,
    /* The executor was lost. It is unknown what the function did. The memory that the executor had at that moment is lost with it:
     * a thread that touches it ends the process, with a message. Later calls fail. */
    HEDDLE_PUSHDOWN_LOST = 2,
    /* Too many calls wait for the executor. The function has not run; try again later, or call it here. */
    HEDDLE_PUSHDOWN_BUSY = 3,
    /* The function has not run, and would not the next time: this process cannot push functions down
     * (heddle_pushdown_open() has not succeeded, or this is a child made by fork()), the caller is itself a pushed function, the flags are
     * unknown, or a call with other flags is running. */
    HEDDLE_PUSHDOWN_REFUSED = 4
};

/* Flags of heddle_pushdown(). */
enum {
    /* Each read sees the newest write of either side. */
    HEDDLE_PUSHDOWN_COHERENT = 0
};

struct heddle_pushdown_options {
    /* Always sizeof(struct heddle_pushdown_options): later versions may have more members. */
    size_t size;
    /* Path of the executor's program. NULL: the value of HEDDLE_EXECUTOR in the environment; without it, "heddle-executor" in the
     * folder of this library. */
    const char *executor;
    /* How many functions may run at the same time; further calls wait for their turn. 0: 1. */
    unsigned contexts;
};

/* How a call failed. */
struct heddle_pushdown_failure {
    /* HEDDLE_PUSHDOWN_..., as heddle_pushdown() returned it. The other members are 0 unless it is HEDDLE_PUSHDOWN_SIGNAL. */
    int kind;
    /* The signal, SIGSEGV for example. */
    int signal;
    /* The signal's code, SEGV_MAPERR for example (si_code). */
    int code;
    /* The address that the function accessed, for SIGSEGV and SIGBUS (si_addr). */
    const void *address;
    /* The address of the instruction that caused the signal. */
    const void *instruction;
};

/* Starts the executor. Call it early in main(), before the process has other threads. If functions can be pushed down already, it
 * changes nothing. `options` may be NULL, which means NULL and 0 in its members.
 *
 * Returns HEDDLE_PUSHDOWN_OK, or another kind if the process cannot push functions down; heddle_pushdown_reason() then says why.
 * After a failure the process runs as if it had never called. */
int heddle_pushdown_open(const struct heddle_pushdown_options *options);

/* Why heddle_pushdown_open() failed last in this process: a sentence in English, or "" if it has not failed. The text stays valid until
 * heddle_pushdown_open() fails again. */
const char *heddle_pushdown_reason(void);

/* Runs function(argument) in the executor and waits until it has ended. What this process had written is visible to the function, and
 * what the function wrote is visible here afterwards.
 *
 * Returns HEDDLE_PUSHDOWN_OK, or the kind of failure, which is then described in *failure. `failure` may be NULL. */
int heddle_pushdown(void (*function)(void *), void *argument, unsigned flags, struct heddle_pushdown_failure *failure);

/* Sends home what this process has written to the pages of a range, so that a function finds them there and need not ask for each
 * one. This is about speed only: with HEDDLE_PUSHDOWN_COHERENT both sides see the same bytes with it and without it.
 *
 * Returns HEDDLE_PUSHDOWN_OK, HEDDLE_PUSHDOWN_LOST or HEDDLE_PUSHDOWN_REFUSED. */
int heddle_syncmem(const void *start, size_t bytes);

/* Maps `bytes` bytes of far memory, filled with zeros: its home is the executor. This process gets a page when it touches it, and keeps at most
 * `budget` bytes of the range, at least one page; the oldest pages go back. Functions use the memory where it is, at the speed of memory. Give it
 * back with munmap(). A child made by fork() does not have it.
 *
 * Returns the address, or NULL with errno: EBUSY while functions run, ENOTCONN if functions cannot be pushed down, EINVAL for 0 bytes, ENOMEM. */
void *heddle_far_map(size_t bytes, size_t budget);

#ifdef __cplusplus
}
#endif

#endif
