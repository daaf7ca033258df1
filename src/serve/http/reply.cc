#include "serve/http/reply.h"

#include <atomic>
#include <utility>

namespace qlora {
namespace {

class Reply : public HttpReply {
 public:
  Reply(std::shared_ptr<ServerThread> thread, std::weak_ptr<Connection> connection,
        std::int64_t request)
      : thread_(std::move(thread)), connection_(std::move(connection)), request_(request) {}

  ~Reply() override {
    if (has_ended_) return;
    Tell([](Connection& connection, std::int64_t request) { connection.Abandon(request); });
  }

  void Send(HttpResponse response) override {
    has_ended_ = true;
    Tell([response = std::move(response)](Connection& connection, std::int64_t request) mutable {
      connection.Send(request, std::move(response));
    });
  }
  void Begin(HttpResponse head) override {
    Tell([head = std::move(head)](Connection& connection, std::int64_t request) mutable {
      connection.Begin(request, std::move(head));
    });
  }
  void Write(std::string piece) override {
    Tell([piece = std::move(piece)](Connection& connection, std::int64_t request) {
      connection.Write(request, piece);
    });
  }
  void End() override {
    has_ended_ = true;
    Tell([](Connection& connection, std::int64_t request) { connection.End(request); });
  }
  void OnGone(std::function<void()> gone) override {
    if (has_ended_) return;
    thread_->Run([connection = connection_, request = request_, gone = std::move(gone)] {
      const std::shared_ptr<Connection> there = connection.lock();
      // A connection that is gone altogether was so before the end.
      there == nullptr ? gone() : there->OnGone(request, gone);
    });
  }

 private:
  template <typename Work>
  void Tell(Work work) {
    thread_->Run([connection = connection_, request = request_, work = std::move(work)]() mutable {
      if (const std::shared_ptr<Connection> there = connection.lock()) work(*there, request);
    });
  }

  const std::shared_ptr<ServerThread> thread_;
  const std::weak_ptr<Connection> connection_;
  const std::int64_t request_;
  std::atomic<bool> has_ended_ = false;
};

}  // namespace

HttpReplyPtr MakeReply(std::shared_ptr<ServerThread> thread, std::weak_ptr<Connection> connection,
                       std::int64_t request) {
  return std::make_shared<Reply>(std::move(thread), std::move(connection), request);
}

}  // namespace qlora
