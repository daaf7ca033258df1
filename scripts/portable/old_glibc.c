/* What GCC 12's libstdc++.a needs of a newer glibc than the 2.28 that portable files may ask for. */
#include <stdint.h>
#include <sys/random.h>

char __libc_single_threaded = 0; /* "there may be threads" is always safe */

uint32_t arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

/* exp, log and pow of glibc 2.29 differ from the older ones in errno only, which nothing here reads.
   The linker replaces calls of NAME by calls of __wrap_NAME (--wrap). */
#define OLD(name, parameters, call)                      \
  __asm__(".symver old_" #name "," #name "@GLIBC_2.2.5"); \
  double old_##name parameters;                          \
  double __wrap_##name parameters { return old_##name call; }
OLD(exp, (double x), (x))
OLD(log, (double x), (x))
OLD(pow, (double x, double y), (x, y))
