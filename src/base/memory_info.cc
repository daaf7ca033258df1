#include "base/memory_info.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

// Returns the difference, or 0 instead of a wrapped number: the two values are read one after the
// other.
std::size_t Minus(std::size_t a, std::size_t b) { return a > b ? a - b : 0; }

// Returns the number that follows `key` at the start of a line ("VmRSS:", "total_inactive_file"),
// or none.
std::optional<std::size_t> NumberAfter(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  std::string word;
  std::size_t number = 0;
  while (in >> word) {
    if (word == key && in >> number) return number;
    in.clear();
    in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// Reads a file of one number; kUnlimited when the file is missing or holds "max".
std::size_t NumberIn(const fs::path& file) {
  std::ifstream in(file);
  std::size_t number = 0;
  return in >> number ? number : kUnlimited;
}

// Returns the bytes of a line in kB, as /proc writes them; 0 where there is no such line.
std::size_t KilobytesAfter(const fs::path& file, std::string_view key) {
  return NumberAfter(file, key).value_or(0) * 1024;
}

#if defined(_SC_AVPHYS_PAGES)
constexpr int kFreePages = _SC_AVPHYS_PAGES;
#else
constexpr int kFreePages = _SC_PHYS_PAGES;  // of a system that does not count free ones
#endif

// Returns the bytes that /proc/meminfo names, or without /proc the system's count of pages in
// bytes.
std::size_t MachineBytes(const fs::path& root, std::string_view key, int pages) {
  if (const auto kilobytes = NumberAfter(root / "proc/meminfo", key)) return *kilobytes * 1024;
  const long count = sysconf(pages);
  const long page = sysconf(_SC_PAGESIZE);
  return count > 0 && page > 0 ? std::size_t{1} * count * page : kUnlimited;
}

struct Cgroup {
  std::size_t limit = kUnlimited;
  std::size_t room = kUnlimited;  // bytes left below the limit
};

// Returns the limit of one cgroup folder; unlimited when the folder is not there.
Cgroup ReadCgroup(const fs::path& folder, bool v2) {
  Cgroup cgroup;
  cgroup.limit = NumberIn(folder / (v2 ? "memory.max" : "memory.limit_in_bytes"));
  if (cgroup.limit == kUnlimited) return cgroup;
  const std::size_t used = NumberIn(folder / (v2 ? "memory.current" : "memory.usage_in_bytes"));
  if (used == kUnlimited) return cgroup;
  std::size_t cache = 0;
  for (const char* kind : {"inactive_file", "active_file"}) {
    const std::string key = std::string(v2 ? "" : "total_") + kind;
    cache += NumberAfter(folder / "memory.stat", key).value_or(0);
  }
  cgroup.room = Minus(cgroup.limit, Minus(used, cache));
  return cgroup;
}

// Returns the tightest of the cgroups around this process. A container often sees its own cgroup as
// the root of the mount while /proc/self/cgroup names the path outside, so every folder from the
// named one up to the mount is read and missing ones are passed over.
Cgroup TightestCgroup(const fs::path& root) {
  Cgroup tightest;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find(",memory,") == std::string::npos) continue;
    const fs::path mount = root / (v2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    fs::path inner = fs::path(line.substr(second + 1)).relative_path();
    for (;; inner = inner.parent_path()) {
      const Cgroup here = ReadCgroup(mount / inner, v2);
      tightest.limit = std::min(tightest.limit, here.limit);
      tightest.room = std::min(tightest.room, here.room);
      if (inner.empty()) break;
    }
  }
  return tightest;
}

// Returns the bytes left below a limit of this process.
std::size_t RoomUnder(int resource, std::size_t used) {
  struct rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return Minus(limit.rlim_cur, used);
}

}  // namespace

std::size_t ResidentBytes() { return KilobytesAfter("/proc/self/status", "VmRSS:"); }

std::size_t PeakResidentBytes() { return KilobytesAfter("/proc/self/status", "VmHWM:"); }

std::size_t AvailableBytes(const fs::path& root) {
  const fs::path status = root / "proc/self/status";
  return std::min({MachineBytes(root, "MemAvailable:", kFreePages), TightestCgroup(root).room,
                   RoomUnder(RLIMIT_AS, KilobytesAfter(status, "VmSize:")),
                   RoomUnder(RLIMIT_DATA, KilobytesAfter(status, "VmData:"))});
}

std::size_t TotalBytes(const fs::path& root) {
  return std::min(MachineBytes(root, "MemTotal:", _SC_PHYS_PAGES), TightestCgroup(root).limit);
}

}  // namespace qlora
