#include "serve/jobs/training_config.h"

#include <gtest/gtest.h>

#include <string>

#include "io/json.h"
#include "qlora/options.h"

namespace qlora {
namespace {

Job SomeJob() {
  Job job;
  job.request.n_epochs = 1;
  job.request.batch_size = 2;
  return job;
}

// A form or a template that the training did not have would be another model.
TEST(TrainingConfigTest, HasEveryFieldOfTheFormAndOfTheTemplate) {
  ModelOptions base;
  base.load_in_4bit = "true";
  base.quantization = {.bnb_4bit_quant_type = "fp4",
                       .bnb_4bit_use_double_quant = false,
                       .bnb_4bit_blocksize = 128,
                       .scale_search = true};
  base.chat = {.chat_template = "chatml",
               .chat_template_kwargs = R"({"a": 1})",
               .chat_template_date = "2026-11-30"};
  const OrderedJson config = TrainingConfig(SomeJob(), base, {});
  OptionTable fields;
  base.quantization.Declare(fields);
  base.chat.Declare(fields);
  for (const Option& field : fields.options()) {
    ASSERT_TRUE(config.contains(field.name)) << field.name;
    EXPECT_EQ(TextOrJson(config[field.name]), field.ToString());
  }
}

TEST(TrainingConfigTest, LeavesOutWhatIsNotSaid) {
  ModelOptions base;
  base.load_in_4bit = "false";
  const OrderedJson config = TrainingConfig(SomeJob(), base, {});
  EXPECT_EQ(config["load_in_4bit"], "false");
  for (const char* name : {"scale_search", "chat_template", "chat_template_kwargs"}) {
    EXPECT_FALSE(config.contains(name)) << name;
  }
}

}  // namespace
}  // namespace qlora
