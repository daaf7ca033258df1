// Data sets of the test tokenizer from texts of files.
#ifndef QLORA_TESTS_DATA_DATASET_FIXTURE_H_
#define QLORA_TESTS_DATA_DATASET_FIXTURE_H_

#include <gtest/gtest.h>

#include <string>

#include "data/data_test_util.h"
#include "data/dataset.h"

namespace qlora {

class DatasetTest : public testing::Test {
 protected:
  Dataset Open(const DataOptions& options) { return Dataset::Open(options, tokenizer_, nullptr); }
  Dataset Open(const std::string& name, const std::string& text) {
    return Open(folder_.With(name, text));
  }
  void Refuse(const DataOptions& options, const std::string& part) {
    ExpectRefused([&] { Open(options); }, part);
  }
  void Refuse(const std::string& text, const std::string& part) {
    Refuse(folder_.With("d.jsonl", text), part);
  }

  const Tokenizer tokenizer_ = MakeTestTokenizer();
  DataFolder folder_;
};

}  // namespace qlora

#endif  // QLORA_TESTS_DATA_DATASET_FIXTURE_H_
