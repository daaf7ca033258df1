// Memory that requests hold when their bodies are gone, until their answers are written to their
// clients: prompts, forms of answers, questions that are laid out, texts and log-probabilities of
// answers, fields that an answer repeats, conversations that are kept. Requests that wait are many,
// and a small body may ask for much of it.
#ifndef QLORA_SERVE_REQUEST_ROOM_H_
#define QLORA_SERVE_REQUEST_ROOM_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace qlora {

// Of all requests together.
struct RequestRoom {
  explicit RequestRoom(std::size_t bytes) : most(bytes) {}

  const std::size_t most;
  std::atomic<std::size_t> held = 0;
};

// The part of one request, which ends with this.
class HeldBytes {
 public:
  explicit HeldBytes(std::shared_ptr<RequestRoom> room) : room_(std::move(room)) {}
  ~HeldBytes() { room_->held -= bytes_; }
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;

  // Errors: ApiError 400 beyond half of the room, with the field that asks for it and what to do;
  // 429 where others hold the rest.
  void Add(std::size_t bytes, const std::string& field, std::string_view remedy);
  // Adds what is missing to so many.
  void AtLeast(std::size_t bytes, const std::string& field, std::string_view remedy) {
    if (bytes > bytes_) Add(bytes - bytes_, field, remedy);
  }

 private:
  std::shared_ptr<RequestRoom> room_;
  std::size_t bytes_ = 0;
};

}  // namespace qlora

#endif  // QLORA_SERVE_REQUEST_ROOM_H_
