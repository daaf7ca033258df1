#include "serve/routes/routes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "io/json.h"
#include "qlora/error.h"

namespace qlora {
namespace {

// Returns what stands for the {names} of a route's path; nothing for another path.
std::optional<std::map<std::string, std::string>> Match(std::string_view route,
                                                        std::string_view path) {
  std::map<std::string, std::string> values;
  while (true) {
    const std::string_view name = route.substr(0, route.find('/'));
    const std::string_view part = path.substr(0, path.find('/'));
    if (name.starts_with('{')) {
      if (part.empty()) return std::nullopt;
      values[std::string(name.substr(1, name.size() - 2))] = part;
    } else if (name != part) {
      return std::nullopt;
    }
    const bool ends = name.size() == route.size();
    if (ends != (part.size() == path.size())) return std::nullopt;
    if (ends) return values;
    route.remove_prefix(name.size() + 1);
    path.remove_prefix(part.size() + 1);
  }
}

}  // namespace

void RouteTable::Add(std::string method, std::string path, Route route) {
  entries_.push_back({std::move(method), std::move(path), std::move(route), false});
}

void RouteTable::AddQuick(std::string method, std::string path, Route route) {
  entries_.push_back({std::move(method), std::move(path), std::move(route), true});
}

void RouteTable::Handle(HttpRequest request, HttpReplyPtr reply) const {
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  std::vector<const Entry*> others;
  for (const Entry& entry : entries_) {
    std::optional<std::map<std::string, std::string>> values = Match(entry.path, request.path);
    if (!values) continue;
    if (entry.method != method) {
      others.push_back(&entry);
      continue;
    }
    request.values = std::move(*values);
    if (entry.is_quick) return Run(entry, std::move(request), std::move(reply));
    server_.workers.Run([this, &entry, request = std::move(request), reply = std::move(reply)] {
      Run(entry, request, reply);
    });
    return;
  }
  reply->Send(NoRoute(request, others));
}

void RouteTable::Run(const Entry& entry, HttpRequest request, HttpReplyPtr reply) const {
  try {
    entry.route(request, reply);
  } catch (...) {
    reply->Send(ErrorResponse(request, CaughtError(server_, request)));
  }
}

// others: routes of the same path.
HttpResponse RouteTable::NoRoute(const HttpRequest& request,
                                 const std::vector<const Entry*>& others) const {
  if (others.empty()) {
    std::set<std::string_view> paths;
    for (const Entry& entry : entries_) paths.insert(entry.path);
    const int status = request.path == "/v1/embeddings" ? 501 : 404;
    return ErrorResponse(
        request,
        ApiError(status, fmt::format("{} is not offered here; there is {}",
                                     FirstBytes(request.path, 100), fmt::join(paths, ", "))));
  }
  std::set<std::string_view> methods = {"OPTIONS"};
  for (const Entry* entry : others) {
    methods.insert(entry->method);
    if (entry->method == "GET") methods.insert("HEAD");
  }
  const std::string allowed = fmt::format("{}", fmt::join(methods, ", "));
  HttpResponse response = {.status = 204};
  if (request.method != "OPTIONS") {
    response = ErrorResponse(
        request, ApiError(405, fmt::format("{} takes {}, not {}", others.front()->path, allowed,
                                           FirstBytes(request.method, 20))));
  }
  response.headers.emplace_back("Allow", allowed);
  return response;
}

HttpResponse ErrorResponse(const HttpRequest& request, const ApiError& error) {
  const bool is_anthropic =
      request.path == "/v1/messages" || request.path.starts_with("/v1/messages/");
  return is_anthropic ? AnthropicError(error, request.id) : OpenAiError(error);
}

ApiError CaughtError(const Server& server, const HttpRequest& request) {
  std::string text = "unknown";
  try {
    throw;
  } catch (const ApiError& error) {
    return error;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidInput) return ApiError(400, error.what());
    text = error.what();
  } catch (const std::exception& error) {
    text = error.what();
  }
  server.log(fmt::format("{} {}: error: {}", request.id, request.path, text));
  return ApiError(500,
                  fmt::format("a fault within the server; its log has more under {}", request.id));
}

void SendJson(HttpReply& reply, const OrderedJson& json, int status) {
  reply.Send({.status = status, .body = FormatJson(json)});
}

}  // namespace qlora
