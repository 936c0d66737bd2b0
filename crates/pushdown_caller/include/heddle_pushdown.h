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
 * heddle_pushdown_with() is heddle_pushdown() with terms: a time-out, a limit, what follows if the function has not run, a ticket by
 * which another thread can cancel the call.
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
 *   - Shared memory (MAP_SHARED), memory of devices, and memory that another userfaultfd serves (a far heap of `heddle farmem run` without
 *     --executor, a farmem::Region) are out of reach: touching them is a SIGSEGV of the function, and heddle_pushdown_reason() says so.
 *   - heddle_pushdown() and heddle_pushdown_open() return HEDDLE_PUSHDOWN_REFUSED.
 *
 * Weaker coherence
 *
 *   While both sides use one page, it travels between them: each change of hands costs some 10 microseconds. Programs that can do with
 *   less than one memory say so by a flag of the call: HEDDLE_PUSHDOWN_PSO, HEDDLE_PUSHDOWN_WEAK, HEDDLE_PUSHDOWN_OFF. In each of them
 *
 *   - the function sees all that this process had written when the call began, and after the call this process sees all that the
 *     function has written: to variables, on the stack of the caller, errno, the heap;
 *   - the sides see something of each other's writes at the latest where they synchronise: with heddle_syncmem(), which functions call
 *     too; so it is with each system call of a function, for the whole memory, on both sides. System calls of other threads of this process
 *     see what their thread sees;
 *   - of one side, all threads see one memory, with locks and atomics as usual. The functions of all calls are one side.
 *
 *   What does not work between the sides while a call runs: with HEDDLE_PUSHDOWN_WEAK and HEDDLE_PUSHDOWN_OFF atomic operations, and
 *   with them all locks; with HEDDLE_PUSHDOWN_PSO a lock excludes others, but what it protects may be seen as it was before. So a function
 *   must not use what other threads of this process use meanwhile, and hide behind a lock: the same FILE, a lazily initialised
 *   variable, above all the heap. malloc() and free() of one arena by a function and by another thread of this process at the same time
 *   destroy the heap. A program is safe if its functions allocate nothing and free nothing, or if all other threads that do so wait.
 *   What both sides use, they use by writes to bytes of their own, and heddle_syncmem().
 *
 * Signals
 *
 *   A signal for the calling thread waits until the call has ended, and its handler then runs here. A signal that an
 *   instruction of the function causes (SIGSEGV, SIGBUS, SIGFPE, SIGILL), or abort(), ends the function and not the process: the
 *   call fails with HEDDLE_PUSHDOWN_SIGNAL. The program's handlers for these signals are not called.
 *
 * Limits
 *
 *   A function has no limit unless the options or the terms of its call say so: it may run for ever. When a limit has passed, counted in real time
 *   from the moment at which it began, the executor ends the function where it is, and its call fails with HEDDLE_PUSHDOWN_KILLED. No
 *   other call is affected.
 *
 *   - Nothing is undone. Locks that the function held stay held, those of the C library included: a function that was ended within malloc()
 *     can leave the arena of its thread locked, and the next malloc() there waits for ever. A program that goes on after
 *     HEDDLE_PUSHDOWN_KILLED must know that the function held no lock which is needed later.
 *   - A function that waits for memory ends at once. So does one that waits in a system call, and the executor is free for other calls;
 *     but heddle_pushdown() returns only when that system call has returned, since the calling thread is in it. mprotect() is
 *     waited for.
 *   - heddle_pushdown_torn() names the memory that may be half-written.
 *
 * The executor itself
 *
 *   While calls are open, or memory that the executor has is awaited, the library asks the executor every 500 ms whether it is there. If it does
 *   not answer for the time in the options, it is given up, as if it had ended, and killed. A message on standard error says so after a
 *   quarter of that time. Time in which this process was stopped does not count.
 *
 *   The executor is a child of this process, or belongs to the role "executors" if the options or HEDDLE_EXECUTORS name its socket. The
 *   role limits the executor's memory and processor time, and lets it see nothing of the host. If it ends the executor, or the executor ends
 *   otherwise, heddle_pushdown_reason() says why.
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
     * a thread that touches it ends the process, with a message. Later calls fail. In a weaker mode this process goes on with its own view
     * of pages that both sides had, unless the function had written them and synchronised. */
    HEDDLE_PUSHDOWN_LOST = 2,
    /* Too many calls wait for the executor, or calls with another flag for coherence run. The function has not run; try again later,
     * or call it here. It does not wait by itself: a running function may be waiting for what this thread does next. */
    HEDDLE_PUSHDOWN_BUSY = 3,
    /* The function has not run, and would not the next time: this process cannot push functions down
     * (heddle_pushdown_open() has not succeeded, or this is a child made by fork()), the caller is itself a pushed function, or the flags
     * are unknown. */
    HEDDLE_PUSHDOWN_REFUSED = 4,
    /* The call was cancelled before its turn came: the function has not run. */
    HEDDLE_PUSHDOWN_CANCELLED = 5,
    /* The function ran for longer than its limit, and was ended in the middle. What it had written is there, wholly or in part
     * (heddle_pushdown_torn()); locks that it held stay locked. Other calls go on. */
    HEDDLE_PUSHDOWN_KILLED = 6,
    /* Of heddle_try_cancel() alone: the function runs, or has ended, and its call goes on as if nobody had asked. */
    HEDDLE_PUSHDOWN_DECLINED = 7
};

/* Flags of heddle_pushdown(): one of these. All calls that run at the same time have the same. */
enum {
    /* Each read sees the newest write of either side. */
    HEDDLE_PUSHDOWN_COHERENT = 0,
    /* Partial store order: readers are not disturbed. When one side begins to write a page, the other keeps reading its copy as it was.
     *
     * - One side at a time can write a page, and it writes onto the newest contents: no write is lost, and atomic read-modify-write
     *   operations (atomic_fetch_add() and the like) work between the sides.
     * - A plain read may see an older value than the newest. The values that a side sees in one place never go backwards.
     *   Writes to different pages may be seen in another order than they were made in.
     * - heddle_syncmem() on the reading side drops its old copies: what is read afterwards is as new as that moment. */
    HEDDLE_PUSHDOWN_PSO = 1,
    /* Weak ordering: both sides write the same page at the same time, without messages.
     *
     * - Writes of the two sides to different bytes are both kept, in neighbouring bytes too. If both write the same byte, either value
     *   remains. An aligned number of up to eight bytes that only one side writes is never seen half written.
     * - To hand something over, the writing side calls heddle_syncmem() after it has written, and says so; the reading side
     *   calls heddle_syncmem() after it has heard it, and then reads. It may be said by a system call (a pipe, say), or by a variable that
     *   the reader looks at after a heddle_syncmem() each time. */
    HEDDLE_PUSHDOWN_WEAK = 2,
    /* No coherence: as HEDDLE_PUSHDOWN_WEAK, but in this process heddle_syncmem() sends what was written to exactly the bytes of its range,
     * and heddle_pullmem() fetches exactly the bytes of its own. heddle_syncmem() in a function does nothing: what the function has written is
     * fetched. Other writes may be seen too, for example all of a page that the function uses for the first time. */
    HEDDLE_PUSHDOWN_OFF = 3
};

/* Flags of heddle_pushdown_terms, beside one for coherence: what follows if a call was cancelled, or is busy. With both, the last attempt
 * is made here. */
enum {
    /* function(argument) is called here, on this thread, and the call is HEDDLE_PUSHDOWN_OK when it returns. This happens only if the
     * function has certainly not run in the executor. */
    HEDDLE_PUSHDOWN_OR_HERE = 1 << 8,
    /* The function is pushed down again, up to ten times in all, each time with the whole time-out. The thread pauses in between, first for 1 ms,
     * then for twice as long each time, at most for 64 ms. */
    HEDDLE_PUSHDOWN_AGAIN = 1 << 9
};

struct heddle_pushdown_options {
    /* Always sizeof(struct heddle_pushdown_options): later versions may have more members. */
    size_t size;
    /* Path of the executor's program, which this process starts. NULL: the value of HEDDLE_EXECUTOR in the environment; without it,
     * "heddle-executor" in the folder of this library. */
    const char *executor;
    /* How many functions may run at the same time; further calls wait for their turn. 0: 1. */
    unsigned contexts;
    /* For how many milliseconds a function may run whose terms do not say. 0: for ever. */
    unsigned limit_ms;
    /* For how many milliseconds the executor may be silent before it is given up. 0: 10,000. */
    unsigned silence_ms;
    /* Path of the socket of the role "executors" (heddle farmem executors), which then starts the executor, confined and limited. It is
     * looked at before `executor`. NULL: `executor`; if that is NULL too, the value of HEDDLE_EXECUTORS in the environment. */
    const char *executors;
    /* A folder for a file of pages that the executor has no memory for, or NULL: then it keeps all pages in memory. Nothing is left of the file when
     * the executor ends. Refused with a role, which decides itself whether its executors have such a file, and where. */
    const char *storage;
    /* With storage: how many bytes of pages the executor keeps in memory, at least 1 MiB. Functions use more at the speed of the file. With a role
     * that has storage: as many as that, if the role lets it keep more. 0: as many as the role lets it. */
    size_t memory;
};

/* Names a call for heddle_try_cancel(). */
struct heddle_pushdown_ticket {
    /* 0 before the first call. The library writes it with release order. */
    unsigned long long number;
};

/* On what terms a function is pushed down. */
struct heddle_pushdown_terms {
    /* Always sizeof(struct heddle_pushdown_terms): later versions may have more members. */
    size_t size;
    /* HEDDLE_PUSHDOWN_OR_HERE, HEDDLE_PUSHDOWN_AGAIN. */
    unsigned flags;
    /* After how many milliseconds the call is cancelled. 0: never. If the function has not begun then, it is removed from the executor's
     * queue, and the flags say what follows. If it has begun, the call goes on as without a time-out: only limit_ms ends a function. */
    unsigned timeout_ms;
    /* For how many milliseconds the function may run. 0: the limit of the options. */
    unsigned limit_ms;
    /* Where the library writes a ticket before the call waits, or NULL. It is valid until the call returns. */
    struct heddle_pushdown_ticket *ticket;
};

/* Some memory. */
struct heddle_pushdown_range {
    void *start;
    size_t bytes;
};

/* heddle_pushdown_torn() does not know any more. */
#define HEDDLE_PUSHDOWN_TORN_UNKNOWN ((size_t)-1)

/* What was counted since heddle_pushdown_open(). */
struct heddle_pushdown_statistics {
    /* Always sizeof(struct heddle_pushdown_statistics): later versions may have more members. */
    size_t size;
    /* Calls that were made. Each push counts, also one of HEDDLE_PUSHDOWN_AGAIN, and not one that was refused. */
    unsigned long long calls;
    /* Of these, how many have ended so: the function returned, a signal ended it (or it has called exit()), its limit ended it; the
     * call was cancelled, was busy, or lost its executor. */
    unsigned long long returned, signalled, killed, cancelled, busy, lost;
    /* Attempts to cancel a call, by time-outs and heddle_try_cancel(), whose function had begun. */
    unsigned long long declined;
    /* Nanoseconds that calls have waited for their turn in the executor's queue, all together. */
    unsigned long long queued_ns;
    /* Calls that have not ended yet, and functions that run at this moment. */
    unsigned open, running;
};

/* What coherence has cost so far. */
struct heddle_pushdown_counts {
    /* Always sizeof(struct heddle_pushdown_counts): later versions may have more members. */
    size_t size;
    /* Messages about pages that this process has sent, and those that it has received: one for each page that was asked for, answered,
     * sent or listed, and two for each call. */
    unsigned long long sent;
    unsigned long long received;
};

/* How long the parts of a call took, in nanoseconds. */
struct heddle_pushdown_times {
    /* Always sizeof(struct heddle_pushdown_times): later versions may have more members. */
    size_t size;
    /* From the beginning of heddle_pushdown() until its message was sent. */
    unsigned long long before_ns;
    /* From there until the executor handled the message. With an executor on another host, the way of its answer counts here too. */
    unsigned long long request_ns;
    /* From there until the function began; it may have waited for its turn. */
    unsigned long long set_up_ns;
    /* From there until the function returned, or was ended. */
    unsigned long long run_ns;
    /* For how long of run_ns the function waited for pages and mappings. */
    unsigned long long online_sync_ns;
    /* From the function's end until the calling thread noticed it. */
    unsigned long long response_ns;
    /* From there until the end of heddle_pushdown(). */
    unsigned long long after_ns;
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
 * changes nothing: so it is in a program that `heddle farmem run --executor` has started, whose executor has the far heap. `options` may be NULL, which means NULL and 0 in its members.
 *
 * Returns HEDDLE_PUSHDOWN_OK, or another kind if the process cannot push functions down; heddle_pushdown_reason() then says why.
 * After a failure the process runs as if it had never called. */
int heddle_pushdown_open(const struct heddle_pushdown_options *options);

/* A sentence in English, which answers the first of these questions that there is an answer to; "" if there is none.
 *
 *   - Why has the executor ended? Once it was lost.
 *   - Why could the function of the calling thread's last call that was HEDDLE_PUSHDOWN_SIGNAL not have the memory that it accessed?
 *   - Why did heddle_pushdown_open() fail last?
 *
 * The text stays valid until the calling thread calls this function again, or heddle_pushdown_open() fails again. */
const char *heddle_pushdown_reason(void);

/* The number of the executor's process: a child of this process, or a process that the role "executors" has started. 0 if there is none.
 * It stays the number after the executor has ended. */
int heddle_pushdown_process(void);

/* Runs function(argument) in the executor and waits until it has ended. What this process had written is visible to the function, and
 * what the function wrote is visible here afterwards.
 *
 * Returns HEDDLE_PUSHDOWN_OK, or the kind of failure, which is then described in *failure. `failure` may be NULL. */
int heddle_pushdown(void (*function)(void *), void *argument, unsigned flags, struct heddle_pushdown_failure *failure);

/* As heddle_pushdown(), on terms. `terms` may be NULL, which is the same as heddle_pushdown(). With OR_HERE the function must be one
 * that may run on either side. */
int heddle_pushdown_with(void (*function)(void *), void *argument, const struct heddle_pushdown_terms *terms,
                         struct heddle_pushdown_failure *failure);

/* Cancels the call that has written this ticket, from another thread. Returns
 *   HEDDLE_PUSHDOWN_OK        the function has not run, and will not for this push: its call is HEDDLE_PUSHDOWN_CANCELLED, or does
 *                             what its flags say;
 *   HEDDLE_PUSHDOWN_DECLINED  the function has begun, or its call has ended: nothing changes;
 *   HEDDLE_PUSHDOWN_LOST      the executor is gone;
 *   HEDDLE_PUSHDOWN_REFUSED   there was never such a ticket, or this is a pushed function or a forked child. */
int heddle_try_cancel(const struct heddle_pushdown_ticket *ticket);

/* Of the calling thread's last call that ended with HEDDLE_PUSHDOWN_KILLED, the memory that may be torn: each page that its function, or
 * one that ran beside it, could write while calls were running. That includes pages which earlier functions wrote and the executor had kept. All
 * other memory is as the program's own threads left it.
 *
 * Writes up to `count` ranges to `ranges`, in the order of their addresses, and returns how many there are: call it with 0 first. Returns
 * HEDDLE_PUSHDOWN_TORN_UNKNOWN if 64 other calls were killed since, and 0 if none of this thread was. A list of more than 65,536
 * ranges is given as one range around all of them. */
size_t heddle_pushdown_torn(struct heddle_pushdown_range *ranges, size_t count);

/* Fills *statistics. Returns HEDDLE_PUSHDOWN_OK or HEDDLE_PUSHDOWN_REFUSED. */
int heddle_pushdown_statistics(struct heddle_pushdown_statistics *statistics);

/* Writes the counts. Returns HEDDLE_PUSHDOWN_OK or HEDDLE_PUSHDOWN_REFUSED. */
int heddle_pushdown_counts(struct heddle_pushdown_counts *counts);

/* Writes the times of the calling thread's last call; with HEDDLE_PUSHDOWN_AGAIN, of its last attempt. Returns HEDDLE_PUSHDOWN_OK, or
 * HEDDLE_PUSHDOWN_REFUSED, also if the thread has made no call, or if its last one was refused by the executor, cancelled or lost. */
int heddle_pushdown_times(struct heddle_pushdown_times *times);

/* The latency of the link that is imitated between this process and its executor, in nanoseconds; 0 without one. A link is imitated for
 * measurements if the environment's HEDDLE_PUSHDOWN_LINK has its latency in nanoseconds and its bytes a second, with a comma in between. */
unsigned long long heddle_pushdown_link_ns(void);

/* A synchronisation point for a range of memory. It may be called before a call, beside one, and by a function, where it counts for all
 * memory.
 *
 * Sends home what this process has written to the pages of the range, so that a function finds it there, and need not ask for each page;
 * with HEDDLE_PUSHDOWN_OFF, the bytes of the range. Drops copies of these pages that are known to be old. With
 * HEDDLE_PUSHDOWN_COHERENT it is about speed only: both sides see the same bytes with it and without it.
 *
 * Returns HEDDLE_PUSHDOWN_OK, HEDDLE_PUSHDOWN_LOST or HEDDLE_PUSHDOWN_REFUSED. */
int heddle_syncmem(const void *start, size_t bytes);

/* Maps `bytes` bytes of far memory, filled with zeros: its home is the executor. This process gets a page when it touches it, and keeps at most
 * `budget` bytes of the range, at least one page; the oldest pages go back. Functions use the memory where it is, at the speed of memory. Give it
 * back with munmap(). A child made by fork() does not have it.
 *
 * Returns the address, or NULL with errno: EBUSY while functions run, ENOTCONN if functions cannot be pushed down, EINVAL for 0 bytes, ENOMEM. */
void *heddle_far_map(size_t bytes, size_t budget);

/* With HEDDLE_PUSHDOWN_OFF: fetches what functions have written to the bytes of a range, and waits until it is here. Bytes that this process
 * has written, and not sent home by heddle_syncmem(), stay. With the other flags, and in a function, it is heddle_syncmem().
 *
 * Returns HEDDLE_PUSHDOWN_OK, HEDDLE_PUSHDOWN_LOST or HEDDLE_PUSHDOWN_REFUSED. */
int heddle_pullmem(const void *start, size_t bytes);

/* Evicts all pages that this process has of far memory in a range, but for those that are on their way: what it has written goes
 * home, all else is dropped.
 *
 * Returns HEDDLE_PUSHDOWN_OK, HEDDLE_PUSHDOWN_LOST or HEDDLE_PUSHDOWN_REFUSED. */
int heddle_far_evict(void *start, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
