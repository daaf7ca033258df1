// Data sets: files of texts, threads, splits.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "data/dataset_fixture.h"
#include "data/training_data.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

TEST_F(DatasetTest, TextGetsBosAndEosAndIsAllTrained) {
  const Dataset data = Open("d.jsonl", "{\"text\": \"xy\"}\n\n{\"text\":\"cab</s>\"}\n");
  ASSERT_EQ(data.size(), 2);
  EXPECT_EQ(data.Get(0).ids, Join({{kBos}, Bytes("xy"), {kEos}}));
  EXPECT_EQ(data.Get(0).labels, data.Get(0).ids);
  EXPECT_EQ(data.Get(1).ids, Join({{kBos}, Bytes("c"), {kAb, kEos}})) << "EOS is there already";
  EXPECT_TRUE(data.Where(1).ends_with("d.jsonl:3"));
  EXPECT_EQ(data.length(1), 4);
  EXPECT_EQ(data.report().tokens, 8);
  EXPECT_EQ(data.report().supervised, 6) << "BOS is predicted by nothing";
  EXPECT_EQ(data.report().files[0].format, "text");
}

TEST_F(DatasetTest, ATextThatBeginsWithBosGetsNoOther) {
  const Dataset texts =
      Open("d.jsonl", "{\"text\": \"<s>xy</s>\"}\n{\"text\": \"xy\"}\n{\"text\": \"<s>z\"}\n");
  EXPECT_EQ(texts.Get(0).ids, texts.Get(1).ids);
  EXPECT_EQ(texts.report().own_bos, 2);
  EXPECT_THAT(RenderReport(texts.report()), HasSubstr("texts that begin with BOS"));

  const Dataset pairs = Open("d.jsonl",
                             "{\"prompt\": \"<s>Q\", \"completion\": \"A\"}\n"
                             "{\"prompt\": \"Q\", \"completion\": \"A\"}\n");
  EXPECT_EQ(pairs.Get(0).ids, pairs.Get(1).ids);
  EXPECT_EQ(pairs.Get(0).labels, pairs.Get(1).labels);
  EXPECT_EQ(pairs.report().own_bos, 1);

  const Dataset raw = Open("d.txt", "<s>xyz");
  EXPECT_EQ(raw.Get(0).ids, Join({{kBos}, Bytes("xyz")}));
  EXPECT_EQ(raw.report().own_bos, 1);
}

TEST_F(DatasetTest, ColumnsWithoutANameAreNotRead) {
  const auto fields = [this](const std::string& name, const std::string& text) {
    return Open(name, text).report().files[0].fields;
  };
  EXPECT_EQ(fields("d.jsonl", R"({"prompt": "Q", "completion": "A"})"), "");
  EXPECT_EQ(fields("d.csv", ",instruction,output\n0,Add.,2\n"),
            "not read: the column without a name");
  EXPECT_EQ(fields("d.csv", ",question,answer,\n0,Q,A,\n"),
            "prompt: question, completion: answer; not read: the 2 columns without a name");
}

TEST_F(DatasetTest, ReadingIsReported) {
  DataOptions options = folder_.With("a.jsonl", "{\"text\": \"x\"}\n");
  options.sources.push_back(folder_.Write("b.txt", "some text"));
  std::vector<std::int64_t> done;
  Dataset::Open(options, tokenizer_, nullptr, nullptr, [&](std::int64_t now, std::int64_t total) {
    EXPECT_EQ(total, 23);
    done.push_back(now);
  });
  ASSERT_GE(done.size(), 2U);
  EXPECT_EQ(done.front(), 0);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 23);
  struct Stop {};
  EXPECT_THROW(Dataset::Open(options, tokenizer_, nullptr, nullptr,
                             [](std::int64_t, std::int64_t) { throw Stop(); }),
               Stop);
}

TEST_F(DatasetTest, EosIsLeftOutOnlyWhenAsked) {
  DataOptions options = folder_.With("d.jsonl", R"({"text": "xy"})");
  options.append_eos = false;
  const Dataset data = Open(options);
  EXPECT_EQ(data.Get(0).ids, Join({{kBos}, Bytes("xy")}));
  EXPECT_EQ(data.report().without_eos, 1);
}

TEST_F(DatasetTest, RawTextIsCutIntoWindows) {
  DataOptions options = folder_.With("d.txt", "\xEF\xBB\xBFxab12\r\n34567");  // 11 tokens
  options.max_length = 5;
  const Dataset data = Open(options);
  ASSERT_EQ(data.size(), 3);
  EXPECT_EQ(data.Get(0).ids, Join({{kBos}, Bytes("x"), {kAb}, Bytes("12")}));
  EXPECT_EQ(data.Get(1).ids, Join({{kBos}, Bytes("\r\n34")}));
  EXPECT_EQ(data.Get(2).ids, Join({{kBos}, Bytes("567")}));
  EXPECT_EQ(data.Get(2).labels, data.Get(2).ids);
  EXPECT_TRUE(data.Where(2).ends_with("d.txt: window 3"));
  EXPECT_EQ(data.report().files[0].records, 3);

  const Tokenizer plain = MakeTestTokenizer({.bos = false, .chat = false});
  const Dataset without = Dataset::Open(options, plain, nullptr);
  ASSERT_EQ(without.size(), 2);
  EXPECT_EQ(without.Get(1).ids, Bytes("\n3456"));
  EXPECT_EQ(without.report().dropped_tail, 1) << "a window of one token predicts nothing";

  Refuse(folder_.With("e.txt", ""), "empty");
  Refuse(folder_.With("e.txt", "ok\nbad \xFF"), "e.txt:2:5: the text is not UTF-8");
  Refuse(folder_.With("e.txt", std::string("ok\nbad \0", 8)), "e.txt:2:5: found a zero byte");
  Refuse(folder_.With("e.csv", "text\nok\nbad \xFF\n"), "e.csv:3:5: the text is not UTF-8");
  Refuse(folder_.With("e.jsonl", "{\"text\": \"ok\"}\n{\"text\": \"gr\xFCn\"}\n"),
         "e.jsonl:2:13: the text is not UTF-8 (byte 27, 0xFC); it reads like WINDOWS-1252");
  DataOptions named = folder_.With("e.md", "xyz");
  named.sources[0].format = RecordFormat::kRaw;
  EXPECT_EQ(Open(named).Get(0).ids, Join({{kBos}, Bytes("xyz")}));
}

// The file has no blocks on the disk; a program that read it as text would need all memory.
TEST_F(DatasetTest, AHugeFileOfZerosIsRefusedAtOnce) {
  const DataOptions options = folder_.With("zeros.txt", "");
  std::filesystem::resize_file(options.sources[0].path, std::uintmax_t{1} << 40);
  Refuse(options, "zeros.txt:1:1: found a zero byte, expected text");
}

TEST_F(DatasetTest, ReadsSeveralFilesOfDifferentForms) {
  DataOptions options = folder_.With("a.json", R"([{"text": "x"}, {"text": "y"}])");
  options.sources.push_back(folder_.Write("b.csv", "prompt,completion\np,c\n"));
  options.sources.push_back(folder_.Write("c.txt", "z"));
  options.sources[1].weight = 2.5;
  const Dataset data = Open(options);
  EXPECT_EQ(data.size(), 4);
  EXPECT_EQ(data.Get(2).labels, Join({Masked(2), Bytes("c"), {kEos}}));
  EXPECT_EQ(data.Get(3).ids, Join({{kBos}, Bytes("z")}));
  const auto parts = data.parts();
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[1].samples, 1);
  EXPECT_EQ(parts[1].weight, 2.5);
  EXPECT_EQ(data.report().files[1].container, "CSV");
}

TEST_F(DatasetTest, TokenizerWithoutEosIsRefused) {
  const TemporaryFolder folder;
  std::ofstream(folder / "tokenizer.json")
      << R"({"model": {"type": "BPE", "vocab": {"x": 0, "y": 1}, "merges": []}})";
  const Tokenizer bare = Tokenizer::Load(folder.path());
  const DataOptions options = folder_.With("d.jsonl", R"({"text": "xy"})");
  ExpectRefused([&] { Dataset::Open(options, bare, nullptr); }, "names no EOS");
}

TEST_F(DatasetTest, ThreadsChangeNothingAndTheFirstBadLineIsNamed) {
  std::string lines;
  for (int i = 0; i < 9000; ++i) {
    lines += "{\"text\": \"" + std::string(i % 50, 'x') + "y\"}\n";
  }
  Context context(4);
  const DataOptions options = folder_.With("d.jsonl", lines);
  const Dataset one = Open(options);
  const Dataset four = Dataset::Open(options, tokenizer_, nullptr, &context);
  EXPECT_EQ(one.fingerprint(), four.fingerprint());
  EXPECT_EQ(ReportToJson(one.report()), ReportToJson(four.report()));
  const DataOptions bad = folder_.With("d.jsonl", lines + "{\n" + lines + "{\n");
  ExpectRefused([&] { Dataset::Open(bad, tokenizer_, nullptr, &context); }, "d.jsonl:9001:");
}

TEST_F(DatasetTest, SplitIsSeededExactAndDisjoint) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"text\": \"" + std::to_string(i % 90) + "\"}\n";
  const Dataset data = Open("d.jsonl", lines);
  EXPECT_EQ(data.report().duplicates, 10);
  for (const double wanted : {7.0, 0.07}) {
    const TrainingData split = SplitDataset(data, wanted, 1);
    EXPECT_EQ(split.held_out->size(), 7);
    EXPECT_EQ(split.train.size(), 93);
    EXPECT_EQ(split.held_out->report().samples, 7);
    EXPECT_EQ(split.train.report().tokens + split.held_out->report().tokens, data.report().tokens);
    EXPECT_EQ(split.train.parts()[0].samples, 93);
    std::set<std::string> places;
    std::vector<int> order;
    for (const Dataset* part : {&split.train, &*split.held_out}) {
      for (std::int64_t i = 0; i < part->size(); ++i) places.insert(part->Where(i));
    }
    EXPECT_EQ(places.size(), 100U);
    EXPECT_EQ(split.train.fingerprint(), SplitDataset(data, wanted, 1).train.fingerprint());
    EXPECT_NE(split.train.fingerprint(), SplitDataset(data, wanted, 2).train.fingerprint());
  }
  EXPECT_EQ(data.CountShared(Open("e.jsonl", "{\"text\": \"5\"}\n{\"text\": \"95\"}\n")), 2);
  EXPECT_EQ(SplitDataset(data, 0.001, 1).held_out->size(), 1);
  for (const double wanted : {0.0, -1.0, 100.0, 2.5, 0.999, std::nan("")}) {
    ExpectRefused([&] { SplitDataset(data, wanted, 1); }, "val_set_size");
  }
}

TEST_F(DatasetTest, ARecordOfSeveralSamplesIsNotDivided) {
  std::string lines;
  for (const char* word : {"a", "b", "c", "d", "e", "f"}) {
    lines += fmt::format(
        R"({{"messages": [{{"role": "user", "content": "{0}"}}, {{"role": "assistant", "content": "{0}"}}, )"
        R"({{"role": "user", "content": "x"}}, {{"role": "assistant", "content": "y"}}]}})"
        "\n",
        word);
  }
  const ChatTemplate chat(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}",
      tokenizer_);
  DataOptions options = folder_.With("d.jsonl", lines);
  options.train_turns = TrainTurns::kEach;
  const Dataset data = Dataset::Open(options, tokenizer_, &chat);
  ASSERT_EQ(data.size(), 12);
  for (const std::uint64_t seed : {1, 2, 3}) {
    const TrainingData split = SplitDataset(data, 3, seed);
    ASSERT_EQ(split.held_out->size(), 6);
    ASSERT_EQ(split.train.size(), 6);
    std::set<std::string> places;
    for (std::int64_t i = 0; i < 6; ++i) places.insert(split.held_out->Where(i));
    for (std::int64_t i = 0; i < 6; ++i) EXPECT_FALSE(places.contains(split.train.Where(i)));
  }
}

TEST_F(DatasetTest, ATextIsSharedWhateverIsTrainedOfIt) {
  const ChatTemplate chat(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}assistant:{% endif %}",
      tokenizer_);
  const auto open = [&](const std::string& weight, const std::string& last) {
    return Dataset::Open(
        folder_.With("d.jsonl", R"({"messages": [{"role": "user", "content": "u"}, )"
                                R"({"role": "assistant", "content": "x")" +
                                    weight + R"(}, {"role": "assistant", "content": ")" + last +
                                    "\"}]}"),
        tokenizer_, &chat);
  };
  const Dataset data = open("", "y");
  EXPECT_EQ(data.CountShared(open(R"(, "weight": 0)", "y")), 1);
  EXPECT_EQ(data.CountShared(open("", "z")), 0);
}

}  // namespace
}  // namespace qlora
