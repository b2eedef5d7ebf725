// Loaded into a server, gives it a clock that is as many seconds off as the file named by SKEW says,
// an integer of 64 bits that may change at any time. Time that only passes, CLOCK_MONOTONIC, is left alone.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *seconds;

__attribute__((constructor)) static void begin(void) {
    int file = open(getenv("SKEW"), O_RDONLY);
    void *mapped = mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED) _exit(97);
    seconds = mapped;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec real;
    (void)zone;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    now->tv_sec = real.tv_sec + (seconds ? *seconds : 0);
    now->tv_usec = real.tv_nsec / 1000;
    return 0;
}
