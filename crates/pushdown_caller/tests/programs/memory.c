// Data of the program in a pushed function: static, thread-local, on stacks, on the heap.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "check.h"

static void does_nothing(void *argument) { CHECK(argument == NULL); }

void empty(void) {
    for (int round = 0; round < 1000; round++) CALL(does_nothing, NULL);
    CHECK(heddle_pushdown(does_nothing, NULL, HEDDLE_PUSHDOWN_COHERENT, NULL) == HEDDLE_PUSHDOWN_OK);
}

int global = 7;
static int zeroed;
static char large_data[50000] = {1};
static char large_bss[50000];
static const char CONSTANT[] = "constant";

static int next(void) {
    static int number = 100;
    return number++;
}

static void uses_statics(void *argument) {
    int round = *(int *)argument;
    CHECK(global == 7 + 2 * round && zeroed == 2 * round);
    CHECK(large_data[0] == 1 && large_data[49999] == (char)(2 * round) && large_bss[25000] == (char)(2 * round));
    CHECK(strcmp(CONSTANT, "constant") == 0);
    CHECK(next() == 100 + 2 * round);
    global++;
    zeroed++;
    large_data[49999]++;
    large_bss[25000]++;
}

void statics(void) {
    for (int round = 0; round < 100; round++) {
        CALL(uses_statics, &round);
        CHECK(next() == 101 + 2 * round);
        CHECK(global == 8 + 2 * round && zeroed == 2 * round + 1);
        global++;
        zeroed++;
        large_data[49999]++;
        large_bss[25000]++;
    }
}

static __thread int small = 5;
static __thread char large[20000];

static void uses_thread_locals(void *argument) {
    int round = *(int *)argument;
    CHECK(errno == 1000 + round);
    CHECK(small == 5 + 2 * round && large[0] == (char)round && large[19999] == (char)round);
    small++;
    large[0]++;
    large[19999]++;
    CHECK(close(-1) == -1 && errno == EBADF);
    errno = 2000 + round;
}

static void *thread_with_locals(void *argument) {
    (void)argument;
    for (int round = 0; round < 100; round++) {
        errno = 1000 + round;
        CALL(uses_thread_locals, &round);
        CHECK(errno == 2000 + round);
        CHECK(small == 6 + 2 * round && large[0] == (char)(round + 1) && large[19999] == (char)(round + 1));
        small++;
    }
    return NULL;
}

static void in_a_thread(void *(*function)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, function, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

void thread_local_variables(void) {
    thread_with_locals(NULL);
    // This thread has its own, which begin anew.
    in_a_thread(thread_with_locals);
}

struct on_stack {
    uint64_t before;
    unsigned char bytes[16384];
    uint64_t after;
};

static void writes_argument(void *argument) {
    struct on_stack *value = argument;
    CHECK(value->before == 1 && value->after == 2);
    for (size_t i = 0; i < sizeof value->bytes; i++) {
        CHECK(value->bytes[i] == 0xaa);
        value->bytes[i] = (unsigned char)i;
    }
    value->before = 3;
    value->after = 4;
}

// About 1 MiB of stack: more than the caller has touched, and on the main thread below the mapping that it has so far.
static __attribute__((noinline)) uint64_t recurses(unsigned depth) {
    volatile unsigned char frame[1000];
    frame[0] = (unsigned char)depth;
    frame[999] = 1;
    uint64_t below = depth == 0 ? 0 : recurses(depth - 1);
    CHECK(frame[0] == (unsigned char)depth);
    return below + frame[999];
}

static void recurses_deeply(void *argument) { *(uint64_t *)argument = recurses(1000); }

static void *uses_stack(void *argument) {
    (void)argument;
    struct on_stack value;
    memset(value.bytes, 0xaa, sizeof value.bytes);
    value.before = 1;
    value.after = 2;
    CALL(writes_argument, &value);
    CHECK(value.before == 3 && value.after == 4);
    for (size_t i = 0; i < sizeof value.bytes; i++) CHECK(value.bytes[i] == (unsigned char)i);
    uint64_t frames = 0;
    CALL(recurses_deeply, &frames);
    CHECK(frames == 1001);
    // And here, where the executor has the pages.
    CHECK(recurses(1000) == 1001);
    return NULL;
}

void stack(void) {
    uses_stack(NULL);
    // The C library gives each thread the stack of the one before it, whose pages it has dropped with madvise.
    for (int round = 0; round < 5; round++) in_a_thread(uses_stack);
    uses_stack(NULL);
}

typedef int (*operation)(int, int);
static int add(int a, int b) { return a + b; }
static int subtract(int a, int b) { return a - b; }
static int multiply(int a, int b) { return a * b; }
static const operation OPERATIONS[] = {add, subtract, multiply};

struct on_heap {
    operation chosen;
    size_t (*length)(const char *);
    operation for_caller;
};

static void calls_pointers(void *argument) {
    struct on_heap *pointers = argument;
    CHECK(OPERATIONS[0](5, 3) == 8 && OPERATIONS[1](5, 3) == 2 && OPERATIONS[2](5, 3) == 15);
    CHECK(pointers->chosen(6, 7) == 42);
    CHECK(pointers->length("seven..") == 7);
    pointers->for_caller = OPERATIONS[1];
}

void function_pointer(void) {
    struct on_heap *pointers = malloc(sizeof *pointers);
    CHECK(pointers != NULL);
    *pointers = (struct on_heap){.chosen = multiply, .length = strlen};
    CALL(calls_pointers, pointers);
    CHECK(pointers->for_caller(9, 4) == 5);
    free(pointers);
}

struct node {
    struct node *next;
    uint64_t value;
};

static struct node *push(struct node *head, uint64_t value) {
    struct node *node = malloc(sizeof *node);
    CHECK(node != NULL);
    *node = (struct node){.next = head, .value = value};
    return node;
}

// Frees each third node, changes the others, and puts a thousand new ones in front.
static void changes_list(void *argument) {
    struct node **head = argument;
    uint64_t wanted = 10000;
    for (struct node **at = head; *at != NULL;) {
        struct node *node = *at;
        CHECK(node->value == --wanted);
        if (node->value % 3 == 0) {
            *at = node->next;
            free(node);
        } else {
            node->value *= 10;
            at = &node->next;
        }
    }
    CHECK(wanted == 0);
    for (uint64_t i = 0; i < 1000; i++) *head = push(*head, 1000000 + i);
}

void list(void) {
    struct node *head = NULL;
    for (uint64_t i = 0; i < 10000; i++) head = push(head, i);
    CALL(changes_list, &head);
    uint64_t count = 0, wanted = 9999;
    for (struct node *node = head; node != NULL; count++) {
        if (count < 1000) {
            CHECK(node->value == 1000999 - count);
        } else {
            while (wanted % 3 == 0) wanted--;
            CHECK(node->value == 10 * wanted--);
        }
        struct node *next = node->next;
        free(node);
        node = next;
    }
    CHECK(count == 1000 + 10000 - 3334);
}

struct exchange {
    unsigned char *from_caller;
    unsigned char *from_function;
    size_t bytes;
    unsigned char mark;
};

static int holds(const unsigned char *block, size_t bytes, unsigned char mark) {
    for (size_t i = 0; i < bytes; i++) {
        if (block[i] != (unsigned char)(mark + i)) return 0;
    }
    return 1;
}

static void fill(unsigned char *block, size_t bytes, unsigned char mark) {
    CHECK(block != NULL);
    for (size_t i = 0; i < bytes; i++) block[i] = (unsigned char)(mark + i);
}

static void exchanges_blocks(void *argument) {
    struct exchange *exchange = argument;
    size_t bytes = exchange->bytes;
    CHECK(holds(exchange->from_caller, bytes, exchange->mark));
    free(exchange->from_caller);
    fill(exchange->from_function = malloc(bytes + 100), bytes + 100, exchange->mark + 1);
}

static void reallocates(void *argument) {
    struct exchange *exchange = argument;
    exchange->from_caller = realloc(exchange->from_caller, 3 * exchange->bytes);
    CHECK(exchange->from_caller != NULL && holds(exchange->from_caller, exchange->bytes, exchange->mark));
    fill(exchange->from_caller, 3 * exchange->bytes, exchange->mark + 2);
}

static void frees_and_takes_large(void *argument) {
    struct exchange *exchange = argument;
    CHECK(holds(exchange->from_caller, 4 * MIB, 11));
    free(exchange->from_caller);
    fill(exchange->from_function = malloc(4 * MIB), 4 * MIB, 12);
}

static int is_zero(const unsigned char *block, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (block[i] != 0) return 0;
    }
    return 1;
}

static void takes_zeroed(void *argument) {
    unsigned char *block = calloc(4, MIB);
    CHECK(block != NULL && is_zero(block, 4 * MIB));
    fill(block, 4 * MIB, 13);
    *(unsigned char **)argument = block;
}

static void *allocates(void *argument) {
    (void)argument;
    for (int round = 0; round < 1000; round++) {
        struct exchange exchange = {.bytes = 16 + (size_t)round * 7919 % 6000, .mark = (unsigned char)round};
        fill(exchange.from_caller = malloc(exchange.bytes), exchange.bytes, exchange.mark);
        CALL(exchanges_blocks, &exchange);
        CHECK(holds(exchange.from_function, exchange.bytes + 100, exchange.mark + 1));
        free(exchange.from_function);
        if (round % 10 != 0) continue;
        fill(exchange.from_caller = malloc(exchange.bytes), exchange.bytes, exchange.mark);
        CALL(reallocates, &exchange);
        CHECK(holds(exchange.from_caller, 3 * exchange.bytes, exchange.mark + 2));
        free(exchange.from_caller);
    }
    return NULL;
}

// Mappings of their own: a block that is freed is unmapped, on both sides.
static void allocate_large(void) {
    struct exchange exchange = {.from_caller = malloc(4 * MIB), .bytes = 4 * MIB};
    fill(exchange.from_caller, 4 * MIB, 11);
    CALL(frees_and_takes_large, &exchange);
    CHECK(holds(exchange.from_function, 4 * MIB, 12));
    free(exchange.from_function);
    unsigned char *zeroed_block = NULL;
    CALL(takes_zeroed, &zeroed_block);
    CHECK(holds(zeroed_block, 4 * MIB, 13));
    free(zeroed_block);
    zeroed_block = calloc(4, MIB);
    CHECK(zeroed_block != NULL && is_zero(zeroed_block, 4 * MIB));
    // The C library extends such a block with mremap, or copies it if it cannot.
    exchange = (struct exchange){.from_caller = zeroed_block, .bytes = 4 * MIB, .mark = 14};
    fill(zeroed_block, 4 * MIB, 14);
    CALL(reallocates, &exchange);
    CHECK(holds(exchange.from_caller, 12 * MIB, 16));
    free(exchange.from_caller);
}

void allocate(void) {
    allocates(NULL);
    allocate_large();
    // Another thread has an arena of its own, which grows by mprotect.
    in_a_thread(allocates);
}

static uint64_t mix(uint64_t x) {
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    return x ^ (x >> 29);
}

struct array {
    uint64_t *words;
    size_t count;
    uint64_t sum;
};

static void sums_and_rewrites(void *argument) {
    struct array *array = argument;
    for (size_t i = 0; i < array->count; i++) {
        array->sum += array->words[i];
        array->words[i] = mix(i + 1);
    }
}

static void check_array(size_t bytes, int is_sent_home) {
    struct array array = {.words = malloc(bytes), .count = bytes / sizeof(uint64_t)};
    CHECK(array.words != NULL);
    uint64_t sum = 0;
    for (size_t i = 0; i < array.count; i++) sum += array.words[i] = mix(i);
    if (is_sent_home) CHECK(heddle_syncmem(array.words, bytes) == HEDDLE_PUSHDOWN_OK);
    CALL(sums_and_rewrites, &array);
    CHECK(array.sum == sum);
    for (size_t i = 0; i < array.count; i++) CHECK(array.words[i] == mix(i + 1));
    free(array.words);
}

void many_pages(void) { check_array(64 * MIB, 0); }

// It changes nothing that can be seen, whatever the range is.
void syncmem(void) {
    CHECK(heddle_syncmem(&global, 0) == HEDDLE_PUSHDOWN_OK);
    CHECK(heddle_syncmem(&global, 1) == HEDDLE_PUSHDOWN_OK);
    for (int round = 0; round < 3; round++) check_array(8 * MIB, 1);
    int round = 0;
    CALL(uses_statics, &round);
    // The executor has this page.
    CHECK(heddle_syncmem(&global, sizeof global) == HEDDLE_PUSHDOWN_OK && global == 8);
}
