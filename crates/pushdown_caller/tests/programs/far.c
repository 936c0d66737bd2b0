// Far memory: its home is the executor, and the program keeps a part of it.
#include "cases.h"
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define FAR (8 * MIB)
#define BUDGET (MIB / 4)
#define WORDS (FAR / sizeof(uint64_t))

struct far {
    uint64_t *words;
    uint64_t factor, sum;
};

static void adds_up(void *argument) {
    struct far *far = argument;
    far->sum = 0;
    for (size_t at = 0; at < WORDS; at++) far->sum += far->words[at];
}

static void multiplies(void *argument) {
    struct far *far = argument;
    for (size_t at = 0; at < WORDS; at++) far->words[at] *= far->factor;
}

// How many pages of a range are here.
static size_t resident(void *start, size_t bytes) {
    unsigned char pages[FAR / PAGE];
    CHECK(mincore(start, bytes, pages) == 0);
    size_t count = 0;
    for (size_t page = 0; page < bytes / PAGE; page++) count += pages[page] & 1;
    return count;
}

void far_memory(void) {
    struct far far = {.words = heddle_far_map(FAR, BUDGET), .factor = 3};
    CHECK(far.words != NULL);
    CALL(adds_up, &far);
    CHECK(far.sum == 0);
    for (size_t at = 0; at < WORDS; at++) far.words[at] = at;
    CHECK(resident(far.words, FAR) <= BUDGET / PAGE + 64);
    const uint64_t sum = WORDS * (WORDS - 1) / 2;
    CALL(adds_up, &far);
    CHECK(far.sum == sum);
    CALL(multiplies, &far);
    uint64_t seen = 0;
    for (size_t at = 0; at < WORDS; at++) {
        CHECK(far.words[at] == at * 3);
        seen += far.words[at];
    }
    CHECK(seen == sum * 3 && resident(far.words, FAR) <= BUDGET / PAGE + 64);
    // Some here, some there.
    uint64_t state = 1;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 2000; i++) {
            state = state * 6364136223846793005 + 1442695040888963407;
            far.words[(state >> 33) % WORDS] += 1;
        }
        CALL(adds_up, &far);
        CHECK(far.sum == sum * 3 + 2000 * (uint64_t)(round + 1));
    }
    CHECK(munmap(far.words, FAR) == 0);
    void *again = mmap(far.words, FAR, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (again == far.words) {
        CALL(adds_up, &far);
        CHECK(far.sum == 0 && resident(again, FAR) <= FAR / PAGE);
    }
}

static struct far shared;
static atomic_int stops;

static void *changes_beside(void *argument) {
    uint64_t state = (uintptr_t)argument + 1;
    while (!atomic_load(&stops)) {
        state = state * 6364136223846793005 + 1442695040888963407;
        _Atomic uint64_t *word = (_Atomic uint64_t *)&shared.words[(state >> 33) % WORDS];
        atomic_fetch_add(word, 1);
        atomic_fetch_sub(word, 1);
    }
    return NULL;
}

static void changes_all(void *argument) {
    (void)argument;
    for (int round = 0; round < 4; round++)
        for (size_t at = 0; at < WORDS; at += 8) atomic_fetch_add((_Atomic uint64_t *)&shared.words[at], 1);
}

// Threads evict pages that a function wants, and the other way round.
void far_beside(void) {
    shared.words = heddle_far_map(FAR, BUDGET);
    CHECK(shared.words != NULL);
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, changes_beside, (void *)i) == 0);
    CALL(changes_all, NULL);
    atomic_store(&stops, 1);
    for (size_t i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (size_t at = 0; at < WORDS; at++) CHECK(shared.words[at] == (at % 8 == 0 ? 4 : 0));
}

static void maps_far(void *argument) {
    *(void **)argument = heddle_far_map(PAGE, PAGE);
}

void far_refused(void) {
    CHECK(heddle_far_map(0, PAGE) == NULL && errno == EINVAL);
    void *mapped = &mapped;
    CALL(maps_far, &mapped);
    CHECK(mapped == NULL && errno == ENOTCONN);
    // A child does not have it, and has all else.
    unsigned char *far = heddle_far_map(FAR, BUDGET);
    CHECK(far != NULL);
    memset(far, 7, FAR);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(mincore(far, PAGE, (unsigned char[1]){0}) == -1 && errno == ENOMEM ? 0 : 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (size_t at = 0; at < FAR; at += PAGE) CHECK(far[at] == 7);
}

static void *reads_beside(void *argument) {
    uint64_t sum = 0;
    for (uint64_t state = 1; !atomic_load(&stops);) {
        state = state * 6364136223846793005 + 1442695040888963407;
        sum += shared.words[(state >> 33) % WORDS] % 2;
    }
    *(uint64_t *)argument = sum;
    return NULL;
}

void far_evicted(void) {
    struct far far = {.words = heddle_far_map(FAR, FAR)};
    CHECK(far.words != NULL);
    for (size_t at = 0; at < WORDS; at++) far.words[at] = 2 * at;
    CHECK(resident(far.words, FAR) == FAR / PAGE);
    // Half of it, which was written.
    CHECK(heddle_far_evict(far.words, FAR / 2) == HEDDLE_PUSHDOWN_OK);
    CHECK(resident(far.words, FAR / 2) == 0 && resident(far.words + WORDS / 2, FAR / 2) == FAR / 2 / PAGE);
    CALL(adds_up, &far);
    CHECK(far.sum == WORDS * (WORDS - 1));
    // All of it, which was read since.
    for (size_t at = 0; at < WORDS; at++) CHECK(far.words[at] == 2 * at);
    CHECK(heddle_far_evict(far.words, FAR) == HEDDLE_PUSHDOWN_OK && resident(far.words, FAR) == 0);
    for (size_t at = 0; at < WORDS; at += PAGE / 8) CHECK(far.words[at] == 2 * at);
    // Other memory, and memory that is not there, stay as they are.
    CHECK(heddle_far_evict(&far, sizeof far) == HEDDLE_PUSHDOWN_OK && heddle_far_evict(NULL, 0) == HEDDLE_PUSHDOWN_OK);
    // Beside a thread that fetches pages.
    shared.words = far.words;
    pthread_t thread;
    uint64_t odd = 0;
    CHECK(pthread_create(&thread, NULL, reads_beside, &odd) == 0);
    for (int round = 0; round < 50; round++) CHECK(heddle_far_evict(far.words, FAR) == HEDDLE_PUSHDOWN_OK);
    atomic_store(&stops, 1);
    CHECK(pthread_join(thread, NULL) == 0 && odd == 0);
    CALL(adds_up, &far);
    CHECK(far.sum == WORDS * (WORDS - 1));
    CHECK(munmap(far.words, FAR) == 0);
}

static void sets_odd_pages(void *argument) {
    uint64_t *words = argument;
    for (size_t page = 1; page < FAR / PAGE; page += 2) words[page * PAGE / sizeof *words] = page;
}

// Pages that the program drops are zero on both sides, and those that it touches then count as any others.
void far_dropped(void) {
    struct far far = {.words = heddle_far_map(FAR, BUDGET)};
    CHECK(far.words != NULL);
    for (int round = 0; round < 3; round++) {
        for (size_t at = 0; at < WORDS; at++) far.words[at] = at + 1;
        CHECK(madvise(far.words, FAR, MADV_DONTNEED) == 0);
        CALL(adds_up, &far);
        CHECK(far.sum == 0);
        for (size_t at = 0; at < WORDS; at += 16) CHECK(far.words[at] == 0);
        for (size_t at = 0; at < WORDS; at++) far.words[at] = at + 1;
        CHECK(madvise(far.words, FAR, MADV_DONTNEED) == 0);
        // The first to touch them is the program, in any order.
        for (size_t page = 0; page < FAR / PAGE; page += 3) far.words[page * PAGE / 8] = 0;
        for (size_t at = 0; at < WORDS; at++) far.words[at] += at;
        CHECK(resident(far.words, FAR) <= BUDGET / PAGE + 64);
        CALL(adds_up, &far);
        CHECK(far.sum == WORDS * (WORDS - 1) / 2);
        CHECK(madvise(far.words, FAR, MADV_DONTNEED) == 0);
        CALL(sets_odd_pages, far.words);
        for (size_t page = 0; page < FAR / PAGE; page++) CHECK(far.words[page * PAGE / 8] == (page % 2 ? page : 0));
    }
}

// How many bytes of its own a process has in memory: the messages on their way are in shared memory, and may be many.
static size_t memory_of(pid_t process) {
    char name[40];
    snprintf(name, sizeof name, "/proc/%d/statm", process);
    FILE *file = fopen(name, "r");
    size_t all, resident, shared;
    CHECK(file != NULL && fscanf(file, "%zu %zu %zu", &all, &resident, &shared) == 3);
    fclose(file);
    return (resident - shared) * PAGE;
}

#define STORED (32 * MIB)
#define STORED_WORDS (STORED / sizeof(uint64_t))
#define WORDS_OF_PAGE (PAGE / sizeof(uint64_t))

static uint64_t *stored;
static atomic_int rounds;

// Each word of the upper half of each page, so that pages are written by both sides.
static void adds_above(void *argument) {
    (void)argument;
    for (size_t at = 0; at < STORED_WORDS; at++)
        if (at % WORDS_OF_PAGE >= WORDS_OF_PAGE / 2) stored[at] += 1;
    atomic_fetch_add(&rounds, 1);
}

static void *adds_below(void *argument) {
    uint64_t state = 7;
    while (atomic_load(&rounds) == 0) {
        state = state * 6364136223846793005 + 1442695040888963407;
        size_t page = (state >> 33) % (STORED / PAGE);
        ++*(size_t *)argument;
        stored[page * WORDS_OF_PAGE + 1] += 1;
    }
    return NULL;
}

// More than the executor has memory for: pages go on to storage, changed and unchanged, and come back.
void far_stored(void) {
    pid_t executor = executor_process();
    stored = heddle_far_map(STORED, BUDGET);
    CHECK(stored != NULL);
    for (size_t at = 0; at < STORED_WORDS; at++) stored[at] = at;
    size_t begun = memory_of(executor);
    CALL(adds_above, NULL);
    for (size_t at = 0; at < STORED_WORDS; at++) CHECK(stored[at] == at + (at % WORDS_OF_PAGE >= WORDS_OF_PAGE / 2));
    // Read only: nothing has to be written again.
    for (size_t at = 0; at < STORED_WORDS; at += WORDS_OF_PAGE) CHECK(stored[at] == at);
    // Both sides at the same time.
    atomic_store(&rounds, 0);
    pthread_t thread;
    size_t added = 0, found = 0;
    CHECK(pthread_create(&thread, NULL, adds_below, &added) == 0);
    CALL(adds_above, NULL);
    CHECK(pthread_join(thread, NULL) == 0);
    for (size_t at = 0; at < STORED_WORDS; at++) {
        uint64_t more = stored[at] - at;
        if (at % WORDS_OF_PAGE == 1) found += more;
        else CHECK(more == (at % WORDS_OF_PAGE >= WORDS_OF_PAGE / 2 ? 2 : 0));
    }
    CHECK(found == added);
    // What is dropped is zero, and not what storage has.
    CHECK(madvise(stored, STORED / 2, MADV_DONTNEED) == 0);
    CALL(adds_above, NULL);
    for (size_t at = 0; at < STORED_WORDS / 2; at++) CHECK(stored[at] == (at % WORDS_OF_PAGE >= WORDS_OF_PAGE / 2));
    // The executor's own memory, and some pages on their way. Without storage it would have all of it.
    size_t most = EXECUTOR_MEMORY + 6 * MIB;
    CHECK(begun < most && memory_of(executor) < most && most < STORED);
}
