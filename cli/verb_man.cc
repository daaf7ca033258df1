// `qlora man`: manual pages from the tables of options; the build installs the output of
// --output_dir.
#include <filesystem>

#include "base/file.h"
#include "common.h"
#include "errors.h"
#include "man_page.h"
#include "verbs.h"

namespace qlora {
namespace {

std::string PageOf(Verb& verb) {
  // Declared again for each page: defaults are those of a fresh verb, not of this command line.
  OptionTable table;
  verb.Declare(table);
  return VerbPage(verb.text(), table);
}

class ManVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "man",
        .summary = "manual pages of the program and its verbs",
        .explanation =
            "Prints the manual page of a verb, or of the program, in roff. `cmake --install` "
            "installs the same pages.",
        .examples = {"qlora man train | man -l -", "qlora man --output_dir man1"},
        .positionals = {"verb"},
        .required = {},
    };
  }

  void Declare(OptionTable& table) override {
    table.Add("verb", &verb_, "verb to print the page of; without one, the page of the program");
    table.Add("output_dir", &output_dir_, "folder to write all pages to, instead of printing one");
  }

  int Run(const Console& console) override {
    const std::vector<std::unique_ptr<Verb>> verbs = AllVerbs();
    // One run for all pages: the build calls the program once.
    if (!output_dir_.empty()) {
      WriteAll(verbs);
    } else if (verb_.empty()) {
      console.out << ProgramPage(verbs);
    } else {
      console.out << PageOf(Find(verbs));
    }
    return 0;
  }

 private:
  Verb& Find(const std::vector<std::unique_ptr<Verb>>& verbs) const {
    for (const std::unique_ptr<Verb>& verb : verbs) {
      if (verb->text().name == verb_) return *verb;
    }
    ThrowUsage("unknown verb '{}'; `qlora help` lists them", verb_);
  }

  void WriteAll(const std::vector<std::unique_ptr<Verb>>& verbs) const {
    const std::filesystem::path folder = output_dir_;
    MakeDirectories(folder);
    // Section 1 of the manual: commands of users.
    WriteTextFile(folder / "qlora.1", ProgramPage(verbs));
    for (const std::unique_ptr<Verb>& verb : verbs) {
      WriteTextFile(folder / fmt::format("qlora-{}.1", verb->text().name), PageOf(*verb));
    }
  }

  std::string verb_;
  std::string output_dir_;
};

}  // namespace

std::unique_ptr<Verb> MakeManVerb() { return std::make_unique<ManVerb>(); }

}  // namespace qlora
