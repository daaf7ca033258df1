// The text before the body of an answer.
#ifndef QLORA_SERVE_HTTP_ANSWER_HEAD_H_
#define QLORA_SERVE_HTTP_ANSWER_HEAD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http_server.h"

namespace qlora {

// What the connection adds to what the handler says.
struct AnswerFrame {
  std::optional<std::uint64_t> length = {};  // of the body; nothing: not known
  bool is_chunked = false;
  bool is_http_10 = false;
  bool keeps_alive = false;
  std::string id = {};
  std::string allowed_origin = {};  // of a page that may read the answer; "": none
};

// Answers are not kept on disk, not guessed to be another type and not shown inside other pages,
// unless their own headers say so.
std::string AnswerHead(const HttpResponse& response, const AnswerFrame& frame);

// True for a status whose answers have a body.
bool HasBody(int status);

// A piece of a chunked body; of "" nothing, which would end it.
std::string Chunk(std::string_view piece);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// What a browser asks before a request of another site's page, and the methods for all others.
HttpResponse OptionsAnswer(bool is_allowed_origin);

}  // namespace qlora

#endif  // QLORA_SERVE_HTTP_ANSWER_HEAD_H_
