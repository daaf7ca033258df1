#include "decision/class_labels.h"

#include <fstream>

#include "io/test_util.h"
#include "parquet/thrift_struct.h"

namespace qlora {
namespace {

using testing::ElementsAre;

// The card of a data set with two columns of labels.
constexpr const char* kCard = R"(---
license: mit
dataset_info:
  features:
  - name: text
    dtype: string
  - name: label
    dtype:
      class_label:
        names:
          '0': World
          '1': 'It''s: sports'
          '2': "Sci/Tech"
  - name: other
    dtype:
      class_label:
        names:
          '0': no
  splits:
  - name: label
---
# A card
- name: label
)";

TEST(ClassLabelsTest, AreFoundInCards) {
  EXPECT_THAT(ClassLabelsOfCard(kCard, "label"), ElementsAre("World", "It's: sports", "Sci/Tech"));
  EXPECT_THAT(ClassLabelsOfCard(kCard, "other"), ElementsAre("no"));
  EXPECT_THAT(ClassLabelsOfCard(kCard, "text"), ElementsAre());
  EXPECT_THAT(ClassLabelsOfCard("- name: label\n  names:\n    '0': x\n", "label"), ElementsAre());
}

TEST(ClassLabelsTest, AreFoundBesideTheData) {
  const TemporaryFolder folder;
  const std::filesystem::path data = folder / "data";
  std::filesystem::create_directories(data);
  std::ofstream(data / "train.jsonl") << "{}\n";
  EXPECT_THAT(FindClassLabels(data / "train.jsonl", "label"), ElementsAre());
  std::ofstream(folder / "README.md") << kCard;
  EXPECT_THAT(FindClassLabels(data / "train.jsonl", "label"), testing::SizeIs(3));
  std::ofstream(folder / "dataset_info.json")
      << R"({"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}})";
  EXPECT_THAT(FindClassLabels(data / "train.jsonl", "label"), ElementsAre("a", "b"));
  std::ofstream(data / "train.parquet") << parquet::FileWithMetadata(
      "huggingface", R"({"info": {"features": {"label": {"names": ["x", "y"]}}}})");
  EXPECT_THAT(FindClassLabels(data / "train.parquet", "label"), ElementsAre("x", "y"));
  EXPECT_THAT(FindClassLabels(data / "train.parquet", "none"), ElementsAre());
}

}  // namespace
}  // namespace qlora
