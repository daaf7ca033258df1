// Adapters of models that also see.
#include <algorithm>

#include "io/safetensors.h"
#include "model/wrapped_model.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using WrappedTrainTest = TinyRunTest;

// The text part trains as the model of text alone does, and the adapter is named as PEFT names it
// on the class that also sees.
TEST_F(WrappedTrainTest, TextPartsTrainAndNameTheirAdapters) {
  for (const WrapperCase& of : kWrapperCases) {
    for (const Spelling& spelling : kSpellings) {
      SCOPED_TRACE(std::string(of.text) + " " + spelling.decoder);
      const fs::path wrapped = WriteWrapped(of, spelling, root_ / "model");
      const auto train = [&](const char* name, const fs::path& model) {
        TrainOptions options = Options(name);
        options.model_name_or_path = model;
        options.compute_dtype = "float32";
        options.max_steps = 2;
        Context context(1);
        TrainObserver observer;
        fs::remove_all(options.output_dir);
        PlanAndTrain(context, options, observer);
        return OpenSafetensors(fs::path(options.output_dir) / "adapter_model.safetensors");
      };
      const auto plain = train("plain", kGolden / of.golden);
      const auto found = train("wrapped", wrapped);
      ASSERT_EQ(found->tensors().size(), plain->tensors().size());
      for (const TensorInfo& tensor : plain->tensors()) {
        const std::string name = Renamed(tensor.name, "base_model.model.model.",
                                         "base_model.model.model.language_model.");
        const TensorInfo* same = found->Find(name);
        ASSERT_NE(same, nullptr) << name;
        const auto bytes = found->Bytes(*same);
        const auto expected = plain->Bytes(tensor);
        EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end()))
            << name;
      }
    }
  }
}

}  // namespace
}  // namespace qlora
