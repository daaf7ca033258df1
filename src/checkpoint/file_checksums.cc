#include "checkpoint/file_checksums.h"

#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>

#include "base/check.h"
#include "base/file.h"
#include "checkpoint/checkpoint_folders.h"
#include "io/json.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Bytes that are read at a time and released, so that a paged optimizer is never in memory as a
// whole.
constexpr std::size_t kPiece = std::size_t{1} << 20;

std::string Crc32Of(const MappedFile& file) {
  uLong crc = crc32_z(0, nullptr, 0);
  for (std::size_t begin = 0; begin < file.bytes().size(); begin += kPiece) {
    const auto piece = file.bytes().subspan(begin, std::min(kPiece, file.bytes().size() - begin));
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
    file.Release(begin, piece.size());
  }
  return fmt::format("{:08x}", crc);
}

// Calls visit(name, path) for each file, with its name relative to the folder.
void ForEachFile(const fs::path& folder,
                 const std::function<void(const std::string& name, const fs::path& path)>& visit) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      visit(entry.path().lexically_relative(folder).generic_string(), entry.path());
    }
  }
}

// Errors: InvalidInput when the file differs from `record`, its entry in trainer_state.json.
void CheckFile(const fs::path& path, const Json& record, const std::string& where) {
  const MappedFile file(path);
  const auto bytes = JsonGet<std::int64_t>(record, "bytes", where);
  if (std::ssize(file.bytes()) != bytes) {
    ThrowInvalidInput("{}: expected {} bytes as {} records, found {}", path.string(), bytes, where,
                      file.bytes().size());
  }
  const auto crc = JsonGet<std::string>(record, "crc32", where);
  const std::string found = Crc32Of(file);
  if (found != crc) {
    ThrowInvalidInput(
        "{}: expected the CRC-32 {} as {} records, found {}: the file has changed since it was "
        "written",
        path.string(), crc, where, found);
  }
}

// The checksum of the record without its own key, in the one form in which values are written.
std::string Crc32OfState(Json state) {
  state.erase(kStateChecksum);
  const std::string text = FormatJson(state);
  const auto* bytes = reinterpret_cast<const Bytef*>(text.data());
  return fmt::format("{:08x}", crc32_z(crc32_z(0, nullptr, 0), bytes, text.size()));
}

}  // namespace

void AddChecksums(const fs::path& folder, Json& state) {
  state[kCheckedFiles] = FileChecksums(folder);
  state[kStateChecksum] = Crc32OfState(state);
}

Json FileChecksums(const fs::path& folder) {
  Json files = Json::object();
  ForEachFile(folder, [&](const std::string& name, const fs::path& path) {
    const MappedFile file(path);
    files[name] = {{"bytes", file.bytes().size()}, {"crc32", Crc32Of(file)}};
  });
  return files;
}

// Walks over the files that are there: a record may be a stranger's, and no path of it is opened.
void CheckFileChecksums(const fs::path& checkpoint, const Json& state) {
  const std::string where = (checkpoint / kTrainerState).string();
  if (FindJson(state, kStateChecksum, where) != nullptr) {
    const auto crc = JsonGet<std::string>(state, kStateChecksum, where);
    const std::string found = Crc32OfState(state);
    if (found != crc) {
      ThrowInvalidInput(
          "{}: expected the CRC-32 {} of its other keys, as its key '{}' says, found {}: the file "
          "has changed since it was written",
          where, crc, kStateChecksum, found);
    }
  }
  const Json* recorded = FindJson(state, kCheckedFiles, where);
  if (recorded == nullptr) return;
  if (!recorded->is_object()) {
    ThrowInvalidInput("{}: key '{}': expected an object, found {}", where, kCheckedFiles,
                      recorded->type_name());
  }
  Json missing = *recorded;
  ForEachFile(checkpoint, [&](const std::string& name, const fs::path& path) {
    const auto record = recorded->find(name);
    if (record == recorded->end()) return;
    CheckFile(path, *record, where);
    missing.erase(name);
  });
  if (!missing.empty()) {
    ThrowInvalidInput("{}: the file is missing, which {} records",
                      (checkpoint / missing.begin().key()).string(), where);
  }
}

}  // namespace qlora
