// A GGUF file as the model of every verb.
#include <gmock/gmock.h>

#include "cli/tiny_model.h"

namespace qlora {
namespace {

using testing::HasSubstr;
using testing::Not;

class GgufBaseVerbsTest : public TinyModelTest {
 protected:
  void SetUp() override {
    TinyModelTest::SetUp();
    ASSERT_EQ(Run({"export", "model", "base.gguf", "--outtype", "q8_0"}).code, 0);
    const Outcome run = Run(TrainWords({"--model", "base.gguf"}));
    ASSERT_EQ(run.code, 0) << run.err;
  }
  nlohmann::json JsonOf(const std::string& name) const {
    return nlohmann::json::parse(ReadAll(scratch_ / name));
  }
};

TEST_F(GgufBaseVerbsTest, TheRecordHasTheFileAndItsForm) {
  const nlohmann::json record = JsonOf("out/qlora_base.json");
  EXPECT_EQ(record.at("model_name_or_path"), "base.gguf");
  EXPECT_EQ(record.at("block_formats"), nlohmann::json({"Q8_0"}));
  EXPECT_EQ(record.at("load_in_4bit"), false);
  EXPECT_EQ(record.at("model_fingerprint").get<std::string>().size(), 16u);
  const auto notes = [&](const std::string& model) {
    const Outcome outcome =
        Run({"generate", model, "Once", "--adapter", "out", "--max_new_tokens=1"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(notes("base.gguf"), Not(HasSubstr("note:")));
  fs::copy_file(scratch_ / "base.gguf", scratch_ / "copy.gguf");
  EXPECT_THAT(notes("copy.gguf"), Not(HasSubstr("note:")));
  ASSERT_EQ(Run({"export", "model", "other.gguf", "--outtype", "f16"}).code, 0);
  EXPECT_THAT(notes("other.gguf"), HasSubstr("note: the weights of other.gguf are not those"));
  // The checkpoint that the file was made from.
  EXPECT_THAT(notes("model"), HasSubstr("unless the one was quantized from the other"));
}

TEST_F(GgufBaseVerbsTest, VerbsTakeTheFileAndItsAdapter) {
  EXPECT_EQ(Run({"chat", "base.gguf", "--adapter", "out", "--max_new_tokens=2"}, "Hello\n").code,
            0);
  EXPECT_EQ(Run({"eval", "base.gguf", "data.jsonl", "--adapter", "out"}).code, 0);
  EXPECT_EQ(Run({"plan", "base.yaml", "--model", "base.gguf", "--output_dir", "new"}).code, 0);
  EXPECT_EQ(Run({"plan", "base.gguf", "--max_length", "64"}).code, 0);
  EXPECT_EQ(Run({"tokenize", "base.gguf", "Once"}).code, 0);
  const Outcome rest = Run({"resume", "out", "--max_steps", "4"});
  EXPECT_EQ(rest.code, 0) << rest.err;
  const Outcome further =
      Run(TrainWords({"--model", "base.gguf", "--adapter", "out", "--output_dir", "next"}));
  EXPECT_EQ(further.code, 0) << further.err;
  EXPECT_THAT(Run({"eval", "out", "data.jsonl"}).err,
              HasSubstr("qlora eval base.gguf data.jsonl --adapter out"));
}

TEST_F(GgufBaseVerbsTest, AnAdapterIsExportedForTheFile) {
  const Outcome adapter = Run({"export", "base.gguf", "adapter.gguf", "--adapter", "out"});
  EXPECT_EQ(adapter.code, 0) << adapter.err;
  EXPECT_THAT(adapter.err, HasSubstr("the adapter alone, for llama.cpp beside base.gguf"));
  EXPECT_THAT(adapter.err, HasSubstr("verified: "));
  EXPECT_EQ(JsonOf("adapter.gguf.export_report.json").at("format"), "gguf-adapter");
  // The file says which weights the adapter is for.
  const Outcome same = Run({"eval", "base.gguf", "data.jsonl", "--adapter", "adapter.gguf"});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.err, Not(HasSubstr("are not those that")));
  EXPECT_EQ(Run({"export", "model", "other.gguf", "--outtype", "f32", "--no-verify"}).code, 0);
  EXPECT_THAT(Run({"eval", "other.gguf", "data.jsonl", "--adapter", "adapter.gguf"}).err,
              HasSubstr("note: the weights of other.gguf are not those that adapter.gguf was "
                        "trained on"));
  const Outcome merged =
      Run({"export", "base.gguf", "merged.gguf", "--adapter", "out", "--format", "gguf"});
  EXPECT_EQ(merged.code, 0) << merged.err;
  EXPECT_THAT(merged.err, HasSubstr("merged into the file's dequantized weights"));
  const Outcome plain = Run({"export", "base.gguf", "plain.gguf", "--no-verify"});
  EXPECT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.err, Not(HasSubstr("verified")));
  const Outcome refused =
      Run(TrainWords({"--model", "base.gguf", "--output_dir", "x", "--save_quantized", "nf4"}));
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("qlora quantize base.gguf nf4"));
  // The adapter is one of the original checkpoint, too.
  const Outcome hf = Run({"export", "model", "hf", "--adapter", "out", "--format", "hf"});
  EXPECT_EQ(hf.code, 0) << hf.err;
  EXPECT_TRUE(fs::exists(scratch_ / "hf/export_report.json"));
}

TEST_F(GgufBaseVerbsTest, ACheckpointIsMadeOfTheFile) {
  const Outcome hf = Run({"export", "base.gguf", "hf", "--adapter", "out", "--format", "hf"});
  EXPECT_EQ(hf.code, 0) << hf.err;
  EXPECT_THAT(hf.err, HasSubstr("merged into the file's dequantized weights"));
  EXPECT_THAT(hf.err, HasSubstr("verified: "));
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json",
                           "generation_config.json", "model.safetensors"}) {
    EXPECT_TRUE(fs::exists(scratch_ / "hf" / name)) << name;
  }
  EXPECT_EQ(Run({"eval", "hf", "data.jsonl"}).code, 0);
  const Outcome nf4 = Run({"quantize", "base.gguf", "nf4"});
  EXPECT_EQ(nf4.code, 0) << nf4.err;
  EXPECT_THAT(nf4.err, HasSubstr("holds the linears in Q8_0: they are rounded a second time"));
  EXPECT_THAT(nf4.out, HasSubstr("down_proj"));
  EXPECT_EQ(Run({"eval", "nf4", "data.jsonl"}).code, 0);
  // Neither replaces what is there.
  EXPECT_EQ(Run({"quantize", "base.gguf", "hf"}).code, 2);
  EXPECT_EQ(Run({"export", "base.gguf", "nf4", "--format", "hf"}).code, 2);
}

// In 4 bits again, most of what was trained would be gone.
TEST_F(GgufBaseVerbsTest, AMergedFileIsUsedAsItIs) {
  ASSERT_EQ(Run({"export", "model", "merged.gguf", "--adapter", "out"}).code, 0);
  const Outcome as_it_is = Run({"eval", "merged.gguf", "data.jsonl"});
  EXPECT_EQ(as_it_is.code, 0);
  EXPECT_THAT(as_it_is.err,
              HasSubstr("the weights have an adapter merged in and are used as they are"));
  const auto loss = [](const Outcome& outcome) {
    return outcome.out.substr(0, outcome.out.find('\n'));
  };
  EXPECT_EQ(loss(as_it_is),
            loss(Run({"eval", "merged.gguf", "data.jsonl", "--load_in_4bit", "false"})));
}

TEST_F(GgufBaseVerbsTest, OptionsOf4BitsHaveNoEffectOnBlocks) {
  const Outcome off =
      Run(TrainWords({"--model", "base.gguf", "--output_dir", "a", "--load_in_4bit", "false"}));
  EXPECT_EQ(off.code, 0);
  EXPECT_THAT(off.err, HasSubstr("load_in_4bit has no effect"));
  const Outcome fp4 = Run(
      TrainWords({"--model", "base.gguf", "--output_dir", "b", "--bnb_4bit_quant_type", "fp4"}));
  EXPECT_EQ(fp4.code, 2);
  EXPECT_THAT(fp4.err, HasSubstr("bnb_4bit_quant_type fp4 would have no effect"));
  EXPECT_THAT(Run({"eval", "base.gguf", "data.jsonl", "--load_in_4bit", "true"}).err,
              HasSubstr("load_in_4bit has no effect"));
  // A flag without a value, as for other options of this kind.
  EXPECT_EQ(Run({"eval", "model", "data.jsonl", "--load_in_4bit"}).code, 0);
  EXPECT_EQ(Run({"eval", "model", "data.jsonl", "--no-load_in_4bit"}).code, 0);
}

}  // namespace
}  // namespace qlora
