#include "dist/folder_copy.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "dist/together.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPiece = std::size_t{16} << 20;

// The text of a file; "" where it cannot be read.
std::string TextOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> FileNames(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A new folder that ends in the name of `path`, from which readers take the step of a checkpoint.
fs::path MakeCopyFolder(const fs::path& path) {
  std::string folder = (fs::temp_directory_path() / "qlora-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    ThrowRuntime("no folder can be made in {}: {}", fs::temp_directory_path().string(),
                 std::strerror(errno));
  }
  const fs::path copy = fs::path(folder) / path.filename();
  fs::create_directory(copy);
  return copy;
}

// Sends a file of rank 0 to all, piece by piece. Ranks with an empty `to` receive and forget it.
// Returns false on a rank that could not read or write it.
bool BroadcastFile(Communicator& communicator, const fs::path& from, const fs::path& to) {
  std::ifstream in;
  std::uint64_t bytes = 0;
  if (communicator.is_root()) {
    std::error_code error;
    const auto size = fs::file_size(from, error);
    bytes = error ? 0 : size;
    in.open(from, std::ios::binary);
    if (error) in.setstate(std::ios::failbit);
  }
  communicator.Broadcast(std::as_writable_bytes(std::span(&bytes, 1)), 0);
  std::ofstream out;
  if (!to.empty()) out.open(to, std::ios::binary);
  std::vector<char> piece;
  for (std::uint64_t begin = 0; begin < bytes; begin += kPiece) {
    piece.resize(std::min<std::uint64_t>(kPiece, bytes - begin));
    if (communicator.is_root()) in.read(piece.data(), std::ssize(piece));
    communicator.Broadcast(std::as_writable_bytes(std::span(piece)), 0);
    if (!to.empty()) out.write(piece.data(), std::ssize(piece));
  }
  out.flush();
  return (!communicator.is_root() || in.good()) && (to.empty() || out.good());
}

}  // namespace

FolderCopy::~FolderCopy() {
  std::error_code ignored;
  if (copy_) fs::remove_all(path_.parent_path(), ignored);
}

std::shared_ptr<const FolderCopy> ShareFolder(Communicator& communicator, const std::string& path,
                                              const std::string& key) {
  const std::string expected = BroadcastText(communicator, TextOf(fs::path(path) / key));
  const bool missing = TextOf(fs::path(path) / key) != expected;
  auto folder = MakeTogether(communicator, [&] {
    return std::make_shared<const FolderCopy>(missing ? MakeCopyFolder(path) : fs::path(path),
                                              missing);
  });
  if (!AnyRank(communicator, missing)) return folder;
  std::string names;  // one per line
  Together(communicator, [&] {
    if (!communicator.is_root()) return;
    for (const std::string& name : FileNames(path)) names += name + '\n';
  });
  names = BroadcastText(communicator, names);
  bool whole = true;
  for (std::size_t begin = 0; begin < names.size();) {
    const std::size_t end = names.find('\n', begin);
    const std::string name = names.substr(begin, end - begin);
    if (end == names.npos || name.find('/') != name.npos || name == "..") {
      ThrowSent(communicator, 0, "the name of a file that is none");
    }
    whole &= BroadcastFile(communicator, fs::path(path) / name,
                           missing ? folder->path() / name : fs::path());
    begin = end + 1;
  }
  Together(communicator, [&] {
    if (whole) return;
    ThrowRuntime("{} cannot be {}", folder->path().string(),
                 communicator.is_root() ? "read" : "written");
  });
  return folder;
}

}  // namespace qlora
