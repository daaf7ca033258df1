#include "serve/jobs/file_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/stopwatch.h"
#include "io/json.h"
#include "serve/api_error.h"
#include "serve/jobs/record_files.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "file-";
constexpr std::string_view kUploadPrefix = ".upload-";

StoredFile ReadStoredFile(const Json& json, const std::string& id, const std::string& where) {
  StoredFile file{.id = id,
                  .number = JsonGet<std::int64_t>(json, "number", where),
                  .filename = JsonGet<std::string>(json, "filename", where),
                  .purpose = JsonGet<std::string>(json, "purpose", where),
                  .bytes = JsonGet<std::int64_t>(json, "bytes", where),
                  .created_at = JsonGet<std::int64_t>(json, "created_at", where)};
  if (file.number < 0 || file.bytes < 0) ThrowInvalidInput("{}: negative numbers", where);
  return file;
}

// A refusal that names the field of a request, if it is of one.
ApiError NotThere(const std::string& param, const char* message, const char* code) {
  return ApiError(404, param.empty() ? message : param + ": " + message, param, code);
}

}  // namespace

OrderedJson ToJson(const StoredFile& file) {
  return {{"id", file.id},
          {"object", "file"},
          {"bytes", file.bytes},
          {"created_at", file.created_at},
          {"filename", file.filename},
          {"purpose", file.purpose},
          {"status", "processed"}};
}

std::string PlainFilename(std::string_view given) {
  constexpr std::size_t kMostBytes = 255;
  given.remove_prefix(given.find_last_of("/\\") + 1);
  std::string name;
  for (const char c : given) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) name += c;
  }
  std::string replaced;
  if (ValidUtf8(name, &replaced) != name || name.size() > kMostBytes) {
    throw ApiError(
        400, fmt::format("file: its name is not UTF-8, or has more than {} bytes", kMostBytes),
        "file");
  }
  return name.empty() ? "file" : name;
}

FileStore::FileStore(fs::path folder, const std::function<void(const std::string& line)>& log)
    : folder_(std::move(folder)) {
  ReadRecords(folder_, kPrefix, log,
              [&](const Json& record, const std::string& id, const std::string& where) {
                StoredFile file = ReadStoredFile(record, id, where);
                next_ = std::max(next_, file.number + 1);
                std::error_code failed;
                const auto bytes = fs::file_size(PathOf(file), failed);
                if (failed || bytes != static_cast<std::uintmax_t>(file.bytes)) {
                  ThrowInvalidInput(
                      "{}: the bytes of {} are missing, or not the {} that there were", where,
                      PathOf(file).string(), file.bytes);
                }
                files_.emplace(id, std::move(file));
              });
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const fs::path& path = entry.path();
    const std::string id = path.stem().string();
    const bool is_nobodys =
        path.extension() == ".jsonl" && IsId(id, kPrefix) && !Exists(RecordOf(id));
    if (path.filename().string().starts_with(kUploadPrefix) || is_nobodys) RemoveFile(path);
  }
}

fs::path FileStore::NewUpload() const { return folder_ / NewId(kUploadPrefix); }

fs::path FileStore::PathOf(const StoredFile& file) const { return folder_ / (file.id + ".jsonl"); }

StoredFile FileStore::Add(const fs::path& upload, std::string filename, std::string_view purpose) {
  StoredFile file{.id = NewId(kPrefix),
                  .filename = std::move(filename),
                  .purpose = std::string(purpose),
                  .bytes = static_cast<std::int64_t>(fs::file_size(upload)),
                  .created_at = SecondsSince1970()};
  const std::lock_guard lock(mutex_);
  file.number = next_++;
  fs::rename(upload, PathOf(file));
  const Json record = {{"number", file.number},
                       {"filename", file.filename},
                       {"purpose", file.purpose},
                       {"bytes", file.bytes},
                       {"created_at", file.created_at}};
  try {
    WriteTextFile(RecordOf(file.id), FormatJson(record, 2) + "\n");
  } catch (...) {
    std::error_code ignored;
    fs::remove(RecordOf(file.id), ignored);
    fs::remove(PathOf(file), ignored);
    throw;
  }
  return files_.emplace(file.id, file).first->second;
}

std::optional<StoredFile> FileStore::Find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  return found == files_.end() ? std::nullopt : std::optional(found->second);
}

StoredFile FileStore::Get(const std::string& id, const std::string& param) const {
  if (std::optional<StoredFile> file = Find(id)) return *std::move(file);
  throw NotThere(param, "there is no file of this id; GET /v1/files lists them", "");
}

fs::path FileStore::BytesOf(const std::string& id, const std::string& param) const {
  const fs::path path = PathOf(Get(id, param));
  if (Exists(path)) return path;
  throw NotThere(param, "the bytes of this file are no longer there; upload it again", "file_gone");
}

std::vector<StoredFile> FileStore::All() const {
  std::vector<StoredFile> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, file] : files_) all.push_back(file);
  }
  std::ranges::sort(all, std::greater(), &StoredFile::number);
  return all;
}

void FileStore::Remove(const std::string& id) {
  const StoredFile file = Get(id);
  const std::lock_guard lock(mutex_);
  // The record first: without it, the bytes are nobody's.
  RemoveFile(RecordOf(file.id));
  RemoveFile(PathOf(file));
  files_.erase(file.id);
}

}  // namespace qlora
