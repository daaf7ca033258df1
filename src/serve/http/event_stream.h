// Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
#ifndef QLORA_SERVE_HTTP_EVENT_STREAM_H_
#define QLORA_SERVE_HTTP_EVENT_STREAM_H_

#include <string_view>

#include "serve/http_server.h"

namespace qlora {

// One answer of events. Silence of HttpLimits::ping_time is broken by a comment, which clients
// pass over. From one thread at a time.
class EventStream {
 public:
  // Begins the answer: its head leaves at once. room: for events that are large.
  explicit EventStream(HttpReplyPtr reply, HttpRoom room = {}, HttpHeaders headers = {});

  void Data(std::string_view data) { Event("", data); }
  // "data: ...\n\n", after "event: name\n" unless the name is "". Each line of `data` is one of its
  // own, as the specification says.
  void Event(std::string_view name, std::string_view data);
  void End();
  // "data: [DONE]\n\n", and the end.
  void Done();

 private:
  HttpReplyPtr reply_;
};

}  // namespace qlora

#endif  // QLORA_SERVE_HTTP_EVENT_STREAM_H_
