// A program whose executor runs on another host. What the test has to know is written to standard output, a line each.

#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static struct timespec monotonic, real;
static struct timeval day;
static time_t seconds;
static int is_resolved;

static void reads_clocks(void *argument) {
    (void)argument;
    is_resolved = clock_gettime(CLOCK_MONOTONIC, &monotonic) == 0 && clock_gettime(CLOCK_REALTIME, &real) == 0 &&
                  gettimeofday(&day, NULL) == 0;
    seconds = time(NULL);
    struct timespec resolution;
    is_resolved = is_resolved && clock_getres(CLOCK_MONOTONIC, &resolution) == 0 && resolution.tv_nsec > 0;
}

static int is_before(struct timespec one, struct timespec other) {
    return one.tv_sec != other.tv_sec ? one.tv_sec < other.tv_sec : one.tv_nsec <= other.tv_nsec;
}

int main(int count, char **arguments) {
    CHECK(count == 2 && strcmp(arguments[1], "clocks") == 0);
    struct heddle_pushdown_options options = {.size = sizeof options};
    if (heddle_pushdown_open(&options) != HEDDLE_PUSHDOWN_OK) {
        dprintf(STDOUT_FILENO, "not opened: %s\n", heddle_pushdown_reason());
        return 3;
    }
    dprintf(STDOUT_FILENO, "executor %d\n", heddle_pushdown_process());
    // The function's clocks lie between those that its program reads before and after.
    for (int i = 0; i < 20; i++) {
        struct timespec before[2], after[2];
        CHECK(clock_gettime(CLOCK_MONOTONIC, &before[0]) == 0 && clock_gettime(CLOCK_REALTIME, &before[1]) == 0);
        CALL(reads_clocks, NULL);
        CHECK(clock_gettime(CLOCK_MONOTONIC, &after[0]) == 0 && clock_gettime(CLOCK_REALTIME, &after[1]) == 0);
        CHECK(is_resolved);
        CHECK(is_before(before[0], monotonic) && is_before(monotonic, after[0]));
        CHECK(is_before(before[1], real) && is_before(real, after[1]));
        CHECK(day.tv_sec >= before[1].tv_sec && day.tv_sec <= after[1].tv_sec);
        CHECK(seconds >= before[1].tv_sec && seconds <= after[1].tv_sec);
        struct heddle_pushdown_times times = {.size = sizeof times};
        CHECK(heddle_pushdown_times(&times) == HEDDLE_PUSHDOWN_OK);
        unsigned long long all = times.before_ns + times.request_ns + times.set_up_ns + times.run_ns + times.response_ns + times.after_ns;
        // No longer than the call, whose clock is another one, and with room for its rate.
        unsigned long long call = (after[0].tv_sec - before[0].tv_sec) * 1000000000ULL + after[0].tv_nsec - before[0].tv_nsec;
        CHECK(times.run_ns > 0 && all <= call + call / 100 + 1000);
    }
    dprintf(STDOUT_FILENO, "ready\n");
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    dprintf(STDOUT_FILENO, "ok\n");
    return 0;
}
