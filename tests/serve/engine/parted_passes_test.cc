// Passes in parts: their turns beside each other and beside answers, and their ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <exception>
#include <future>
#include <memory>

#include "backend/backend_decorator.h"
#include "base/arena.h"
#include "base/stopwatch.h"
#include "qlora/error.h"
#include "serve/engine/engine_service_fixture.h"

namespace qlora {
namespace {

using testing::HasSubstr;

class PartedPassesTest : public EngineServiceTest {
 protected:
  // What became of passes. A part waits for its gate, where there is one.
  struct Asked {
    GenerationId id = 0;
    std::atomic<std::int64_t> parts = 0;
    std::promise<int> ended;  // status: 200, of an ApiError, 0 of any other
    std::promise<void> begun;
    std::shared_future<void> gate;
  };
  // Of `parts` parts, the first of which waits.
  std::shared_ptr<Asked> Ask(std::int64_t parts, std::shared_future<void> gate = {}) {
    auto asked = std::make_shared<Asked>();
    asked->gate = std::move(gate);
    asked->id =
        service_->SubmitPasses({.parts = parts,
                                .run_part =
                                    [asked](const Decoder&, Arena&) {
                                      if (++asked->parts > 1 || !asked->gate.valid()) return;
                                      asked->begun.set_value();
                                      asked->gate.wait();
                                    },
                                .on_end =
                                    [asked](const std::exception_ptr& error) {
                                      asked->ended.set_value(error ? StatusOfError(error) : 200);
                                    }});
    return asked;
  }
  static int StatusOfError(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const ApiError& thrown) {
      return thrown.status;
    } catch (...) {
      return 0;
    }
  }
  int StatusOfAsking() {
    try {
      return Ask(1)->ended.get_future().get();
    } catch (const ApiError& error) {
      return error.status;
    }
  }

  std::promise<void> go_;
  const std::shared_future<void> may_go_ = go_.get_future().share();
};

TEST_F(PartedPassesTest, EndAfterThePartInProgressWhenTheirClientLeaves) {
  const auto asked = Ask(5, may_go_);
  asked->begun.get_future().wait();
  const auto waits = Ask(5);
  service_->Cancel(asked->id);
  service_->Cancel(waits->id);
  go_.set_value();
  service_->RunAlone([] {});  // behind them
  EXPECT_EQ(asked->parts, 1);
  EXPECT_EQ(waits->parts, 0);
  EXPECT_THAT(metrics_.Text(), HasSubstr("qlora_requests_cancelled_total 2\n"));
  EXPECT_TRUE(service_->WaitUntilIdle(std::chrono::minutes(1)));
}

TEST_F(PartedPassesTest, AreRefusedBeyondTheQueue) {
  Start({.sequences = 1, .queue = 3, .positions = 64, .rows = 64});
  const auto first = Ask(3, may_go_);
  first->begun.get_future().wait();
  const auto second = Ask(100);  // there is room for one part
  EXPECT_EQ(StatusOfAsking(), 429);
  EXPECT_THROW(service_->CheckRoomForPasses(), ApiError);
  std::future<Told> answer = Begin(Request("a", 2));  // has a queue of its own
  go_.set_value();
  EXPECT_EQ(first->ended.get_future().get(), 200);
  EXPECT_EQ(second->ended.get_future().get(), 200);
  EXPECT_EQ(second->parts, 100);
  EXPECT_EQ(answer.get().end.error, "");
  EXPECT_TRUE(service_->WaitUntilIdle(std::chrono::minutes(1)));
  EXPECT_EQ(StatusOfAsking(), 200);
}

TEST_F(PartedPassesTest, TakeTurns) {
  const auto large = Ask(8, may_go_);
  large->begun.get_future().wait();
  std::int64_t parts_of_large = 0;
  std::promise<void> done;
  service_->SubmitPasses({.parts = 1,
                          .run_part = [](const Decoder&, Arena&) {},
                          .on_end =
                              [&](const std::exception_ptr&) {
                                parts_of_large = large->parts;
                                done.set_value();
                              }});
  go_.set_value();
  done.get_future().wait();
  EXPECT_EQ(parts_of_large, 2);  // its turn was before
  EXPECT_EQ(large->ended.get_future().get(), 200);
}

TEST_F(PartedPassesTest, TheEndOfTheServiceEndsThemAtOnce) {
  const auto runs = Ask(8, may_go_);
  runs->begun.get_future().wait();
  const auto waits = Ask(200);
  std::thread stopper([&] { service_->Stop(); });
  // Refused: from here on there is no further part.
  while (true) {
    try {
      service_->CheckRoomForPasses();
    } catch (const ApiError& error) {
      if (error.status == 503) break;
    }
    std::this_thread::yield();
  }
  go_.set_value();
  stopper.join();
  EXPECT_EQ(runs->ended.get_future().get(), 503);
  EXPECT_EQ(waits->ended.get_future().get(), 503);
  EXPECT_EQ(runs->parts, 1);
  EXPECT_EQ(waits->parts, 0);
}

TEST_F(PartedPassesTest, AFaultEndsThemAlone) {
  std::promise<int> status;
  service_->SubmitPasses(
      {.parts = 3,
       .run_part = [](const Decoder&, Arena&) { throw std::runtime_error("no"); },
       .on_end = [&](const std::exception_ptr& error) { status.set_value(StatusOfError(error)); }});
  EXPECT_EQ(status.get_future().get(), 0);
  EXPECT_EQ(StatusOfAsking(), 200);
  EXPECT_TRUE(service_->WaitUntilIdle(std::chrono::minutes(1)));
}

// Has no memory for passes while it is full.
class FullBackend final : public BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  void Reserve(const BackendLimits& limits) override {
    if (is_full) throw Error(ErrorCode::kOutOfMemory, "no memory for passes");
    BackendDecorator::Reserve(limits);
  }
  std::atomic<bool> is_full = false;
};

TEST_F(PartedPassesTest, MemoryThatAFaultTookIsMadeAnew) {
  service_.reset();
  std::unique_ptr<Backend> inner = std::move(models_->base().backend);
  auto full = std::make_unique<FullBackend>(*inner);
  std::atomic<bool>& is_full = full->is_full;
  models_->base().backend = std::move(full);
  Start({.sequences = 3, .queue = 8, .positions = 64, .rows = 64});
  const Told before = Write(Request("Once upon", 8));
  is_full = true;
  std::promise<bool> has_failed;
  service_->SubmitPasses(
      {.parts = 1,
       .run_part =
           [](const Decoder&, Arena& memory) {
             memory = Arena();
             throw Error(ErrorCode::kOutOfMemory, "no memory for this part");
           },
       .on_end = [&](const std::exception_ptr& error) { has_failed.set_value(error != nullptr); }});
  EXPECT_TRUE(has_failed.get_future().get());
  EXPECT_THAT(Write(Request("Once upon", 8)).end.error, HasSubstr("no memory for passes"));
  EXPECT_EQ(StatusOfAsking(), 0);
  is_full = false;
  EXPECT_EQ(Write(Request("Once upon", 8)).logprobs(), before.logprobs());
  EXPECT_EQ(StatusOfAsking(), 200);
  service_.reset();
  models_->base().backend = std::move(inner);
}

TEST_F(PartedPassesTest, AnswersAreWrittenBetweenParts) {
  GenerationRequest request = Request("a", 40);
  request.logit_bias = {{*(request.prompt.end() - 1), 100.0F}};  // each step has text to show
  std::int64_t pieces = 0;
  std::vector<std::int64_t> pieces_before;
  std::promise<void> answered;
  std::promise<void> asked;
  const auto run_part = [&](const Decoder&, Arena&) {
    pieces_before.push_back(pieces);
    for (const Stopwatch watch; watch.seconds() == 0;) continue;  // steps are owed for its time
  };
  service_->Submit(request,
                   {.on_piece =
                        [&](const GenerationPiece&) {
                          if (++pieces > 1) return;
                          service_->SubmitPasses(
                              {.parts = 10,
                               .run_part = run_part,
                               .on_end = [&](const std::exception_ptr&) { asked.set_value(); }});
                        },
                    .on_end = [&](const GenerationEnd&) { answered.set_value(); }});
  asked.get_future().wait();
  answered.get_future().wait();
  ASSERT_EQ(pieces_before.size(), 10u);
  for (std::size_t i = 1; i < pieces_before.size(); ++i) {
    // Once the answer is whole, nothing is owed to it.
    if (pieces_before[i] == pieces) break;
    EXPECT_GT(pieces_before[i], pieces_before[i - 1]) << i;
  }
  EXPECT_LT(pieces_before.front(), pieces);
}

}  // namespace
}  // namespace qlora
