// Requests out of the bytes of a connection, one after the other. Knows no sockets.
#ifndef QLORA_SERVE_HTTP_REQUEST_READER_H_
#define QLORA_SERVE_HTTP_REQUEST_READER_H_

// Asio 1.74 needs it in C++20.
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "serve/http_server.h"

namespace qlora {

// Hands the bytes of a body on as they come.
struct PassedBody {
  using value_type = std::function<void(std::string_view)>;

  class reader {
   public:
    template <bool is_request, class Fields>
    reader(boost::beast::http::header<is_request, Fields>&, value_type& take) : take_(take) {}
    void init(const boost::optional<std::uint64_t>&, boost::beast::error_code& error) {
      error = {};
    }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, boost::beast::error_code& error) {
      error = {};
      std::size_t bytes = 0;
      for (const boost::asio::const_buffer buffer : boost::beast::buffers_range_ref(buffers)) {
        take_({static_cast<const char*>(buffer.data()), buffer.size()});
        bytes += buffer.size();
      }
      return bytes;
    }
    void finish(boost::beast::error_code& error) { error = {}; }

   private:
    value_type& take_;
  };
};

// Bytes of the bodies in memory, which requests may hold longer than their connection.
using HeldBodies = std::shared_ptr<std::atomic<std::size_t>>;

class RequestReader {
 public:
  // all_held: of all readers, which limits.bodies bounds.
  RequestReader(const HttpLimits& limits, HeldBodies all_held);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  // Where the next bytes go; of size 0 while too many wait for their turn.
  boost::asio::mutable_buffer Room();
  void Added(std::size_t bytes) { buffer_.commit(bytes); }
  // No byte of the next request has come.
  bool IsEmpty() const { return head_bytes_ == 0 && buffer_.size() == 0; }
  // Empty lines came before it.
  bool HasSkipped() const { return empty_lines_ > 0; }

  // Reads on in the head of a request, before which empty lines may stand. False: it needs more
  // bytes. Errors: ApiError 400, 431.
  bool ReadHead();
  // Once the head is read. Errors: ApiError 413 for a body that is said to be too large, 507 for a
  // file that cannot be made.
  void BeginBody(const HttpBody& body);
  // Reads on in the body. False: it needs more bytes. Errors: ApiError 400, 413; 503 where the
  // bodies of all readers are too many, 507 where the file cannot be written.
  bool ReadBody();

  // The head alone, or all once the body is read. A file of a body that is not taken is removed.
  const HttpRequest& head() const { return request_; }
  // Its body is counted as held until the last copy is gone.
  HttpRequest Take();
  bool is_http_10() const { return parser_->get().version() == 10; }
  bool is_head() const { return is_head_; }  // HEAD, which the request calls GET
  bool keeps_alive() const { return parser_->keep_alive(); }
  bool waits_for_continue() const;
  // No byte of this request is still to come.
  bool IsDone() const { return parser_->is_done(); }
  std::size_t body_bytes() const { return body_bytes_; }

  // Frees what has been read of the body.
  void DropBody();
  // Begins with the next request, part of which may be there.
  void Next();
  void DropBytes() { buffer_.clear(); }

 private:
  // False: more bytes have to come to know whether a line is empty. Errors: ApiError 400 for many.
  bool SkipEmptyLines();
  void ReadFields();
  void TakeBody(std::string_view bytes);

  const HttpLimits& limits_;
  const HeldBodies all_held_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<PassedBody>> parser_;
  std::size_t empty_lines_ = 0;  // before the head
  std::size_t head_bytes_ = 0;
  HttpRequest request_;
  bool is_head_ = false;
  std::size_t body_limit_ = 0;
  std::size_t body_bytes_ = 0;
  int file_ = -1;
};

}  // namespace qlora

#endif  // QLORA_SERVE_HTTP_REQUEST_READER_H_
