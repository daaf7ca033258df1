// The bytes that are to leave on a connection.
#ifndef QLORA_SERVE_HTTP_OUTPUT_QUEUE_H_
#define QLORA_SERVE_HTTP_OUTPUT_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

namespace qlora {

class OutputQueue {
 public:
  OutputQueue() = default;
  ~OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;

  void Add(std::string bytes);
  void AddShared(std::shared_ptr<const std::string> bytes);
  // A file that follows all texts, and of which no more than a piece is in memory. Returns its
  // size. Errors: as OpenRegularFile; Runtime.
  std::uint64_t AddFile(const std::string& path);

  // What is to be sent next, as it stays until Sent(); empty: nothing. Errors: Runtime when the
  // file cannot be read, or is shorter than it was.
  std::string_view Next();
  void Sent(std::size_t bytes);
  // Bytes in memory, but for what others share; a piece of a file that is still to come.
  std::size_t held() const { return held_ + (file_ < 0 ? 0 : kFilePiece); }

 private:
  static constexpr std::size_t kFilePiece = std::size_t{64} << 10;
  struct Text {
    std::shared_ptr<const std::string> bytes;
    bool is_shared;
  };

  void ReadFile();

  std::deque<Text> texts_;
  std::size_t sent_ = 0;  // of the first one
  std::size_t held_ = 0;
  int file_ = -1;
  std::uint64_t file_bytes_ = 0;  // that are still to come
};

}  // namespace qlora

#endif  // QLORA_SERVE_HTTP_OUTPUT_QUEUE_H_
