// `qlora man`: manual pages from the tables of options; the build installs the output of
// --output_dir.
#include <filesystem>
#include <map>

#include "base/check.h"
#include "base/file.h"
#include "command/common.h"
#include "command/man_page.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

std::string PageOf(Verb& verb) {
  // Options are declared again for each page: defaults come from a fresh verb, not from this
  // command line.
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
            "installs the same pages. Pages that --output_dir already holds are replaced; a file "
            "of such a name that is no page of qlora is not.",
        .examples = {"qlora man train | man -l -", "qlora man --output_dir man1"},
        .positionals = {"verb"},
        .required = {},
    };
  }

  void Declare(OptionTable& table) override {
    table.Add("verb", &verb_, "verb to print the page of; without one, the page of the program");
    table.AddPath("output_dir", &output_dir_,
                  "folder to write all pages to, instead of printing one");
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
    ThrowInvalidInput("unknown verb '{}'; `qlora help` lists them", verb_);
  }

  void WriteAll(const std::vector<std::unique_ptr<Verb>>& verbs) const {
    const std::filesystem::path folder = output_dir_;
    // Section 1 of the manual: commands of users.
    std::map<std::filesystem::path, std::string> pages = {{folder / "qlora.1", ProgramPage(verbs)}};
    for (const std::unique_ptr<Verb>& verb : verbs) {
      pages[folder / fmt::format("qlora-{}.1", verb->text().name)] = PageOf(*verb);
    }
    // All names before the first page is written.
    for (const auto& [path, text] : pages) CheckIsOurs(path);
    MakeDirectories(folder);
    for (const auto& [path, text] : pages) WriteTextFile(path, text);
  }

  // Replaces pages of an earlier version, but no other files.
  static void CheckIsOurs(const std::filesystem::path& path) {
    if (!std::filesystem::exists(path) || IsManPage(ReadTextFile(path))) return;
    ThrowInvalidInput(
        "{} exists and was not written by `qlora man`; give --output_dir another folder",
        path.string());
  }

  std::string verb_;
  std::string output_dir_;
};

}  // namespace

std::unique_ptr<Verb> MakeManVerb() { return std::make_unique<ManVerb>(); }

}  // namespace qlora
