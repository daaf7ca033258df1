#include "serve/routes/answer_run.h"

#include <mutex>
#include <utility>
#include <vector>

namespace qlora {
namespace {

// Pieces may come before Submit returns.
class AnswerRun {
 public:
  AnswerRun(AnswerParts parts, std::shared_ptr<AnswerWriter> writer)
      : parts_(std::move(parts)), writer_(std::move(writer)) {}

  void Begin() {
    const std::lock_guard lock(mutex_);
    BeginOnce();
  }
  void Add(const GenerationPiece& piece) {
    const std::lock_guard lock(mutex_);
    BeginOnce();
    Write(parts_.Add(piece.text));
  }
  void End(const GenerationEnd& end) {
    const std::lock_guard lock(mutex_);
    BeginOnce();
    if (!end.error.empty()) {
      writer_->Fail(ApiError(500, "a fault within the server ended the answer; its log has more"));
      return;
    }
    Write(parts_.Finish());
    writer_->End(end);
  }

 private:
  void BeginOnce() {
    if (!std::exchange(has_begun_, true)) writer_->Begin();
  }
  void Write(const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& part : parts) writer_->Add(part);
  }

  std::mutex mutex_;
  bool has_begun_ = false;
  AnswerParts parts_;
  std::shared_ptr<AnswerWriter> writer_;
};

}  // namespace

void RunAnswer(GenerationService& generation, GenerationRequest request, AnswerParts parts,
               std::shared_ptr<AnswerWriter> writer, const HttpReplyPtr& reply) {
  const auto run = std::make_shared<AnswerRun>(std::move(parts), std::move(writer));
  const GenerationId id = generation.Submit(
      std::move(request), {.on_piece = [run](const GenerationPiece& piece) { run->Add(piece); },
                           .on_end = [run](const GenerationEnd& end) { run->End(end); }});
  run->Begin();
  reply->OnGone([&generation, id] { generation.Cancel(id); });
}

}  // namespace qlora
