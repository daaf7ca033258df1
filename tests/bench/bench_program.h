// The program qlora-bench as a user runs it, in a scratch folder.
#ifndef QLORA_TESTS_BENCH_BENCH_PROGRAM_H_
#define QLORA_TESTS_BENCH_BENCH_PROGRAM_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/test_util.h"

namespace qlora {

class BenchTest : public ScratchTest {
 protected:
  static fs::path Program() { return QloraBinary().replace_filename("qlora-bench"); }
  Outcome Run(const std::vector<std::string>& words) const {
    return RunProgram(Program(), scratch_, words);
  }
  // Runs a measurement that must succeed, and returns the object that it prints.
  nlohmann::json RunJson(std::vector<std::string> words) const {
    words.push_back("--json");
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
  // Runs a command that must be refused, and returns its message.
  std::string Refused(const std::vector<std::string>& words) const {
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.LastErrorLine(), "See: qlora-bench --help");
    return outcome.err;
  }
};

}  // namespace qlora

#endif  // QLORA_TESTS_BENCH_BENCH_PROGRAM_H_
