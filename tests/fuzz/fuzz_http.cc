// Fuzzes what clients of a server send, without a connection: requests in pieces, and forms. The
// first byte chooses.
#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz_util.h"
#include "serve/api_error.h"
#include "serve/http/head_checks.h"
#include "serve/http/multipart.h"
#include "serve/http/request_reader.h"

namespace qlora {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

// Reads requests out of `bytes`, of which the reader gets at most `piece` at a time, until one is
// refused.
std::vector<std::string> ReadAll(std::string_view bytes, std::size_t piece) {
  HttpLimits limits;
  limits.head = 1024;
  limits.bodies = 4096;
  const auto held = std::make_shared<std::atomic<std::size_t>>(0);
  const HeadRules rules{.port = 80, .hosts = {"localhost"}, .api_key = "key"};
  std::vector<std::string> requests;
  {
    RequestReader reader(limits, held);
    bool in_body = false;
    try {
      while (true) {
        if (!(in_body ? reader.ReadBody() : reader.ReadHead())) {
          if (bytes.empty()) break;
          const auto room = reader.Room();
          Require(room.size() > 0);
          const std::size_t count = std::min({room.size(), piece, bytes.size()});
          std::memcpy(room.data(), bytes.data(), count);
          reader.Added(count);
          bytes.remove_prefix(count);
        } else if (!in_body) {
          try {
            CheckSite(reader.head(), rules, "10.0.0.1");
            CheckKey(reader.head(), rules);
            Require(!reader.head().headers.at("host").empty());
          } catch (const ApiError& error) {
            Require(error.status == 401 || error.status == 403);
          }
          reader.BeginBody({.limit = 2048});
          in_body = true;
        } else {
          const HttpRequest request = reader.Take();
          Require(request.path == "*" || request.path.starts_with('/'));
          Require(request.body.size() <= 2048);
          requests.push_back(request.method + request.path + request.body);
          reader.Next();
          in_body = false;
        }
      }
    } catch (const ApiError& error) {
      Require(!error.message.empty());
    }
  }
  Require(*held == 0);
  return requests;
}

// However the bytes of a connection are cut, they are the same requests.
void CheckRequests(std::string_view bytes) {
  Require(ReadAll(bytes, bytes.size() + 1) == ReadAll(bytes, 1));
}

// The Content-Type, a zero byte, and the body.
void CheckForm(std::string_view rest) {
  const std::string_view type = TakeText(rest);
  std::string file;
  std::size_t read = 0;
  try {
    const MultipartForm form = ReadMultipart(
        rest, type, "file", [&](std::string_view piece) { file += piece; },
        [&](std::size_t bytes) {
          Require(bytes >= read && bytes <= rest.size());
          read = bytes;
        });
    Require(form.file_bytes == static_cast<std::int64_t>(file.size()));
    Require(form.file_name || file.empty());
    for (const auto& [name, value] : form.fields) {
      Require(rest.find(value) != std::string_view::npos);
    }
  } catch (const ApiError& error) {
    Require(error.status == 400 || error.status == 415);
  }
  Require(rest.find(file) != std::string_view::npos);
}

}  // namespace
}  // namespace qlora

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  data[0] % 2 == 0 ? CheckRequests(input) : CheckForm(input);
  return 0;
}
