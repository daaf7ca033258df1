/* What GCC 12's libstdc++.a needs of a newer glibc than the 2.28 that portable files may ask for. */
#include <pthread.h>
#include <stdint.h>
#include <sys/random.h>
#include <time.h>

char __libc_single_threaded = 0; /* "there may be threads" is always safe */

uint32_t arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

/* The older pthread_cond_timedwait knows CLOCK_REALTIME alone: waits as long by that clock. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  struct timespec now, by_realtime;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &by_realtime);
  by_realtime.tv_sec += until->tv_sec - now.tv_sec;
  by_realtime.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (by_realtime.tv_nsec < 0) {
    by_realtime.tv_nsec += 1000000000;
    --by_realtime.tv_sec;
  } else if (by_realtime.tv_nsec >= 1000000000) {
    by_realtime.tv_nsec -= 1000000000;
    ++by_realtime.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &by_realtime);
}

/* exp, log and pow of glibc 2.29 differ from the older ones in errno only, which nothing here reads.
   The linker replaces calls of NAME by calls of __wrap_NAME (--wrap). */
#ifdef __aarch64__
#define FIRST "GLIBC_2.17"
#else
#define FIRST "GLIBC_2.2.5"
#endif
#define OLD(name, parameters, call)                      \
  __asm__(".symver old_" #name "," #name "@" FIRST);     \
  double old_##name parameters;                          \
  double __wrap_##name parameters { return old_##name call; }
OLD(exp, (double x), (x))
OLD(log, (double x), (x))
OLD(pow, (double x, double y), (x, y))
