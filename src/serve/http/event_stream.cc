#include "serve/http/event_stream.h"

#include <algorithm>
#include <string>
#include <utility>

namespace qlora {

EventStream::EventStream(HttpReplyPtr reply, HttpRoom room, HttpHeaders headers)
    : reply_(std::move(reply)) {
  headers.emplace_back("Cache-Control", "no-cache");
  // Proxies pass events on as they come.
  headers.emplace_back("X-Accel-Buffering", "no");
  reply_->Begin({.type = "text/event-stream; charset=utf-8",
                 .headers = std::move(headers),
                 .ping = ": ping\n\n",
                 .room = std::move(room)});
}

void EventStream::Event(std::string_view name, std::string_view data) {
  std::string text;
  if (!name.empty()) text.append("event: ").append(name).append("\n");
  while (true) {
    const std::size_t end = std::min(data.find_first_of("\r\n"), data.size());
    text.append("data: ").append(data.substr(0, end)).append("\n");
    if (end == data.size()) break;
    data.remove_prefix(end + (data.substr(end).starts_with("\r\n") ? 2 : 1));
  }
  reply_->Write(text + "\n");
}

void EventStream::End() { reply_->End(); }

void EventStream::Done() {
  Data("[DONE]");
  End();
}

}  // namespace qlora
