// The bytes of a data file, read by position: a file larger than memory costs no memory, a file
// that shrinks while it is used gives an error instead of a fault, and there may be more files than
// a process may keep open.
#ifndef QLORA_RECORDS_FILE_BYTES_H_
#define QLORA_RECORDS_FILE_BYTES_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace qlora {

// U+FEFF in UTF-8, which some programs write before the first character of a text.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

class FileBytes {
 public:
  // Does not wait for the writer of a pipe.
  // Errors: InvalidInput when the file is missing, unreadable or not a regular file.
  explicit FileBytes(const std::filesystem::path& path);
  // Wraps an open file without a name, or with a name other than the one for errors. Closes
  // `descriptor` in the end.
  static FileBytes FromDescriptor(std::string name, int descriptor);
  // Wraps an open file that was made of `source`, under the name of `source`. key: names the
  // content. path: of the file, if it has one. Closes `descriptor` in the end.
  static FileBytes MadeOf(const FileBytes& source, std::string key, int descriptor,
                          const std::filesystem::path& path = {});
  // Wraps bytes that are already in memory, under the name that errors give.
  static FileBytes FromMemory(std::string name, std::string bytes);

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }
  // Names the file as it was when it was opened: path, size, inode, and the times of the last
  // change of its content and of its status. The last one cannot be set: a file that was put in the
  // place of this one has another key, whatever its size and its time are.
  const std::string& key() const { return key_; }
  // A hash of the bytes. Reads the file.
  std::uint64_t HashOfContent() const;

  // Errors: InvalidInput when the file has changed since it was opened.
  void CheckUnchanged() const;
  // Reads bytes [begin, begin + count), fewer at the end of the file. May be called by several
  // threads. Errors: InvalidInput when the file has changed since it was opened.
  std::string Read(std::uint64_t begin, std::uint64_t count) const;

  // Returns where the first byte is, behind a byte order mark, that is none of `blanks`; size()
  // when there is none. A file may begin with megabytes of blank lines.
  std::uint64_t FirstNotOf(std::string_view blanks) const;

  // Refuses bytes of the file, found at `offset`, that are not UTF-8: encoding would replace them.
  // Errors: InvalidInput with line, column, byte, and the encoding that the file may have.
  void CheckUtf8(std::uint64_t offset, std::string_view bytes) const;

  // Returns the 1-based number of the line that holds byte `offset`. The first call reads the file
  // up to there, later ones a small part of it.
  std::int64_t LineAt(std::uint64_t offset) const;
  // Returns the 1-based number, in bytes, of byte `offset` within its line.
  std::int64_t ColumnAt(std::uint64_t offset) const;
  // Returns "data.json:17": the line of byte `offset`, and "data.json:17:5": its line and column.
  std::string LineOf(std::uint64_t offset) const;
  std::string PositionOf(std::uint64_t offset) const;

 private:
  class Opened;
  class Lines;

  [[noreturn]] void ThrowNotUtf8(std::uint64_t offset) const;

  FileBytes();
  void Adopt(int descriptor, const std::filesystem::path& path);
  void CheckUnchanged(int descriptor) const;

  std::string name_;
  std::string key_;
  std::uint64_t size_ = 0;
  std::int64_t modified_ = 0;
  std::uint64_t inode_ = 0;
  std::shared_ptr<const Opened> opened_;      // null for bytes in memory
  std::shared_ptr<const std::string> bytes_;  // null for a file
  std::shared_ptr<Lines> lines_;
};

}  // namespace qlora

#endif  // QLORA_RECORDS_FILE_BYTES_H_
