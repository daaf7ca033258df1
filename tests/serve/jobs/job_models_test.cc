// Which of the models of jobs are served.
#include "serve/jobs/fine_tuning_fixture.h"

namespace qlora {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

using JobModelsTest = FineTuningTest;

TEST_F(JobModelsTest, ModelsGoBeforeCheckpointsAndTheNewestFirst) {
  room_ = 3;
  Start();
  const std::string first = Create();
  WaitFor(first, "succeeded");
  const std::string second = Create();
  WaitFor(second, "succeeded");
  // The checkpoints that made room are the oldest ones.
  EXPECT_THAT(Served(), UnorderedElementsAre(ModelOf(first), ModelOf(second), ModelOf(first, 4)));
  room_ = 2;
  const std::string third = Create();
  WaitFor(third, "succeeded");
  Start();
  EXPECT_THAT(Served(), UnorderedElementsAre(ModelOf(third), ModelOf(second)));
  // What was left out takes the room of what is deleted.
  jobs_->RemoveModel(ModelOf(second));
  EXPECT_THAT(Served(), UnorderedElementsAre(ModelOf(third), ModelOf(first)));
}

TEST_F(JobModelsTest, CheckpointsOfJobsThatEndOtherwiseAreServed) {
  StopBefore(3);
  const std::string cancelled = Create();
  WaitForStep(cancelled, 2);
  jobs_->Cancel(cancelled);
  WaitFor(cancelled, "cancelled");
  EXPECT_TRUE(models_->Has(ModelOf(cancelled, 2)));
  const std::string paused = Create();
  WaitForStep(paused, 2);
  jobs_->Pause(paused);
  WaitFor(paused, "paused");
  EXPECT_FALSE(models_->Has(ModelOf(paused, 2)));
  jobs_->Cancel(paused);
  EXPECT_TRUE(models_->Has(ModelOf(paused, 2)));
  gate_ = 1000;
  training_.exit_code = 137;
  training_.output = "";
  const std::string killed = Create();
  const OrderedJson error = WaitFor(killed, "failed")["error"];
  EXPECT_EQ(error["code"], "insufficient_memory");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("SIGKILL"));
  EXPECT_TRUE(models_->Has(ModelOf(killed, 4)));
}

TEST_F(JobModelsTest, AModelThatIsDeletedWhileItIsLoadedIsGone) {
  models_->on_load = [&](const std::string& name) {
    if (name.ends_with(":ckpt-step-2")) jobs_->RemoveModel(name);
  };
  const std::string id = Create();
  WaitFor(id, "succeeded");
  EXPECT_THAT(Served(), UnorderedElementsAre(ModelOf(id), ModelOf(id, 4)));
}

TEST_F(JobModelsTest, OnlyModelsOfJobsAreDeleted) {
  const std::string id = Create();
  const auto model = WaitFor(id, "succeeded")["fine_tuned_model"].get<std::string>();
  EXPECT_EQ(StatusOf([&] { jobs_->RemoveModel("base"); }), 400);
  EXPECT_EQ(StatusOf([&] { jobs_->RemoveModel("ft:base:local:s:other"); }), 404);
  jobs_->RemoveModel(model);
  EXPECT_FALSE(models_->Has(model));
  EXPECT_EQ(StatusOf([&] { jobs_->RemoveModel(model); }), 404);
  EXPECT_EQ(jobs_->Get(id)["status"], "succeeded");
  Start();
  EXPECT_FALSE(models_->Has(model));
}

}  // namespace
}  // namespace qlora
