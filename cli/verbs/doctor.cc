// `qlora doctor`: collects the facts about the machine that a report about a defect needs,
// and measures what products in 8 bits would gain.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "base/version.h"
#include "command/common.h"
#include "dist/mpi_ranks.h"
#include "hub/hub_cache.h"
#include "qlora/context.h"
#include "qlora/int8_gain.h"
#include "qlora/machine.h"
#include "terminal/text_wrap.h"
#include "training/run_check.h"
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

class DoctorVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "doctor",
        .summary = "describe this machine: processor, memory, libraries, cached models",
        .explanation =
            "Prints the hardware and libraries that qlora found and which of them it uses. Attach "
            "the output to a bug report. The environment variable QLORA_TARGET (scalar, avx2, "
            "avx512, avx512bf16, amx; on aarch64 neon, neondot, neonmatrix) forces an instruction "
            "set; the default is the fastest, not always the newest. Behind a plus (avx2+madd) it "
            "forces the instructions of compute_dtype int8: amx, vnni, madd or float; on aarch64 "
            "usmmla, sdot or float.",
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
    const std::string mpi = DescribeMpi();
    Context context;
    const Int8Gain int8 = MeasureInt8Gain(context);
    if (run_.json) {
      PrintJson(console.out, {{"cpu", machine.cpu},
                              {"cpu_features", machine.cpu_features},
                              {"simd_target", machine.simd_target},
                              {"best_simd_target", machine.best_simd_target},
                              {"int8_kernels", machine.int8_kernels},
                              {"best_int8_kernels", machine.best_int8_kernels},
                              {"int8_speedup", Int8GainToJson(int8)},
                              {"cores", machine.cores},
                              {"memory_total_bytes", machine.memory_total},
                              {"memory_available_bytes", machine.memory_available},
                              {"mpi", mpi},
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
    const auto kernels = [](const std::string& found, const std::string& best) {
      return found == best ? found : fmt::format("{} (forced; the best here is {})", found, best);
    };
    out << fmt::format("kernels       {}\n",
                       kernels(machine.simd_target, machine.best_simd_target));
    list(fmt::format("int8          {}: {}\n",
                     kernels(machine.int8_kernels, machine.best_int8_kernels),
                     FormatInt8Gain(int8)));
    // Usable: containers and taskset allow for fewer than there are.
    out << fmt::format("cores         {} usable\n", machine.cores);
    out << fmt::format("memory        {} available of {}\n", FormatBytes(machine.memory_available),
                       FormatBytes(machine.memory_total));
    list(fmt::format("ranks         {}; TCP\n", mpi));
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
