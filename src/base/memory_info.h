// How much memory this process holds and may still take, in bytes.
#ifndef QLORA_BASE_MEMORY_INFO_H_
#define QLORA_BASE_MEMORY_INFO_H_

#include <cstddef>
#include <filesystem>

namespace qlora {

// Returns the resident memory now: private pages and pages of mapped files.
std::size_t ResidentBytes();

// Returns the peak of the resident memory.
std::size_t PeakResidentBytes();

// Returns the bytes that can still be allocated without swapping or being killed: the least of the
// machine's available memory, the room under the memory limit of every enclosing cgroup (v1 and v2;
// file cache counts as room because it is given back on demand), and the limits set by `ulimit -v`
// and `ulimit -d`. `root` is where /proc and /sys are looked up.
std::size_t AvailableBytes(const std::filesystem::path& root = "/");

// Returns the physical memory, or the cgroup limit when that is lower.
std::size_t TotalBytes(const std::filesystem::path& root = "/");

}  // namespace qlora

#endif  // QLORA_BASE_MEMORY_INFO_H_
