// The C library and the kernel in a pushed function: files, identities, time, libraries, processes, signals.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>
#include <wctype.h>
#include <xmmintrin.h>

#include "cases.h"
#include "check.h"

struct open_files {
    FILE *from_caller;
    FILE *from_function;
    int file;
    unsigned char *block;
};

static void writes_files(void *argument) {
    struct open_files *open = argument;
    for (int line = 1; line < 1000; line++) CHECK(fprintf(open->from_caller, "line %d\n", line) > 0);
    CHECK((open->from_function = tmpfile()) != NULL);
    CHECK(fputs("from the function", open->from_function) >= 0);
    open->file = fileno(open->from_function);
}

static void fills_block(void *argument) { memset(((struct open_files *)argument)->block, 0x11, MIB); }

static void reads_into_block(void *argument) {
    struct open_files *open = argument;
    memset(open->block, 0x22, MIB);
    CHECK(pread(open->file, open->block, MIB, 0) == (ssize_t)MIB);
}

static void check_block(const unsigned char *block, unsigned char value) {
    for (size_t i = 0; i < MIB; i++) CHECK(block[i] == value);
}

void files(void) {
    struct open_files open = {.from_caller = tmpfile()};
    CHECK(open.from_caller != NULL);
    CHECK(fprintf(open.from_caller, "line 0\n") > 0);
    CALL(writes_files, &open);
    CHECK(fprintf(open.from_caller, "line 1000\n") > 0);
    CHECK(fseek(open.from_caller, 0, SEEK_SET) == 0);
    for (int line = 0, read = -1; line <= 1000; line++) CHECK(fscanf(open.from_caller, "line %d\n", &read) == 1 && read == line);
    CHECK(fclose(open.from_caller) == 0);

    char text[32] = "";
    CHECK(fseek(open.from_function, 0, SEEK_SET) == 0);
    CHECK(fgets(text, sizeof text, open.from_function) != NULL && strcmp(text, "from the function") == 0);

    // The kernel reads and writes pages that the executor has: those of a block, for a system call of either side.
    CHECK((open.block = malloc(MIB)) != NULL);
    CALL(fills_block, &open);
    CHECK(pwrite(open.file, open.block, MIB, 0) == (ssize_t)MIB);
    memset(open.block, 0, MIB);
    CALL(reads_into_block, &open);
    check_block(open.block, 0x11);
    memset(open.block, 0x33, MIB);
    CHECK(pwrite(open.file, open.block, MIB, 0) == (ssize_t)MIB);
    CALL(fills_block, &open);
    CHECK(pread(open.file, open.block, MIB, 0) == (ssize_t)MIB);
    check_block(open.block, 0x33);
    free(open.block);
    CHECK(fclose(open.from_function) == 0);
}

static void prints(void *argument) {
    int round = *(int *)argument;
    printf("function %d\n", round);
    if (round % 10 != 0) return;
    fflush(stdout);
    CHECK(write(STDOUT_FILENO, "directly\n", 9) == 9);
    puts("function again");
}

void stdio(void) {
    char name[] = "/tmp/heddle-pushdown-XXXXXX";
    int file = mkstemp(name), before = dup(STDOUT_FILENO);
    CHECK(file >= 0 && before >= 0 && unlink(name) == 0 && dup2(file, STDOUT_FILENO) == STDOUT_FILENO);
    static char wanted[65536], got[65536];
    char *end = wanted;
    for (int round = 0; round < 100; round++) {
        printf("caller %d\n", round);
        CALL(prints, &round);
        end += sprintf(end, "caller %d\nfunction %d\n", round, round);
        if (round % 10 == 0) end += sprintf(end, "directly\nfunction again\n");
    }
    CHECK(fflush(stdout) == 0);
    CHECK(dup2(before, STDOUT_FILENO) == STDOUT_FILENO && close(before) == 0);
    CHECK(pread(file, got, sizeof got, 0) == end - wanted);
    CHECK(memcmp(got, wanted, (size_t)(end - wanted)) == 0);
    close(file);
}

struct identity {
    pid_t process, parent, thread;
    pthread_t self;
    pthread_key_t key;
};

static void check_identity(void *argument) {
    struct identity *wanted = argument;
    CHECK(getpid() == wanted->process && syscall(SYS_getpid) == wanted->process && getppid() == wanted->parent);
    CHECK(syscall(SYS_gettid) == wanted->thread && gettid() == wanted->thread);
    CHECK(pthread_equal(pthread_self(), wanted->self));
    CHECK(pthread_getspecific(wanted->key) == wanted);
    CHECK(pthread_setspecific(wanted->key, &wanted->self) == 0);
}

static void *has_identity(void *key) {
    struct identity identity = {getpid(), getppid(), gettid(), pthread_self(), *(pthread_key_t *)key};
    CHECK(pthread_setspecific(identity.key, &identity) == 0);
    CALL(check_identity, &identity);
    CHECK(pthread_getspecific(identity.key) == &identity.self);
    return NULL;
}

void identity(void) {
    pthread_key_t key;
    CHECK(pthread_key_create(&key, NULL) == 0);
    has_identity(&key);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, has_identity, &key) == 0 && pthread_join(thread, NULL) == 0);
}

static int64_t now_ns(clockid_t clock) {
    struct timespec now;
    CHECK(clock_gettime(clock, &now) == 0 && now.tv_nsec >= 0 && now.tv_nsec < 1000000000);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

struct times {
    int64_t monotonic, real, of_day;
    time_t seconds;
};

static void take_times(void *argument) {
    struct times *times = argument;
    struct timeval of_day;
    CHECK(gettimeofday(&of_day, NULL) == 0);
    *times = (struct times){
        .monotonic = now_ns(CLOCK_MONOTONIC),
        .real = now_ns(CLOCK_REALTIME),
        .of_day = of_day.tv_sec * INT64_C(1000000000) + of_day.tv_usec * 1000,
        .seconds = time(NULL),
    };
}

static void sleeps(void *argument) {
    (void)argument;
    int64_t start = now_ns(CLOCK_MONOTONIC);
    struct timespec pause = {.tv_nsec = 20000000};
    CHECK(nanosleep(&pause, NULL) == 0);
    CHECK(now_ns(CLOCK_MONOTONIC) - start >= 20000000);
}

void times(void) {
    // The clock of the wall may be set back meanwhile, but not by an hour.
    const int64_t hour = INT64_C(3600000000000);
    for (int round = 0; round < 100; round++) {
        struct times before, within, after;
        take_times(&before);
        CALL(take_times, &within);
        take_times(&after);
        CHECK(before.monotonic <= within.monotonic && within.monotonic <= after.monotonic);
        CHECK(llabs(within.real - before.real) < hour && llabs(within.of_day - before.of_day) < hour);
        CHECK(llabs((int64_t)within.seconds - before.seconds) < 3600);
    }
    CALL(sleeps, NULL);
}

static int compares;

static int compare(const void *a, const void *b) {
    int left = *(const int *)a, right = *(const int *)b;
    compares++;
    return (left > right) - (left < right);
}

enum { NUMBERS = 20000 };

static void sorts(void *argument) {
    int *numbers = argument, key = 12345;
    qsort(numbers, NUMBERS, sizeof *numbers, compare);
    int *found = bsearch(&key, numbers, NUMBERS, sizeof *numbers, compare);
    CHECK(found != NULL && *found == key);
}

static void formats(void *argument) {
    char *text = argument;
    int length = snprintf(text, 200, "%.3f %e %g %s %10d|%-6x| %zu %c", 3.14159, 12345.678, 0.0001, "text", -42, 255, SIZE_MAX, 'c');
    CHECK(length == (int)strlen(text));
    double number;
    char word[16];
    int whole;
    CHECK(sscanf("2.5 word 17", "%lf %15s %d", &number, word, &whole) == 3);
    CHECK(number == 2.5 && strcmp(word, "word") == 0 && whole == 17 && strtod("1e-3", NULL) == 1e-3);
}

static void converts(void *argument) {
    wchar_t wide[8];
    CHECK(mbstowcs(wide, "\xc3\xa4\xe2\x82\xac", 8) == 2 && wide[0] == 0xe4 && wide[1] == 0x20ac && towupper(wide[0]) == 0xc4);
    swprintf(argument, 20, L"%ls %d", wide, 7);
}

void library_functions(void) {
    int *numbers = malloc(NUMBERS * sizeof *numbers);
    CHECK(numbers != NULL);
    for (int i = 0; i < NUMBERS; i++) numbers[i] = (int)((int64_t)i * 7919 % NUMBERS);
    CALL(sorts, numbers);
    for (int i = 0; i < NUMBERS; i++) CHECK(numbers[i] == i);
    CHECK(compares > NUMBERS);
    free(numbers);
    char text[200];
    CALL(formats, text);
    CHECK(strcmp(text, "3.142 1.234568e+04 0.0001 text        -42|ff    | 18446744073709551615 c") == 0);
}

// The C library looks up conversions in a file that it maps as shared, for reading only.
void wide_characters(void) {
    CHECK(setlocale(LC_ALL, "C.UTF-8") != NULL);
    wchar_t text[20];
    CALL(converts, text);
    CHECK(wcscmp(text, L"\u00e4\u20ac 7") == 0);
}

static void divides(void *argument) {
    volatile double one = 1.0, three = 3.0;
    *(double *)argument = one / three;
}

// The control of the floating-point unit is the caller's.
void rounding(void) {
    double down = 0, up = 0;
    unsigned before = _mm_getcsr();
    _mm_setcsr((before & ~_MM_ROUND_MASK) | _MM_ROUND_DOWN);
    CALL(divides, &down);
    _mm_setcsr((before & ~_MM_ROUND_MASK) | _MM_ROUND_UP);
    CALL(divides, &up);
    _mm_setcsr(before);
    CHECK(down < up);
}

struct found {
    void *library;
    double (*cosine)(double);
};

static void calls_found(void *argument) {
    struct found *found = argument;
    CHECK(found->cosine(0.0) == 1.0);
    double (*sine)(double) = (double (*)(double))dlsym(found->library, "sin");
    CHECK(sine != NULL && sine(0.0) == 0.0);
    CHECK(dlsym(found->library, "no_such_function") == NULL && dlerror() != NULL);
}

static void loads(void *argument) {
    struct found *found = argument;
    found->library = dlopen("libm.so.6", RTLD_NOW);
    CHECK(found->library != NULL);
    found->cosine = (double (*)(double))dlsym(found->library, "cos");
    CHECK(found->cosine != NULL && found->cosine(0.0) == 1.0);
}

void found_functions(void) {
    struct found found;
    loads(&found);
    CALL(calls_found, &found);
}

// The library is mapped on both sides.
void loaded_library(void) {
    struct found found;
    CALL(loads, &found);
    CHECK(found.cosine(0.0) == 1.0);
    CALL(calls_found, &found);
    CHECK(dlclose(found.library) == 0);
}

struct family {
    unsigned char *mapping;
    unsigned char *block;
    int on_stack;
};
static int global_value;

static void *starts(void *argument) { return argument; }

static void writes_family(void *argument) {
    struct family *family = argument;
    memset(family->mapping, 0x21, MIB);
    memset(family->block, 0x22, 1000);
    family->on_stack = 0x23;
    global_value = 0x24;
    errno = 0;
    CHECK(fork() == -1 && errno == EAGAIN);
    pid_t child;
    char *arguments[] = {"true", NULL};
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, NULL) == EAGAIN);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, starts, NULL) == EAGAIN);
}

static int family_holds(const struct family *family, unsigned char value) {
    for (size_t i = 0; i < MIB; i++) {
        if (family->mapping[i] != value) return 0;
    }
    for (size_t i = 0; i < 1000; i++) {
        if (family->block[i] != value + 1) return 0;
    }
    return family->on_stack == value + 2 && global_value == value + 3;
}

void forks(void) {
    struct family family = {.block = malloc(1000)};
    family.mapping = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(family.block != NULL && family.mapping != MAP_FAILED);
    for (int round = 0; round < 3; round++) {
        memset(family.mapping, 1, MIB);
        CALL(writes_family, &family);
        // All of this is at the executor.
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(family_holds(&family, 0x21));
            CHECK(heddle_pushdown(writes_family, &family, HEDDLE_PUSHDOWN_COHERENT, NULL) == HEDDLE_PUSHDOWN_REFUSED);
            memset(family.mapping, 0x31, MIB);
            memset(family.block, 0x32, 1000);
            family.on_stack = 0x33;
            global_value = 0x34;
            CHECK(family_holds(&family, 0x31));
            _exit(0);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(family_holds(&family, 0x21));
    }
    munmap(family.mapping, MIB);
    free(family.block);
}

static void handler_at_exit(void) { printf(" handler"); }

static void calls_exit(void *argument) {
    (void)argument;
    printf(" function");
    exit(3);
}

// The process ends with status 3. The handler runs, and the output that is in the buffers is written.
void exits(void) {
    CHECK(atexit(handler_at_exit) == 0);
    printf("caller");
    CALL(calls_exit, NULL);
    CHECK(!"exit() returns");
}

static volatile sig_atomic_t handled, handled_within;
static pid_t handling_thread;

static void handle(int signal) {
    (void)signal;
    handled++;
    handling_thread = gettid();
}

static void runs_long(void *argument) {
    int64_t until = *(int64_t *)argument;
    while (now_ns(CLOCK_MONOTONIC) < until) handled_within = handled;
}

void signals(void) {
    struct sigaction action = {.sa_handler = handle};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    for (int round = 1; round <= 3; round++) {
        int64_t until = now_ns(CLOCK_MONOTONIC) + 200000000;
        struct itimerval timer = {.it_value = {.tv_usec = 50000}};
        CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
        CALL(runs_long, &until);
        CHECK(handled_within == round - 1);
        CHECK(handled == round && handling_thread == getpid());
    }
}
