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
  void Add(std::shared_ptr<const std::string> bytes);
  // A file that follows all texts, and of which no more than a piece is in memory. Returns its
  // size. Errors: as OpenRegularFile; Runtime.
  std::uint64_t AddFile(const std::string& path);

  // What is to be sent next, as it stays until Sent(); empty: nothing. Errors: Runtime when the
  // file cannot be read, or is shorter than it was.
  std::string_view Next();
  void Sent(std::size_t bytes);
  std::size_t held() const { return held_; }  // bytes in memory

 private:
  void ReadFile();

  std::deque<std::shared_ptr<const std::string>> texts_;
  std::size_t sent_ = 0;  // of the first one
  std::size_t held_ = 0;
  int file_ = -1;
  std::uint64_t file_bytes_ = 0;  // that are still to come
};

}  // namespace qlora

#endif  // QLORA_SERVE_HTTP_OUTPUT_QUEUE_H_
