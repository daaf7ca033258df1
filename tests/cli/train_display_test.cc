#include "training/train_display.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>

#include "training/run_check.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr TerminalStyle kPlain = {};
constexpr TerminalStyle kLive = {.live = true, .color = true, .columns = 60};

StepReport Report(std::int64_t step) {
  StepReport report;
  report.step = step;
  report.total_steps = 10;
  report.epoch = 0.1 * static_cast<double>(step);
  report.loss = 2.34567;
  report.grad_norm = 0.5;
  report.learning_rate = 2e-4;
  report.tokens_per_second = 1234.5;
  report.limit_share = 0.71;
  report.memory_bytes = std::size_t{3} << 30;
  report.remaining_seconds = 65;
  return report;
}

std::int64_t Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TrainDisplay Display(std::ostream& out, const TerminalStyle& style, std::int64_t logging_steps) {
  return TrainDisplay(
      out, style, logging_steps, [] { return false; }, [] {});
}

TEST(TrainDisplayTest, PrintsOneLinePerLoggingStepWithoutATerminal) {
  std::ostringstream out;
  {
    TrainDisplay display = Display(out, kPlain, 4);
    display.OnLoad(1, 2);
    for (std::int64_t step = 1; step <= 10; ++step) display.OnStep(Report(step));
  }
  EXPECT_EQ(Lines(out.str()), 4) << out.str();  // the first, 4, 8, and the last
  EXPECT_THAT(out.str(), HasSubstr("step=8/10 epoch=0.800 loss=2.3457 grad_norm=0.5000 "
                                   "learning_rate=2.000e-04 tokens_per_second=1234 "
                                   "limit_share=0.710 memory=3072MiB eta=65s\n"));
  EXPECT_THAT(out.str(), Not(HasSubstr("\033")));
  EXPECT_THAT(out.str(), Not(HasSubstr("\r")));
}

TEST(TrainDisplayTest, RedrawsOneLineOnATerminalBelowTheLoggedSteps) {
  std::ostringstream out;
  {
    TrainDisplay display = Display(out, kLive, 4);
    for (std::int64_t step = 1; step <= 10; ++step) display.OnStep(Report(step));
    EXPECT_EQ(Lines(out.str()), 4) << out.str();  // the first, 4, 8, and the last
    EXPECT_THAT(out.str(),
                HasSubstr("step 8/10  loss 2.3457  lr 2.00e-04  1234 tok/s  limit 71 %\n"));
    EXPECT_THAT(out.str(), HasSubstr("10/10 [=================] loss 2.3457"));
    display.OnCheckpoint("out/checkpoint-10");
    EXPECT_EQ(display.last_checkpoint(), "out/checkpoint-10");
    display.OnEvalProgress(3, 12);
    EXPECT_THAT(out.str(), HasSubstr("evaluating [======> "));
    display.OnEval(10, {.loss = 1.5,
                        .metrics = {{"perplexity", 4.4817}, {"token_accuracy", 0}},
                        .tokens = 100,
                        .best = true});
    display.OnStep(Report(10));
  }
  EXPECT_THAT(out.str(), HasSubstr("checkpoint out/checkpoint-10\n"));
  EXPECT_THAT(
      out.str(),
      HasSubstr("eval step 10  loss 1.5000  perplexity 4.482  token_accuracy\n  0.0000 best\n"));
  EXPECT_THAT(out.str(), ::testing::EndsWith("\r\033[K"));
  // No text is wider than the terminal.
  std::string shown = out.str();
  std::replace(shown.begin(), shown.end(), '\n', '\r');
  std::istringstream texts(shown);
  for (std::string text; std::getline(texts, text, '\r');) {
    EXPECT_LE(text.size(), 60u + std::string_view("\033[K").size()) << text;
  }
}

TEST(TrainDisplayTest, ANarrowTerminalShowsWhatMattersMost) {
  StepReport report = Report(1234);
  report.total_steps = 5678;
  report.remaining_seconds = 3723;
  EXPECT_EQ(FormatLiveStep(report, 150),
            "1234/5678 [===>              ] loss 2.3457  lr 2.00e-04  grad 0.500  1234 tok/s  "
            "limit 71 %  3.00 GiB  ETA 1:02:03");
  EXPECT_EQ(FormatLiveStep(report, 79),
            "1234/5678 [===>             ] loss 2.3457  lr 2.00e-04  1234 tok/s  ETA 1:02:03");
  EXPECT_EQ(FormatLiveStep(report, 50), "1234/5678 [==>          ] loss 2.3457  ETA 1:02:03");
  for (std::int64_t columns = 50; columns < 120; ++columns) {
    EXPECT_LE(std::ssize(FormatLiveStep(report, columns)), columns);
  }
}

TEST(TrainDisplayTest, WarnsOnceOfALossThatRises) {
  std::ostringstream out;
  TrainDisplay display = Display(out, kPlain, 1);
  StepReport report = Report(7);
  report.start_loss = 2;
  report.recent_loss = 4.5;
  display.OnStep(report);
  EXPECT_THAT(out.str(), Not(HasSubstr("warning")));
  report.risen = true;
  display.OnStep(report);
  const std::string warning =
      "warning: the learning rate makes the loss rise, from 2.0000 at the start to 4.5000 by step "
      "7; lower learning_rate\n";
  EXPECT_THAT(out.str(), HasSubstr(warning));
  out.str("");
  display.OnStep(report);
  EXPECT_THAT(out.str(), Not(HasSubstr("warning")));
}

TEST(TrainDisplayTest, WarnsOnceOfRanksThatWait) {
  const auto shown = [](double waiting, std::int64_t steps) {
    std::ostringstream out;
    TrainDisplay display = Display(out, kPlain, 100);
    StepReport report = Report(2);
    report.ranks = {{.computing_seconds = 1 - 2 * waiting, .waiting_seconds = 2 * waiting},
                    {.computing_seconds = 1, .waiting_seconds = 0}};
    for (std::int64_t step = 0; step < steps; ++step) display.OnStep(report);
    return out.str();
  };
  EXPECT_EQ(shown(0.4, 19), "");
  EXPECT_EQ(shown(0.4, 100),
            "warning: ranks wait in 40 % of the time of the first 20 steps, and rank 1 computes "
            "longest; what helps: packing, a larger global_batch_size, fewer ranks on one machine "
            "or on a slow network\n");
  EXPECT_EQ(shown(0.25, 100), "");
}

TEST(TrainDisplayTest, WarningsOfAPlanComeLast) {
  std::ostringstream out;
  TrainDisplay display = Display(out, {.live = true, .color = false, .columns = 60}, 1);
  TrainPlan plan;
  plan.warnings = {"warm-up takes 5 of 6 steps, so the learning rate never reaches its peak"};
  display.PrintPlan(plan);
  EXPECT_THAT(out.str(), HasSubstr("memory plan"));
  EXPECT_THAT(out.str(),
              ::testing::EndsWith("warning: warm-up takes 5 of 6 steps, so the learning rate\n"
                                  "  never reaches its peak\n"));
}

TEST(TrainDisplayTest, PrintsPlanEvaluationsAndTheEnd) {
  std::ostringstream out;
  TrainDisplay display = Display(out, kPlain, 1);
  MemoryPlan plan;
  plan.parts = {{"weights", std::size_t{1} << 30}, {"optimizer", 1000}};
  plan.train_peak = std::size_t{2} << 30;
  EXPECT_THAT(FormatMemory(plan), HasSubstr("  weights      1.00 GiB\n  optimizer      1000 B\n"));
  display.OnEval(5, {.loss = 1.5,
                     .metrics = {{"perplexity", 4.4817}, {"token_accuracy", 0}},
                     .tokens = 100,
                     .seconds = 2});
  EXPECT_THAT(
      out.str(),
      HasSubstr("eval step=5 eval_loss=1.5000 perplexity=4.482 token_accuracy=0.0000 tokens=100"));
  RunSummary summary;
  summary.steps = 10;
  summary.seconds = 4;
  summary.mean_loss = 1.25;
  display.PrintSummary(summary);
  EXPECT_THAT(out.str(), HasSubstr("train_steps_per_second=2.500 train_loss=1.2500"));
  EXPECT_THAT(out.str(), Not(HasSubstr("ranks=")));
  summary.ranks = {{.computing_seconds = 3, .waiting_seconds = 1}, {.computing_seconds = 4}};
  display.PrintSummary(summary);
  EXPECT_THAT(out.str(), HasSubstr("\nranks=2 computing=0.88 waiting=0.12 slowest_rank=1\n"));
}

TEST(TrainDisplayTest, TellsALossThatStandsStillFromOneThatFalls) {
  std::ostringstream out;
  const auto after = [&](int steps, const std::function<double(int)>& loss) {
    TrainDisplay display = Display(out, kPlain, 1000);
    for (int i = 0; i < steps; ++i) {
      StepReport report = Report(i + 1);
      report.loss = loss(i);
      display.OnStep(report);
    }
    return std::pair(display.DescribeFlatLoss(), display.StillFalls());
  };
  const auto flat = [](int i) { return 2 + 0.1 * (i % 2); };
  EXPECT_THAT(after(40, flat).first,
              HasSubstr("hardly fallen: 2.0500 on average in the first quarter of the steps, "
                        "2.0500 in the last"));
  EXPECT_FALSE(after(40, flat).second);
  EXPECT_EQ(after(19, flat).first, "");
  EXPECT_EQ(after(40, [](int i) { return 0.01 * (2 + i % 2); }).first, "");
  EXPECT_EQ(after(40, [](int i) { return 2 - 0.05 * i; }), std::pair(std::string(), true));
  EXPECT_EQ(after(40, [](int i) { return i < 10 ? 2 : 1; }), std::pair(std::string(), false));
  EXPECT_EQ(after(40, [](int) { return std::nan(""); }), std::pair(std::string(), false));
}

TEST(TrainDisplayTest, AsksWhetherToStop) {
  std::ostringstream out;
  bool stop = false;
  TrainDisplay display(
      out, kPlain, 1, [&] { return stop; },
      [&] {
        if (stop) throw 1;
      });
  EXPECT_FALSE(display.ShouldStop());
  display.OnLoad(0, 1);
  stop = true;
  EXPECT_TRUE(display.ShouldStop());
  EXPECT_THROW(display.OnLoad(1, 1), int);
}

}  // namespace
}  // namespace qlora
