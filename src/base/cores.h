// The cores that a thread may run on, and how long it has run. Linux tells and lets one choose; on
// other systems nothing is known, and threads stay where the system puts them.
#ifndef QLORA_BASE_CORES_H_
#define QLORA_BASE_CORES_H_

#include <pthread.h>

#include <bitset>
#include <chrono>
#include <optional>

namespace qlora {

// By the system's numbers of cores.
using CoreSet = std::bitset<1024>;

// Returns the core that the caller runs on; -1 where that is not known.
int CurrentCore();

// Returns the cores that `thread` may run on; nothing where that is not known.
std::optional<CoreSet> CoresOf(pthread_t thread);

// Lets `thread` run on these cores, less those that the process may not have. Returns true when the
// system agreed, as a sandbox may not.
bool SetCores(pthread_t thread, const CoreSet& cores);

// Returns the time for which `thread` has run, if the system reports it.
std::optional<std::chrono::nanoseconds> TimeRun(pthread_t thread);

}  // namespace qlora

#endif  // QLORA_BASE_CORES_H_
