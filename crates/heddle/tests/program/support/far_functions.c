// A program whose functions make remote accesses in known proportions: each round goes through a table of which a small part
// is resident, and touches every 16th page in an order that is no stream. The functions are called and
// call in ways in which programs do that.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define TABLE (96 * MIB)
#define STRIDE ((size_t)16 * 4096)
#define APART __attribute__((noinline, noclone))

static char *table;
static uint64_t sum;

// The offset of an access. An odd multiplier visits each place once.
static size_t place(size_t number) {
    return number * 37 % (TABLE / STRIDE) * STRIDE;
}

APART void scan_orders(size_t rounds) {
    for (size_t at = 0; at < rounds * (TABLE / STRIDE); at++) sum += (unsigned char)table[place(at)];
}

APART void probe_index(size_t rounds) {
    for (size_t at = 0; at < rounds * (TABLE / STRIDE); at++) sum ^= (unsigned char)table[place(at) + 1];
}

// The C library makes these accesses.
APART void copy_rows(size_t rounds) {
    static char row[64];
    for (size_t at = 0; at < rounds * (TABLE / STRIDE); at++) {
        volatile size_t bytes = sizeof row;
        memcpy(row, table + place(at) + 64, bytes);
        sum += row[7];
    }
}

// And the kernel these, in system calls of the C library.
APART void write_rows(size_t rounds, int file) {
    for (size_t at = 0; at < rounds * (TABLE / STRIDE); at++) sum += write(file, table + place(at), 16);
}

// Code that the program makes itself: it returns the byte at its argument.
APART void run_made_code(size_t rounds) {
    static const unsigned char load_and_return[] = {0x0f, 0xb6, 0x07, 0xc3};
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) _exit(8);
    memcpy(code, load_and_return, sizeof load_and_return);
    int (*load)(const char *) = (int (*)(const char *))code;
    for (size_t at = 0; at < rounds * (TABLE / STRIDE); at++) sum += load(table + place(at));
}

APART void run_query(void) {
    scan_orders(10);
    probe_index(1);
    sum++;
}

int main(int count, char **arguments) {
    const char *part = count > 1 ? arguments[1] : "query";
    table = mmap(NULL, TABLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED) return 3;
    for (size_t at = 0; at < TABLE; at += 4096) table[at] = (char)(at / 4096);
    if (strcmp(part, "query") == 0) run_query();
    if (strcmp(part, "library") == 0) {
        copy_rows(8);
        FILE *file = tmpfile();
        if (file == NULL) return 4;
        write_rows(2, fileno(file));
    }
    if (strcmp(part, "made-code") == 0) {
        run_made_code(4);
        probe_index(1);
    }
    if (strcmp(part, "forks") == 0) {
        pid_t child = fork();
        if (child < 0) return 5;
        if (child == 0) {
            scan_orders(4);
            _exit(0);
        }
        int status = 0;
        if (waitpid(child, &status, 0) != child || status != 0) return 6;
        probe_index(1);
    }
    if (strcmp(part, "fails") == 0) return 7;
    printf("done %d\n", (int)(sum & 1));
    return 0;
}
