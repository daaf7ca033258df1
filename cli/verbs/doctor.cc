// `qlora doctor`: collects the facts about the machine that a report about a defect needs. It
// measures nothing.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "backend/backend.h"
#include "base/printable.h"
#include "base/version.h"
#include "command/common.h"
#include "dist/mpi_ranks.h"
#include "dist/nccl_link.h"
#include "hub/hub_cache.h"
#include "qlora/machine.h"
#include "terminal/text_wrap.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

// Returns the versions that this program was built with.
OrderedJson LibraryVersions() {
  // Versions at the build, as the headers tell them: defects of a library are known by them.
  return {{"qlora", Version()},
          {"commit", Commit()},
          {"compiler", __VERSION__},
          {"fmt", QLORA_FMT_VERSION},
          {"highway", QLORA_HIGHWAY_VERSION},
          {"libedit", QLORA_LIBEDIT_VERSION},
          {"nlohmann-json", QLORA_JSON_VERSION},
          {"openssl", QLORA_OPENSSL_VERSION},
          {"pcre2", QLORA_PCRE2_VERSION},
          {"utf8proc", QLORA_UTF8PROC_VERSION},
          {"yaml-cpp", QLORA_YAML_CPP_VERSION}};
}

// A missing GPU is not a failure of this verb, whose exit code stays 0.
OrderedJson CudaToJson(const CudaReport& cuda, const CudaTrial& trial) {
  const std::string& problem = cuda.problem.empty() ? trial.problem : cuda.problem;
  OrderedJson json;
  json["usable"] = problem.empty();
  if (!problem.empty()) json["problem"] = problem;
  if (!cuda.problem.empty()) return json;
  json["name"] = cuda.name;
  json["memory_total_bytes"] = cuda.memory_total;
  json["driver"] = cuda.driver;
  json["products"] = trial.products;
  json["attention"] = trial.attention;
  return json;
}

std::string CudaToText(const CudaReport& cuda, const CudaTrial& trial) {
  if (!cuda.problem.empty()) return fmt::format("CUDA          {}\n", cuda.problem);
  // The name as the driver gives it: defects depend on the generation of the GPU.
  std::string text = fmt::format("CUDA          {}, {}, driver for {}\n", cuda.name,
                                 FormatBytes(cuda.memory_total), cuda.driver);
  for (const auto& [label, value] :
       {std::pair("not usable", trial.problem), std::pair("products", trial.products),
        std::pair("attention", trial.attention)}) {
    if (!value.empty()) text += fmt::format("{:<14}{}\n", label, value);
  }
  return text;
}

class DoctorVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "doctor",
        .summary = "describe this machine: processor, memory, libraries, cached models",
        .explanation =
            "Prints the hardware and libraries that qlora found and which of them it uses. Attach "
            "the output to a bug report. The environment variable QLORA_TARGET (scalar, avx2, "
            "avx512, "
            "avx512bf16) forces an instruction set; the default is the fastest, not always the "
            "newest.",
        .examples = {"qlora doctor", "qlora doctor --json"},
        .positionals = {},
        .required = {},
    };
  }

  void Declare(OptionTable& table) override {
    table.Section("Run");
    run_.DeclareJson(table);
  }

  int Run(const Console& console) override {
    const MachineReport machine = DescribeMachine();
    const std::string cache = HubCacheDir().string();
    const std::vector<std::string> models = CachedModels();
    const OrderedJson libraries = LibraryVersions();
    const CudaReport cuda = DescribeCuda();
    // The libraries that a run would use are tried, because one may be there and not start.
    const CudaTrial trial = cuda.problem.empty() ? TryCuda() : CudaTrial();
    const std::string mpi = DescribeMpi();
    // NCCL is for several cards, and large.
    const std::string nccl = cuda.problem.empty() ? DescribeNccl() : "";
    if (run_.json) {
      PrintJson(console.out, {{"cpu", machine.cpu},
                              {"cpu_features", machine.cpu_features},
                              {"simd_target", machine.simd_target},
                              {"best_simd_target", machine.best_simd_target},
                              {"cores", machine.cores},
                              {"memory_total_bytes", machine.memory_total},
                              {"memory_available_bytes", machine.memory_available},
                              {"cuda", CudaToJson(cuda, trial)},
                              {"mpi", mpi},
                              {"nccl", nccl},
                              {"libraries", libraries},
                              {"hub_cache", cache},
                              {"cached_models", models}});
      return 0;
    }
    std::ostream& out = console.out;
    out << fmt::format("processor     {}\n", machine.cpu);
    const auto list = [&](const std::string& line) { out << Fitted(console.out_style, line); };
    list(fmt::format("features      {}\n", fmt::join(machine.cpu_features, " ")));
    // A QLORA_TARGET that was left in the environment explains a slow run.
    out << fmt::format(
        "kernels       {}{}\n", machine.simd_target,
        machine.simd_target == machine.best_simd_target
            ? ""
            : fmt::format(" (forced; the best here is {})", machine.best_simd_target));
    // Usable: containers and taskset allow for fewer than there are.
    out << fmt::format("cores         {} usable\n", machine.cores);
    out << fmt::format("memory        {} available of {}\n", FormatBytes(machine.memory_available),
                       FormatBytes(machine.memory_total));
    list(CudaToText(cuda, trial));
    list(fmt::format("ranks         {}; TCP\n", mpi));
    if (!nccl.empty()) list(fmt::format("cards         {}\n", nccl));
    std::string names = "libraries    ";
    for (const auto& [name, version] : libraries.items()) {
      names += fmt::format(" {} {}", name, version.get<std::string>());
    }
    list(names + "\n");
    out << fmt::format("model cache   {} ({})\n", Printable(cache),
                       Counted(std::ssize(models), "model"));
    // In one column with the lines above.
    for (const std::string& model : models) {
      out << fmt::format("              {}\n", Printable(model));
    }
    return 0;
  }

 private:
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeDoctorVerb() { return std::make_unique<DoctorVerb>(); }

}  // namespace qlora
