#include "base/cores.h"

#if defined(__linux__)
#include <sched.h>
#include <time.h>

namespace qlora {

static_assert(CoreSet().size() == CPU_SETSIZE);

int CurrentCore() { return sched_getcpu(); }

std::optional<CoreSet> CoresOf(pthread_t thread) {
  cpu_set_t set;
  if (pthread_getaffinity_np(thread, sizeof(set), &set) != 0) return std::nullopt;
  CoreSet cores;
  for (std::size_t core = 0; core < cores.size(); ++core) cores[core] = CPU_ISSET(core, &set);
  return cores;
}

bool SetCores(pthread_t thread, const CoreSet& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (std::size_t core = 0; core < cores.size(); ++core) {
    if (cores[core]) CPU_SET(core, &set);
  }
  return pthread_setaffinity_np(thread, sizeof(set), &set) == 0;
}

std::optional<std::chrono::nanoseconds> TimeRun(pthread_t thread) {
  clockid_t clock;
  timespec time;
  if (pthread_getcpuclockid(thread, &clock) != 0) return std::nullopt;
  if (clock_gettime(clock, &time) != 0) return std::nullopt;
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace qlora
#else
namespace qlora {

int CurrentCore() { return -1; }
std::optional<CoreSet> CoresOf(pthread_t) { return std::nullopt; }
bool SetCores(pthread_t, const CoreSet&) { return false; }
std::optional<std::chrono::nanoseconds> TimeRun(pthread_t) { return std::nullopt; }

}  // namespace qlora
#endif
