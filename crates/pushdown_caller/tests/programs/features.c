// Uses functions that are pushed down in every way that could go wrong. Each case is one argument: it prints "ok" and exits with 0,
// or says what is wrong and exits with 1.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "check.h"

static const struct {
    const char *name;
    void (*run)(void);
    unsigned contexts;
} CASES[] = {
    {"empty", empty, 0},
    {"statics", statics, 0},
    {"thread_local", thread_local_variables, 0},
    {"stack", stack, 0},
    {"function_pointer", function_pointer, 0},
    {"list", list, 0},
    {"allocate", allocate, 0},
    {"many_pages", many_pages, 0},
    {"unmapped", unmapped, 0},
    {"mmap", mappings, 0},
    {"file_mapping", file_mapping, 0},
    {"mremap", moves, 0},
    {"mprotect", protections, 0},
    {"shared_mapping", shared_mapping, 0},
    {"syncmem", syncmem, 0},
    {"kinds", kinds, 0},
    {"scattered", scattered, 0},
    {"fork_large", fork_large, 0},
    {"fork_beside", fork_beside, 0},
    {"fork_beside_allocation", fork_beside_allocation, 0},
    {"far_memory", far_memory, 0},
    {"far_beside", far_beside, 0},
    {"far_refused", far_refused, 0},
    {"freed", freed, 0},
    {"neighbours", neighbours, 0},
    {"constant_written", constant_written, 0},
    {"without_access", without_access, 0},
    {"files", files, 0},
    {"stdio", stdio, 0},
    {"getpid", identity, 0},
    {"time", times, 0},
    {"qsort", library_functions, 0},
    {"wide_characters", wide_characters, 0},
    {"rounding", rounding, 0},
    {"dlsym", found_functions, 0},
    {"dlopen", loaded_library, 0},
    {"fork", forks, 0},
    {"exit", exits, 0},
    {"signals", signals, 0},
    {"mutex", mutexes, 0},
    {"condition", conditions, 0},
    {"atomics", atomics, 0},
    {"false_sharing", false_sharing, 0},
    {"threads", threads, 4},
    {"threads_in_turn", threads, 1},
    {"contexts", contexts, 2},
    {"sigsegv", sigsegv, 0},
    {"sigfpe", sigfpe, 0},
    {"sigill", sigill, 0},
    {"sigbus", sigbus, 0},
    {"recursion", recursion, 0},
    {"abort", aborts, 0},
    {"null_function", null_function, 0},
    {"nested", nested, 0},
    {"unknown_flags", unknown_flags, 0},
    {"lost", lost, 0},
};

int main(int count, char **arguments) {
    for (size_t i = 0; count == 2 && i < sizeof CASES / sizeof CASES[0]; i++) {
        if (strcmp(CASES[i].name, arguments[1]) != 0) continue;
        struct heddle_pushdown_options options = {.size = sizeof options, .contexts = CASES[i].contexts};
        int kind = heddle_pushdown_open(&options);
        if (kind != HEDDLE_PUSHDOWN_OK) {
            fprintf(stderr, "not opened (kind %d): %s\n", kind, heddle_pushdown_reason());
            return 1;
        }
        CHECK(strcmp(heddle_pushdown_reason(), "") == 0);
        CASES[i].run();
        puts("ok");
        return 0;
    }
    fprintf(stderr, "usage: features CASE\n");
    return 2;
}
