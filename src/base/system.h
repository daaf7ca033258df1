// What only Linux has of files, memory and processes, each with what is done without it.
#ifndef QLORA_BASE_SYSTEM_H_
#define QLORA_BASE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace qlora {

// Returns the file of the running program; "" where the system does not say.
std::filesystem::path ProgramFile();

// Ends this process when its parent ends, where the system can. Safe between fork and exec.
void EndWithParent();

// Opens a file in `folder` that has no name, so that it is gone when this process is killed. -1
// where the file system or the system has no such files.
int OpenNameless(const std::filesystem::path& folder);
// Gives such a file a name that is free. False: errno says why.
bool LinkNameless(int fd, const std::filesystem::path& name);

// Renames unless `to` exists. False: errno says why, ENOSYS or EINVAL that this cannot be done
// here.
bool RenameToFree(const std::filesystem::path& from, const std::filesystem::path& to);
// Exchanges two names at once. False where this cannot be done here, or one of the two is missing.
bool ExchangeNames(const std::filesystem::path& a, const std::filesystem::path& b);

// Opens a pipe, ends[0] to read, that programs started by this process do not have; where the
// system cannot say so at once, others that start meanwhile may. False: errno says why.
bool OpenPipe(int (&ends)[2]);

// Makes an empty file `bytes` long, with its place on the disk where the system can set that aside.
// Returns 0 or the number of the error.
int Extend(int fd, std::uint64_t bytes);
// Sets disk space aside without changing the size. False: errno says why.
bool SetSpaceAside(int fd, std::uint64_t bytes);

// Asks for large pages, which need fewer entries of the processor's tables; a hint.
void PreferLargePages(std::byte* data, std::size_t bytes);

}  // namespace qlora

#endif  // QLORA_BASE_SYSTEM_H_
