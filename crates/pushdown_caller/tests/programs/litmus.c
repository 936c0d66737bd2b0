// Litmus tests across the sides: threads of the caller and pushed-down functions access the same words, and what they read must be
// possible on this kind of processor. What is possible is not listed here: it is computed, with a store buffer for each thread
// (x86-TSO, Sewell and others, 2010).
//
// A test is a line for each thread: `x=1` writes a variable, `a=x` reads it into a register, `x:=1` writes it with a locked
// instruction, `fence` is one. Values of a round are above those of all rounds before, so that nothing need be reset.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cases.h"
#include "check.h"

enum { THREADS_MAX = 4, OPS_MAX = 3, REGISTERS = 4, VARIABLES = 2, OUTCOMES = 1 << 2 * (REGISTERS + VARIABLES) };
// A value is 0 (that of before the round), or one of these that the test writes.
enum { VALUES = 4 };
// Rounds between two meetings use words of their own, so that what delays a thread in one changes the order in the next.
enum { ROUNDS_OF_MEETING = 16, ROUNDS_OF_CALL = 4 * ROUNDS_OF_MEETING };

static const struct litmus {
    const char *name;
    const char *threads;
    // Outcomes of which it is known whether they are possible: a check of the computation.
    const char *forbidden;
    const char *relaxed;
} TESTS[] = {
    {"SB", "x=1 a=y | y=1 b=x", NULL, "a=0 b=0"},
    {"SB+fences", "x=1 fence a=y | y=1 fence b=x", "a=0 b=0", NULL},
    {"SB+locks", "x:=1 a=y | y:=1 b=x", "a=0 b=0", NULL},
    {"MP", "x=1 y=1 | a=y b=x", "a=1 b=0", NULL},
    {"LB", "a=y x=1 | b=x y=1", "a=1 b=1", NULL},
    {"S", "x=2 y=1 | a=y x=1", "a=1 x=2", NULL},
    {"R", "x=1 y=1 | y=2 a=x", NULL, "a=0 y=2"},
    {"R+fence", "x=1 y=1 | y=2 fence a=x", "a=0 y=2", NULL},
    {"2+2W", "x=1 y=2 | y=1 x=2", "x=1 y=1", NULL},
    {"CoRR", "x=1 x=2 | a=x b=x", "a=2 b=1", NULL},
    {"CoWW", "x=1 x=2 | a=x", "x=1", NULL},
    {"CoRW", "a=x x=1 | x=2", "a=2 x=2", NULL},
    {"WRC", "x=1 | a=x y=1 | b=y c=x", "a=1 b=1 c=0", NULL},
    {"IRIW", "x=1 | y=1 | a=x b=y | c=y d=x", "a=1 b=0 c=1 d=0", NULL},
    {"CoRR+readers", "x=1 | x=2 | a=x b=x | c=x d=x", "a=1 b=2 c=2 d=1", NULL},
};
enum { TESTS_COUNT = sizeof TESTS / sizeof TESTS[0] };

// Where the variables lie. In the last case another thread writes a word beside each.
enum placement { APART, TOGETHER, CROWDED, PLACEMENTS };
static const char *const PLACEMENT_NAMES[] = {"apart", "together", "crowded"};

struct op {
    enum { WRITE, LOCKED_WRITE, READ, FENCE } kind;
    unsigned char variable;
    // Of a write; for a read it is the number of the register.
    unsigned char value;
};

struct program {
    int threads;
    int counts[THREADS_MAX];
    struct op ops[THREADS_MAX][OPS_MAX];
};

static struct program parse(const char *text) {
    struct program program = {.threads = 1};
    char copy[100], *rest = NULL;
    CHECK(snprintf(copy, sizeof copy, "%s", text) < (int)sizeof copy);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        if (strcmp(word, "|") == 0) {
            CHECK(++program.threads <= THREADS_MAX);
            continue;
        }
        int thread = program.threads - 1;
        CHECK(program.counts[thread] < OPS_MAX);
        struct op *op = &program.ops[thread][program.counts[thread]++];
        if (strcmp(word, "fence") == 0) *op = (struct op){.kind = FENCE};
        else if (word[0] < 'x') *op = (struct op){.kind = READ, .variable = word[2] - 'x', .value = word[0] - 'a'};
        else if (word[1] == ':') *op = (struct op){.kind = LOCKED_WRITE, .variable = word[0] - 'x', .value = word[3] - '0'};
        else *op = (struct op){.kind = WRITE, .variable = word[0] - 'x', .value = word[2] - '0'};
        CHECK(op->variable < VARIABLES && op->value < VALUES);
    }
    return program;
}

// Two bits for each register, and for the last value of each variable.
static unsigned outcome_of(const unsigned char registers[REGISTERS], const unsigned char memory[VARIABLES]) {
    unsigned outcome = 0;
    for (int i = 0; i < REGISTERS; i++) outcome |= (unsigned)registers[i] << 2 * i;
    for (int i = 0; i < VARIABLES; i++) outcome |= (unsigned)memory[i] << 2 * (REGISTERS + i);
    return outcome;
}

static int matches(unsigned outcome, const char *condition) {
    for (; *condition != '\0'; condition += condition[3] == ' ' ? 4 : 3) {
        int place = condition[0] < 'x' ? condition[0] - 'a' : REGISTERS + condition[0] - 'x';
        if ((outcome >> 2 * place & 3) != (unsigned)(condition[2] - '0')) return 0;
    }
    return 1;
}

struct machine {
    unsigned char memory[VARIABLES], registers[REGISTERS];
    unsigned char next[THREADS_MAX], buffered[THREADS_MAX];
    struct op buffer[THREADS_MAX][OPS_MAX];
};

// Finds all outcomes, step by step in every order.
static void explore(const struct program *program, struct machine machine, int has_buffers, char possible[OUTCOMES]) {
    int is_done = 1;
    for (int thread = 0; thread < program->threads; thread++) {
        if (machine.buffered[thread] > 0) {
            struct machine drained = machine;
            drained.memory[machine.buffer[thread][0].variable] = machine.buffer[thread][0].value;
            drained.buffered[thread]--;
            memmove(&drained.buffer[thread][0], &drained.buffer[thread][1], sizeof(struct op) * (OPS_MAX - 1));
            explore(program, drained, has_buffers, possible);
            is_done = 0;
        }
        if (machine.next[thread] == program->counts[thread]) continue;
        is_done = 0;
        struct op op = program->ops[thread][machine.next[thread]];
        struct machine after = machine;
        after.next[thread]++;
        if (op.kind == WRITE && has_buffers) {
            after.buffer[thread][after.buffered[thread]++] = op;
        } else if (op.kind == READ) {
            after.registers[op.value] = machine.memory[op.variable];
            for (int i = 0; i < machine.buffered[thread]; i++) {
                const struct op *own = &machine.buffer[thread][i];
                if (own->variable == op.variable) after.registers[op.value] = own->value;
            }
        } else {
            if (machine.buffered[thread] > 0) continue;
            if (op.kind != FENCE) after.memory[op.variable] = op.value;
        }
        explore(program, after, has_buffers, possible);
    }
    if (is_done) possible[outcome_of(machine.registers, machine.memory)] = 1;
}

// What the threads of a run share. Pages of their own, so that nothing disturbs what is tested.
static struct run {
    _Alignas(4096) char variables[2][4096];
    _Alignas(4096) atomic_uint arrived;
    _Alignas(4096) atomic_int is_over;
    const struct litmus *test;
    struct program program;
    enum placement placement;
    unsigned pushed;
    uint64_t seed;
    _Alignas(4096) char possible[OUTCOMES];
    uint64_t seen[OUTCOMES];
    uint64_t last[ROUNDS_OF_MEETING][VARIABLES];
    struct {
        _Alignas(4096) uint64_t registers[ROUNDS_OF_CALL][REGISTERS];
        uint64_t memory[ROUNDS_OF_CALL][VARIABLES];
        uint64_t rounds;
        unsigned meetings;
        uint64_t random;
        int number;
    } threads[THREADS_MAX];
    _Alignas(4096) uint64_t crowded;
} run;

// How often a test ended so, and how many rounds it had.
static uint64_t seen[TESTS_COUNT][PLACEMENTS][OUTCOMES];

static _Atomic uint64_t *variable(int row, int number) {
    size_t offset = (size_t)(row % ROUNDS_OF_MEETING) * 128 + 64 * (size_t)number;
    return (_Atomic uint64_t *)&run.variables[run.placement == TOGETHER ? 0 : number][offset];
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

// Often none, sometimes as long as a page is on its way.
static void delay(uint64_t *random) {
    static const unsigned LONGEST[] = {1, 1, 1, 20, 1000, 8000};
    unsigned turns = next_random(random) % LONGEST[next_random(random) % 6];
    while (turns-- > 0) __builtin_ia32_pause();
}

static void meet(int thread) {
    unsigned wanted = ++run.threads[thread].meetings * run.program.threads;
    atomic_fetch_add(&run.arrived, 1);
    for (unsigned turns = 1; atomic_load(&run.arrived) < wanted; turns++) {
        if (turns % 256 == 0) sched_yield();
        else __builtin_ia32_pause();
    }
}

// Plain instructions, in this order.
static void access_variables(int thread, uint64_t round, int row) {
    uint64_t *registers = run.threads[thread].registers[row];
    uint64_t *random = &run.threads[thread].random;
    delay(random);
    int is_slow = next_random(random) % 4 == 0;
    for (int i = 0; i < run.program.counts[thread]; i++) {
        struct op op = run.program.ops[thread][i];
        _Atomic uint64_t *word = variable(row, op.variable);
        if (is_slow) delay(random);
        switch (op.kind) {
        case WRITE: atomic_store_explicit(word, round * VALUES + op.value, memory_order_release); break;
        case LOCKED_WRITE: atomic_exchange(word, round * VALUES + op.value); break;
        case READ: registers[op.value] = atomic_load_explicit(word, memory_order_acquire); break;
        case FENCE: __builtin_ia32_mfence(); break;
        }
    }
}

// The value of a round, from what was read; 0 for that of before, which must be the last one.
static unsigned char value_of(uint64_t read, uint64_t round, uint64_t last) {
    if (read / VALUES == round && read % VALUES != 0) return read % VALUES;
    if (read == last) return 0;
    dprintf(STDERR_FILENO, "%s %s %x: round %lu read %lu, and the last value was %lu\n", run.test->name,
            PLACEMENT_NAMES[run.placement], run.pushed, round, read, last);
    _exit(1);
}

static void judge(uint64_t round, int row) {
    uint64_t *last = run.last[row % ROUNDS_OF_MEETING];
    unsigned char registers[REGISTERS] = {0}, memory[VARIABLES];
    for (int thread = 0; thread < run.program.threads; thread++) {
        for (int i = 0; i < run.program.counts[thread]; i++) {
            struct op op = run.program.ops[thread][i];
            if (op.kind != READ) continue;
            registers[op.value] = value_of(run.threads[thread].registers[row][op.value], round, last[op.variable]);
        }
    }
    for (int i = 0; i < VARIABLES; i++) {
        memory[i] = value_of(run.threads[0].memory[row][i], round, last[i]);
        last[i] = run.threads[0].memory[row][i];
    }
    unsigned outcome = outcome_of(registers, memory);
    seen[run.test - TESTS][run.placement][outcome]++;
    if (run.possible[outcome]) return;
    dprintf(STDERR_FILENO, "%s %s %x: round %lu ended with a=%d b=%d c=%d d=%d x=%d y=%d, which no processor of this kind does\n",
            run.test->name, PLACEMENT_NAMES[run.placement], run.pushed, round, registers[0], registers[1], registers[2],
            registers[3], memory[0], memory[1]);
    _exit(1);
}

// Some rounds, in one call.
static void runs_rounds(void *argument) {
    int thread = *(int *)argument;
    uint64_t round = run.threads[thread].rounds;
    for (int first = 0; first < ROUNDS_OF_CALL; first += ROUNDS_OF_MEETING) {
        meet(thread);
        for (int row = first; row < first + ROUNDS_OF_MEETING; row++) access_variables(thread, ++round, row);
        meet(thread);
        // The first thread says how it ended. Whether others read as well decides what both sides have in the next rounds.
        if (thread > 0 && next_random(&run.threads[thread].random) % 2 == 0) continue;
        for (int row = first; row < first + ROUNDS_OF_MEETING; row++) {
            for (int i = 0; i < VARIABLES; i++) run.threads[thread].memory[row][i] = atomic_load(variable(row, i));
        }
    }
    run.threads[thread].rounds = round;
    meet(thread);
}

static void *thread_runs(void *argument) {
    int thread = *(int *)argument;
    while (!atomic_load(&run.is_over)) {
        if (run.pushed >> thread & 1) CALL(runs_rounds, argument);
        else runs_rounds(argument);
        meet(thread);
        meet(thread);
    }
    return NULL;
}

// Words beside the variables, which only this thread writes.
static void writes_neighbours(void *argument) {
    (void)argument;
    for (int i = 0; i < 20000 && !atomic_load(&run.is_over); i++) {
        for (int page = 0; page < 2; page++) {
            volatile uint64_t *word = (uint64_t *)&run.variables[page][2048];
            CHECK(*word == run.crowded);
            *word = run.crowded + 1;
        }
        run.crowded++;
        for (int turns = 0; turns < 500; turns++) __builtin_ia32_pause();
    }
}

static void *thread_writes_neighbours(void *argument) {
    while (!atomic_load(&run.is_over)) {
        if (*(int *)argument) CALL(writes_neighbours, NULL);
        else writes_neighbours(NULL);
    }
    return NULL;
}

static double seconds(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

// Runs a test with these threads pushed down. The caller's main thread looks at the outcomes, between calls.
static void run_test(const struct litmus *test, enum placement placement, unsigned pushed, uint64_t seed, double longest) {
    memset(&run, 0, sizeof run);
    run.test = test;
    run.program = parse(test->threads);
    run.placement = placement;
    run.pushed = pushed;
    explore(&run.program, (struct machine){.next = {0}}, 1, run.possible);
    pthread_t threads[THREADS_MAX], crowd;
    for (int i = 0; i < run.program.threads; i++) {
        run.threads[i].number = i;
        run.threads[i].random = seed * THREADS_MAX + i + 1;
        if (i > 0) CHECK(pthread_create(&threads[i], NULL, thread_runs, &run.threads[i].number) == 0);
    }
    int crowd_is_pushed = seed % 2;
    if (placement == CROWDED) CHECK(pthread_create(&crowd, NULL, thread_writes_neighbours, &crowd_is_pushed) == 0);
    uint64_t round = 0;
    for (double begun = seconds(); !atomic_load(&run.is_over);) {
        if (pushed & 1) CALL(runs_rounds, &run.threads[0].number);
        else runs_rounds(&run.threads[0].number);
        meet(0);
        for (int row = 0; row < ROUNDS_OF_CALL; row++) judge(++round, row);
        if (seconds() - begun > longest) atomic_store(&run.is_over, 1);
        meet(0);
    }
    for (int i = 1; i < run.program.threads; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    if (placement == CROWDED) CHECK(pthread_join(crowd, NULL) == 0);
}

// Says how often each outcome was seen. A test of one outcome shows nothing.
static int outcomes_seen(int test, int placement) {
    uint64_t rounds = 0;
    int different = 0;
    printf("%-12s %-8s", TESTS[test].name, PLACEMENT_NAMES[placement]);
    for (unsigned outcome = 0; outcome < OUTCOMES; outcome++) {
        uint64_t count = seen[test][placement][outcome];
        if (count == 0) continue;
        rounds += count;
        different++;
        printf(" ");
        for (int place = 0; place < REGISTERS + VARIABLES; place++) printf("%u", outcome >> 2 * place & 3);
        printf(":%lu", count);
    }
    printf(", %lu rounds\n", rounds);
    return different;
}

static void check_computation(const struct litmus *test) {
    static char possible[OUTCOMES], sequential[OUTCOMES];
    memset(possible, 0, sizeof possible);
    memset(sequential, 0, sizeof sequential);
    struct program program = parse(test->threads);
    explore(&program, (struct machine){.next = {0}}, 1, possible);
    explore(&program, (struct machine){.next = {0}}, 0, sequential);
    int is_relaxed = 0;
    for (unsigned outcome = 0; outcome < OUTCOMES; outcome++) {
        CHECK(possible[outcome] >= sequential[outcome]);
        if (test->forbidden != NULL && matches(outcome, test->forbidden)) CHECK(!possible[outcome]);
        if (possible[outcome] == sequential[outcome]) continue;
        CHECK(test->relaxed != NULL && matches(outcome, test->relaxed));
        is_relaxed = 1;
    }
    CHECK(is_relaxed == (test->relaxed != NULL));
}

void litmus(void) {
    for (int i = 0; i < TESTS_COUNT; i++) check_computation(&TESTS[i]);
    double whole = stress_seconds(8), begun = seconds();
    for (uint64_t seed = 1; seed <= TESTS_COUNT * PLACEMENTS || seconds() - begun < whole; seed++) {
        const struct litmus *test = &TESTS[seed % TESTS_COUNT];
        unsigned sides = (1u << parse(test->threads).threads) - 1;
        // Neither none nor all.
        unsigned pushed = 1 + (unsigned)(seed * 2654435761u >> 7) % (sides - 1);
        run_test(test, seed / TESTS_COUNT % PLACEMENTS, pushed, seed, whole / (TESTS_COUNT * PLACEMENTS * 2));
    }
    for (int test = 0; test < TESTS_COUNT; test++) {
        for (int placement = 0; placement < PLACEMENTS; placement++) {
            // That takes time, if the machine is busy.
            CHECK(outcomes_seen(test, placement) > 1 || whole < 60);
        }
    }
}
