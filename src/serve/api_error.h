// A request that is refused, with what OpenAI's and Anthropic's clients make an exception of.
#ifndef QLORA_SERVE_API_ERROR_H_
#define QLORA_SERVE_API_ERROR_H_

#include <cstdint>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "qlora/error.h"
#include "serve/http_server.h"

namespace qlora {

// The code of a conversation that the server is to keep (AnthropicError).
inline constexpr const char* kNoThreads = "thread_unsupported_request";

struct ApiError : std::exception {
  ApiError(int its_status, std::string its_message, std::string its_param = {},
           std::string its_code = {}, std::string its_detail = {})
      : status(its_status),
        message(std::move(its_message)),
        param(std::move(its_param)),
        code(std::move(its_code)),
        detail(std::move(its_detail)) {}
  const char* what() const noexcept override { return message.c_str(); }

  int status;           // 400, 401, 403, 404, 405, 413, 415, 429, 431, 500, 503, 507
  std::string message;  // what is wrong, and what to do
  std::string param;    // the field, "messages[0].content"; "": none
  std::string code;     // "context_length_exceeded", "model_not_found" ...; "": none
  std::string detail;   // for the log of the server, not for the client; "": nothing
};

// The refusal of a prompt that leaves no room for an answer. found: what it has, "300 tokens".
// param: the prompt, where it is a field.
ApiError ContextExceeded(std::int64_t context_length, const std::string& found,
                         const std::string& param = {});

// Runs what works with the folders in which the server keeps files. What that throws beside
// ApiError is a fault of the disk, and no mistake of the client: ApiError 507.
ApiError DiskError(const std::string& detail);
template <typename Work>
auto OnDisk(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw DiskError(error.what());
  } catch (const std::system_error& error) {
    throw DiskError(error.what());
  }
}

// What is told of the exception that is being handled: ApiError as it is, InvalidInput as 400 (of a
// template without the folder that it is in), and of others `fault` as 500, with their text, which
// may be of use to an attacker, as the detail.
ApiError CaughtError(const std::string& fault);

// {"error": {"message", "type", "param", "code"}}
HttpResponse OpenAiError(const ApiError& error);
// {"type": "error", "error": {"type", "message"}, "request_id"}; of kNoThreads with what clients
// look for in "details".
HttpResponse AnthropicError(const ApiError& error, const std::string& request_id);

}  // namespace qlora

#endif  // QLORA_SERVE_API_ERROR_H_
