// Ranges of memory, one behind the other, that both sides use in turn: they write and read them, drop, unmap, move and protect them. Who
// uses one has its lock; what is read ahead belongs to the neighbour, who is changing it at that moment.

#define _GNU_SOURCE
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include "cases.h"
#include "check.h"
#include "work.h"

enum { SLOTS = 16, SLOT_PAGES = 32, GROWN_PAGES = 48 };
#define SLOT_BYTES (SLOT_PAGES * PAGE)

static struct slot {
    _Alignas(4096) pthread_mutex_t mutex;
    unsigned char *home;
    // Where it goes when it moves, and comes back from.
    unsigned char *away;
    // Of what it is full; 0 is zeros.
    uint64_t seed;
    uint64_t changes;
} slots[SLOTS];

static volatile uint64_t *word(unsigned char *start, size_t page, int number) {
    return (uint64_t *)(start + page * PAGE + (size_t)number * (PAGE / 4) + 8);
}

static uint64_t wanted(uint64_t seed, size_t page, int number) { return seed == 0 ? 0 : seed + page * 4 + (uint64_t)number; }

static void fill_slot(struct slot *slot, uint64_t seed) {
    for (size_t page = 0; page < SLOT_PAGES; page++) {
        for (int i = 0; i < 4; i++) *word(slot->home, page, i) = wanted(seed, page, i);
    }
    slot->seed = seed;
}

static void check_pages(struct slot *slot, unsigned char *start, size_t pages, const char *when) {
    for (size_t page = 0; page < pages; page++) {
        for (int i = 0; i < 4; i++) {
            uint64_t found = *word(start, page, i), right = page < SLOT_PAGES ? wanted(slot->seed, page, i) : 0;
            if (found == right) continue;
            dprintf(STDERR_FILENO, "slot %ld, page %zu (%p), word %d, %s: %lx instead of %lx\n", (long)(slot - slots), page,
                    (void *)(start + page * PAGE), i, when, found, right);
            _exit(1);
        }
    }
}

static void drop_slot(struct slot *slot) {
    CHECK(madvise(slot->home, SLOT_BYTES, MADV_DONTNEED) == 0);
    slot->seed = 0;
    check_pages(slot, slot->home, SLOT_PAGES, "after it was dropped");
}

// What is freed is what it was, or zero, until it is written.
static void free_slot(struct slot *slot, uint64_t seed) {
    CHECK(madvise(slot->home, SLOT_BYTES, MADV_FREE) == 0);
    fill_slot(slot, seed);
}

static void map_at(unsigned char *start, size_t bytes, int flags) {
    CHECK(mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0) == start);
}

static void unmap_slot(struct slot *slot, int is_replaced) {
    if (!is_replaced) CHECK(munmap(slot->home, SLOT_BYTES) == 0);
    map_at(slot->home, SLOT_BYTES, is_replaced ? MAP_FIXED : MAP_FIXED_NOREPLACE);
    slot->seed = 0;
    check_pages(slot, slot->home, SLOT_PAGES, "after it was mapped anew");
}

// Not in a function: there nothing is moved.
static void move_slot(struct slot *slot, size_t pages) {
    void *away = mremap(slot->home, SLOT_BYTES, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, slot->away);
    if (away == MAP_FAILED) {
        CHECK(errno == ENOMEM);
        return;
    }
    check_pages(slot, slot->away, pages, "after it was moved");
    for (size_t page = SLOT_PAGES; page < pages; page++) *word(slot->away, page, 1) = slot->seed;
    CHECK(mremap(slot->away, pages * PAGE, SLOT_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, slot->home) == slot->home);
    check_pages(slot, slot->home, SLOT_PAGES, "after it was moved back");
}

static void protect_slot(struct slot *slot, int protection) {
    CHECK(mprotect(slot->home, SLOT_BYTES, protection) == 0);
    if (protection != PROT_NONE) check_pages(slot, slot->home, SLOT_PAGES, "while it was protected");
    CHECK(mprotect(slot->home, SLOT_BYTES, PROT_READ | PROT_WRITE) == 0);
}

static void change_slot(struct worker *worker) {
    uint64_t random = next_random(&worker->random), seed = (random >> 16 | 1) << 8;
    struct slot *slot = &slots[random % SLOTS];
    if (pthread_mutex_trylock(&slot->mutex) != 0) return;
    check_pages(slot, slot->home, SLOT_PAGES, "at the beginning");
    switch (random / SLOTS % 16) {
    case 0: case 1: case 2: case 3: fill_slot(slot, seed); break;
    case 4: case 5: drop_slot(slot); break;
    case 6: free_slot(slot, seed); break;
    case 7: unmap_slot(slot, 0); break;
    case 8: unmap_slot(slot, 1); break;
    case 9: move_slot(slot, SLOT_PAGES); break;
    case 10: move_slot(slot, GROWN_PAGES); break;
    case 11: protect_slot(slot, PROT_READ); break;
    case 12: protect_slot(slot, PROT_NONE); break;
    default: break;
    }
    slot->changes++;
    CHECK(pthread_mutex_unlock(&slot->mutex) == 0);
}

static void begin_slots(void) {
    unsigned char *home = mmap(NULL, SLOTS * (SLOT_BYTES + GROWN_PAGES * PAGE), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(home != MAP_FAILED);
    for (int i = 0; i < SLOTS; i++) {
        CHECK(pthread_mutex_init(&slots[i].mutex, NULL) == 0);
        slots[i].home = home + (size_t)i * SLOT_BYTES;
        slots[i].away = home + SLOTS * SLOT_BYTES + (size_t)i * GROWN_PAGES * PAGE;
        map_at(slots[i].home, SLOT_BYTES, MAP_FIXED);
    }
    // Nothing lies at the places to which they move.
    CHECK(munmap(slots[0].away, SLOTS * GROWN_PAGES * PAGE) == 0);
}

void slots_changed(void) {
    begin_slots();
    work(change_slot, NULL, 3);
    uint64_t changes = 0;
    for (int i = 0; i < SLOTS; i++) {
        check_pages(&slots[i], slots[i].home, SLOT_PAGES, "at the end");
        changes += slots[i].changes;
    }
    printf("%lu changes\n", changes);
}

// Pages that are dropped before those that count, so that it takes long from when the kernel says that it drops them until it does.
enum { FIRST_PAGES = 4096, STREAM_PAGES = 22, AHEAD_PAGES = 15, ALL_PAGES = FIRST_PAGES + STREAM_PAGES + AHEAD_PAGES };

static struct stream {
    unsigned char *start;
    _Alignas(4096) atomic_int is_over;
    _Alignas(4096) uint64_t rounds;
} stream;

// Goes through memory in order, whatever is there. What lies behind is read ahead, and never touched by this function.
static void reads_stream(void *argument) {
    struct stream *over = argument;
    while (!atomic_load(&over->is_over)) {
        for (size_t page = 0; page < STREAM_PAGES; page++) (void)*word(over->start, FIRST_PAGES + page, 0);
        over->rounds++;
    }
}

static void *thread_reads_stream(void *argument) {
    CALL(reads_stream, argument);
    return NULL;
}

// What is dropped is zero from then on, though the executor was reading ahead into it.
void dropped_ahead(void) {
    stream.start = mmap(NULL, ALL_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)stream.start != MAP_FAILED);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, thread_reads_stream, &stream) == 0);
    int rounds = 0;
    for (struct timespec begun = now(); seconds_since(begun) < stress_seconds(1.5); rounds++) {
        for (size_t page = 0; page < ALL_PAGES; page++) *word(stream.start, page, 1) = 1;
        CHECK(madvise(stream.start, ALL_PAGES * PAGE, MADV_DONTNEED) == 0);
        for (size_t page = FIRST_PAGES + STREAM_PAGES; page < ALL_PAGES; page++) {
            if (*word(stream.start, page, 1) == 0) continue;
            dprintf(STDERR_FILENO, "round %d: page %zu has its old contents\n", rounds, page);
            _exit(1);
        }
    }
    atomic_store(&stream.is_over, 1);
    CHECK(pthread_join(thread, NULL) == 0 && stream.rounds > 0);
    printf("%d times dropped, %lu times read\n", rounds, stream.rounds);
}

// One range behind the other. Who reads the first one in order asks with the last fault for all pages that the executor has of the second
// one. That is large, so that it takes long to move.
enum { READ_PAGES = 38, COMING_PAGES = 32, MOVED_PAGES = 16384, PLACES = 16, PLACE_PAGES = READ_PAGES + COMING_PAGES };

static struct coming {
    // Where the first one begins: elsewhere each time, or its pages would be expected, and come before anybody reads them.
    unsigned char *first;
    uint64_t seed;
    // The seed with which the last page is about to be read.
    _Alignas(4096) atomic_ulong read;
    _Alignas(4096) pthread_barrier_t barrier;
    int is_over;
} coming;

static void check_coming(unsigned char *start, size_t from, size_t to, const char *when) {
    for (size_t page = from; page < to; page++) {
        uint64_t found = *word(start, page - from, 0), right = wanted(coming.seed, page, 0);
        if (found == right) continue;
        dprintf(STDERR_FILENO, "page %zu, %s: %lx instead of %lx\n", page, when, found, right);
        _exit(1);
    }
}

static void fills_coming(void *argument) {
    struct coming *over = argument;
    for (size_t page = 0; page < PLACE_PAGES; page++) *word(over->first, page, 0) = wanted(over->seed, page, 0);
}

static void wait_for_other(void) {
    int waited = pthread_barrier_wait(&coming.barrier);
    CHECK(waited == 0 || waited == PTHREAD_BARRIER_SERIAL_THREAD);
}

static void *thread_reads_coming(void *argument) {
    for (;;) {
        wait_for_other();
        if (coming.is_over) return argument;
        check_coming(coming.first, 0, READ_PAGES - 1, "read in order");
        atomic_store(&coming.read, coming.seed);
        check_coming(coming.first + (READ_PAGES - 1) * PAGE, READ_PAGES - 1, READ_PAGES, "read last");
        wait_for_other();
    }
}

static void move_coming(unsigned char *from, unsigned char *to, const char *when) {
    CHECK(mremap(from, MOVED_PAGES * PAGE, MOVED_PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    check_coming(to, READ_PAGES, PLACE_PAGES, when);
}

// What is moved has its contents, though they were just coming from the executor.
void moved_ahead(void) {
    size_t pages = PLACES * PLACE_PAGES + MOVED_PAGES;
    unsigned char *start = mmap(NULL, (pages + MOVED_PAGES + 1) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK((void *)start != MAP_FAILED);
    // Each page is moved for itself, and not as part of a table of them: the ways from the tables' borders differ.
    unsigned char *away = start + (pages + 1) * PAGE;
    map_at(start, pages * PAGE, MAP_FIXED);
    for (size_t page = 0; page < pages; page++) *word(start, page, 0) = 1;
    CHECK(pthread_barrier_init(&coming.barrier, NULL, 2) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, thread_reads_coming, NULL) == 0);
    // Nothing lies there, nor will: the thread has its stack.
    CHECK(munmap(away, MOVED_PAGES * PAGE) == 0);
    uint64_t random = 1, rounds = 0;
    for (struct timespec begun = now(); seconds_since(begun) < stress_seconds(1.5); rounds++) {
        coming.first = start + next_random(&random) % PLACES * PLACE_PAGES * PAGE;
        coming.seed = (rounds + 1) << 20;
        CALL(fills_coming, &coming);
        wait_for_other();
        while (atomic_load(&coming.read) != coming.seed) sched_yield();
        double pause = (double)(random >> 32 & 63) / 1e6;
        for (struct timespec read = now(); seconds_since(read) < pause;);
        unsigned char *moved = coming.first + READ_PAGES * PAGE;
        move_coming(moved, away, "after it was moved");
        move_coming(away, moved, "after it was moved back");
        wait_for_other();
    }
    coming.is_over = 1;
    wait_for_other();
    CHECK(pthread_join(thread, NULL) == 0);
    printf("%lu times moved\n", rounds);
}
