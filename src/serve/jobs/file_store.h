// Uploaded files, and those that jobs make: in a folder, and as /v1/files has them.
//
//   FILE_ID.json   {"filename", "purpose", "bytes", ...}, written last: a file is there as a whole
//   FILE_ID.jsonl  its bytes
//
// Ids are made here, and what a client names is looked up among them: it never becomes a path.
#ifndef QLORA_SERVE_JOBS_FILE_STORE_H_
#define QLORA_SERVE_JOBS_FILE_STORE_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

inline constexpr std::string_view kTrainingPurpose = "fine-tune";
inline constexpr std::string_view kResultPurpose = "fine-tune-results";

struct StoredFile {
  std::string id = {};
  std::int64_t number = 0;  // files are made in this order
  std::string filename = {};
  std::string purpose = {};
  std::int64_t bytes = 0;
  std::int64_t created_at = 0;
};
// {"id", "object": "file", "bytes", "created_at", "filename", "purpose", "status"}
OrderedJson ToJson(const StoredFile& file);

// Returns the last part of a path, as people see it, without control characters. Errors: ApiError
// 400 for what is not UTF-8, or too long.
std::string PlainFilename(std::string_view given);

// May be used by several threads.
class FileStore {
 public:
  // Makes the folder, takes what it holds, and removes uploads that were cut off, and bytes without
  // a record. Nobody else may use the folder. log: as of ReadRecords. Errors: Runtime.
  FileStore(std::filesystem::path folder, const std::function<void(const std::string& line)>& log);

  // A name in the folder, for bytes that arrive; they are removed at the next start unless Add
  // takes them.
  std::filesystem::path NewUpload() const;
  // Takes a file of NewUpload. filename: of PlainFilename. Errors: Runtime.
  StoredFile Add(const std::filesystem::path& upload, std::string filename,
                 std::string_view purpose);
  std::optional<StoredFile> Find(const std::string& id) const;
  // Errors: ApiError 404, with `param`, for an id that there is not.
  StoredFile Get(const std::string& id, const std::string& param = {}) const;
  // Newest first.
  std::vector<StoredFile> All() const;
  std::filesystem::path PathOf(const StoredFile& file) const;
  // The same for bytes that are to be read. Errors: as Get; ApiError 404 file_gone for bytes that
  // somebody has removed from the folder.
  std::filesystem::path BytesOf(const std::string& id, const std::string& param = {}) const;
  // Errors: as Get.
  void Remove(const std::string& id);

 private:
  std::filesystem::path RecordOf(const std::string& id) const { return folder_ / (id + ".json"); }

  std::filesystem::path folder_;
  mutable std::mutex mutex_;
  std::map<std::string, StoredFile> files_;
  std::int64_t next_ = 0;
};

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_FILE_STORE_H_
