#include "serve/api_error.h"

#include <fmt/format.h>

#include "io/json.h"

namespace qlora {
namespace {

// OpenAI's names.
const char* TypeOf(int status) {
  switch (status) {
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

const char* AnthropicTypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

OrderedJson TextOrNull(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

HttpResponse WithHeaders(int status, const OrderedJson& body) {
  HttpResponse response{.status = status, .body = FormatJson(body)};
  // Clients try again after so many seconds.
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

// A place in a template, "FILE:LINE:COLUMN: ", without the folder of the file, of which clients are
// not told.
std::string WithoutFolder(const std::string& text) {
  constexpr std::string_view kDigits = "0123456789";
  for (std::size_t colon = text.find(':'); colon != text.npos; colon = text.find(':', colon + 1)) {
    const std::size_t line = text.find_first_not_of(kDigits, colon + 1);
    if (line == text.npos || line == colon + 1 || text[line] != ':') continue;
    const std::size_t column = text.find_first_not_of(kDigits, line + 1);
    if (column == text.npos || column == line + 1 || text[column] != ':') continue;
    const std::size_t before = text.rfind(": ", colon);
    const std::size_t begin = before == text.npos ? 0 : before + 2;
    const std::size_t folder = text.rfind('/', colon);
    if (folder == text.npos || folder < begin) return text;
    return text.substr(0, begin) + text.substr(folder + 1);
  }
  return text;
}

}  // namespace

ApiError ContextExceeded(std::int64_t context_length, const std::string& found,
                         const std::string& param) {
  return ApiError(400,
                  fmt::format("this model's maximum context length is {} tokens, and the prompt "
                              "has {}: shorten it, and leave room for the answer",
                              context_length, found),
                  param, "context_length_exceeded");
}

ApiError DiskError(const std::string& detail) {
  return ApiError(507,
                  "the server cannot use the folder where it keeps files (--runs, --log_requests): "
                  "the disk is full, or the folder is gone or cannot be written; its log says more",
                  "", "disk_error", detail);
}

ApiError CaughtError(const std::string& fault) {
  std::string detail = "unknown";
  try {
    throw;
  } catch (const ApiError& error) {
    return error;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidInput) return ApiError(400, WithoutFolder(error.what()));
    detail = error.what();
  } catch (const std::exception& error) {
    detail = error.what();
  } catch (...) {
  }
  return ApiError(500, fault, "", "", detail);
}

HttpResponse OpenAiError(const ApiError& error) {
  return WithHeaders(error.status, {{"error",
                                     {{"message", error.message},
                                      {"type", TypeOf(error.status)},
                                      {"param", TextOrNull(error.param)},
                                      {"code", TextOrNull(error.code)}}}});
}

HttpResponse AnthropicError(const ApiError& error, const std::string& request_id) {
  // There is no place for the field but the message.
  const bool names_field = error.param.empty() || error.message.starts_with(error.param);
  std::string message = names_field ? error.message : error.param + ": " + error.message;
  // Clients look for these words.
  if (error.code == "context_length_exceeded") message = "prompt is too long: " + message;
  OrderedJson inner = {{"type", AnthropicTypeOf(error.status)}, {"message", message}};
  if (error.code == kNoThreads) {
    inner["details"] = {{"error_code", kNoThreads},
                        {"unsupported", OrderedJson::array({"thread"})}};
  }
  HttpResponse response = WithHeaders(
      error.status, {{"type", "error"}, {"error", std::move(inner)}, {"request_id", request_id}});
  response.headers.emplace_back("request-id", request_id);
  return response;
}

}  // namespace qlora
