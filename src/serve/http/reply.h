// The replies of a server: calls from any thread become work of its own.
#ifndef QLORA_SERVE_HTTP_REPLY_H_
#define QLORA_SERVE_HTTP_REPLY_H_

#include <cstdint>
#include <memory>

#include "serve/http/connection.h"
#include "serve/http_server.h"

namespace qlora {

// request: its number on the connection.
HttpReplyPtr MakeReply(std::shared_ptr<ServerThread> thread, std::weak_ptr<Connection> connection,
                       std::int64_t request);

}  // namespace qlora

#endif  // QLORA_SERVE_HTTP_REPLY_H_
