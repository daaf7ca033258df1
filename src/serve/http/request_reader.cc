#include "serve/http/request_reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <span>
#include <string_view>

#include "base/file.h"
#include "base/text.h"
#include "serve/api_error.h"
#include "serve/http/head_checks.h"

namespace qlora {
namespace {

namespace http = boost::beast::http;

// Bytes that are read at once, of heads and of bodies.
constexpr std::size_t kHeadPiece = std::size_t{4} << 10;
constexpr std::size_t kBodyPiece = std::size_t{64} << 10;

// Some clients end a body with a line that is no part of it.
constexpr std::size_t kMostEmptyLines = 8;

// A line that goes on with the one before it; other readers would see two, or none.
bool HasFoldedLine(std::string_view head) {
  return head.find("\n ") != head.npos || head.find("\n\t") != head.npos;
}

ApiError TooLarge(std::size_t limit) {
  return ApiError(
      413, fmt::format("the body is larger than {} bytes, the most that is taken here", limit));
}

}  // namespace

RequestReader::RequestReader(const HttpLimits& limits, HeldBodies all_held)
    : limits_(limits), all_held_(std::move(all_held)) {
  Next();
}

RequestReader::~RequestReader() { DropBody(); }

boost::asio::mutable_buffer RequestReader::Room() {
  const bool in_body = parser_->is_header_done() && !parser_->is_done();
  const std::size_t piece = in_body ? kBodyPiece : kHeadPiece;
  const std::size_t most = in_body ? kBodyPiece : limits_.head + kHeadPiece;
  return buffer_.prepare(std::min(piece, most - std::min(most, buffer_.size())));
}

bool RequestReader::SkipEmptyLines() {
  while (!parser_->got_some()) {
    const std::string_view bytes(static_cast<const char*>(buffer_.data().data()), buffer_.size());
    if (bytes == "\r") return false;
    if (!bytes.starts_with("\r\n")) return true;
    if (++empty_lines_ > kMostEmptyLines) {
      throw ApiError(400, "not a request of HTTP/1.1: empty lines stand before it");
    }
    buffer_.consume(2);
  }
  return true;
}

bool RequestReader::ReadHead() {
  while (!parser_->is_header_done()) {
    if (!SkipEmptyLines() || buffer_.size() == 0) return false;
    boost::beast::error_code error;
    const std::size_t bytes = parser_->put(buffer_.data(), error);
    // The parser takes a line once it knows that the next one does not belong to it.
    const bool is_folded = HasFoldedLine({static_cast<const char*>(buffer_.data().data()), bytes});
    buffer_.consume(bytes);
    // The parser counts anew whenever the fields so far are complete.
    head_bytes_ += bytes;
    if (error == http::error::header_limit || head_bytes_ > limits_.head) {
      throw ApiError(431,
                     fmt::format("the head of the request is longer than {} bytes", limits_.head));
    }
    if (is_folded) {
      throw ApiError(400, "a header goes on in a second line; write it in one");
    }
    if (error == http::error::need_more) return false;
    if (error) throw ApiError(400, "not a request of HTTP/1.1: " + error.message());
  }
  ReadFields();
  return true;
}

void RequestReader::ReadFields() {
  const auto& message = parser_->get();
  const std::string_view method(message.method_string().data(), message.method_string().size());
  is_head_ = method == "HEAD";
  request_.method = is_head_ ? "GET" : method;
  for (const auto& field : message) {
    const std::string name = LowerCase({field.name_string().data(), field.name_string().size()});
    const std::string_view value(field.value().data(), field.value().size());
    const auto [place, is_new] = request_.headers.try_emplace(name, value);
    if (!is_new) place->second.append(", ").append(value);
  }
  CheckHosts(static_cast<std::int64_t>(message.count(http::field::host)), is_http_10());
  ReadTarget({message.target().data(), message.target().size()}, request_);
  CheckFraming(request_, is_http_10());
}

bool RequestReader::waits_for_continue() const {
  return !is_http_10() && !IsDone() && buffer_.size() == 0 &&
         LowerCase(HeaderOf(request_, "expect")) == "100-continue";
}

void RequestReader::BeginBody(const HttpBody& body) {
  body_limit_ = body.limit;
  const auto length = parser_->content_length();
  if (length && *length > body.limit) throw TooLarge(body.limit);
  if (IsDone() || body.file.empty()) return;
  file_ = OnDisk([&] { return OpenForWriting(body.file, OpenMode::kCreate); });
  request_.body_file = body.file;
}

bool RequestReader::ReadBody() {
  parser_->get().body() = [this](std::string_view bytes) { TakeBody(bytes); };
  while (!parser_->is_done()) {
    if (buffer_.size() == 0) return false;
    boost::beast::error_code error;
    const std::size_t bytes = parser_->put(buffer_.data(), error);
    buffer_.consume(bytes);
    if (error == http::error::need_more) {
      if (buffer_.size() < kBodyPiece) return false;
      throw ApiError(400, "the body has a chunk whose head is too long");
    }
    if (error) throw ApiError(400, "the body cannot be read: " + error.message());
  }
  return true;
}

void RequestReader::TakeBody(std::string_view bytes) {
  body_bytes_ += bytes.size();
  if (body_bytes_ > body_limit_) throw TooLarge(body_limit_);
  if (file_ >= 0) {
    return OnDisk([&] {
      internal::WriteAll(file_, request_.body_file, -1, std::as_bytes(std::span(bytes)));
    });
  }
  if (*all_held_ + bytes.size() > limits_.bodies) {
    throw ApiError(503, "too many large requests at the same time; try again later");
  }
  request_.body.append(bytes);
  *all_held_ += bytes.size();
}

HttpRequest RequestReader::Take() {
  if (file_ >= 0) close(file_);
  file_ = -1;
  HttpRequest request = std::exchange(request_, {});
  const std::size_t bytes = request.body.size();
  request.body_room = std::shared_ptr<const void>(
      nullptr, [held = all_held_, bytes](const void*) { *held -= bytes; });
  return request;
}

void RequestReader::DropBody() {
  if (file_ >= 0) {
    close(file_);
    unlink(request_.body_file.c_str());
    file_ = -1;
  }
  *all_held_ -= request_.body.size();
  request_ = {};
}

void RequestReader::Next() {
  DropBody();
  parser_.emplace();
  // Both are counted here. A parser of Beast 1.74 without a limit refuses every body.
  parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
  parser_->header_limit(static_cast<std::uint32_t>(limits_.head));
  empty_lines_ = 0;
  head_bytes_ = 0;
  body_bytes_ = 0;
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
}

}  // namespace qlora
