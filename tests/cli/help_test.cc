#include "command/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "command/command_line.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

// The words of a command as a shell would pass them, up to a redirection.
std::vector<std::string> ShellWords(const std::string& command) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false;
  for (const char c : command + " ") {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      if (word == "<" || word == ">" || word == "|") break;
      if (!word.empty()) words.push_back(std::exchange(word, ""));
    } else {
      word += c;
    }
  }
  return words;
}

TEST(Help, EveryKeyAndAliasOfAVerbIsItsOwn) {
  for (const std::unique_ptr<Verb>& verb : AllVerbs()) {
    OptionTable table;
    verb->Declare(table);
    std::map<std::string, std::string> owner;
    for (const Option& option : table.options()) {
      std::vector<std::string> names = option.aliases;
      names.push_back(option.name);
      for (const std::string& name : names) {
        EXPECT_TRUE(owner.emplace(name, option.name).second)
            << verb->text().name << ": " << name << " is " << option.name << " and " << owner[name];
        EXPECT_NE(name, "config");
        EXPECT_EQ(name.find('-'), std::string::npos) << name;
      }
    }
  }
}

TEST(Help, NamedOptionsExist) {
  for (const std::unique_ptr<Verb>& verb : AllVerbs()) {
    OptionTable table;
    verb->Declare(table);
    const VerbText text = verb->text();
    for (const std::string& key : text.positionals) {
      EXPECT_TRUE(key == "config" || table.Find(key) != nullptr) << text.name << ": " << key;
    }
    for (const std::string& key : text.required) {
      ASSERT_NE(table.Find(key), nullptr) << text.name << ": " << key;
    }
  }
}

TEST(Help, ExamplesAreCommandsThatTheVerbTakes) {
  for (const std::unique_ptr<Verb>& verb : AllVerbs()) {
    const VerbText text = verb->text();
    EXPECT_GE(text.examples.size(), 2u);
    for (const std::string& example : text.examples) {
      std::vector<std::string> words = ShellWords(example);
      ASSERT_GE(words.size(), 2u);
      EXPECT_EQ(words[0], "qlora");
      EXPECT_EQ(words[1], text.name);
      words.erase(words.begin(), words.begin() + 2);
      if (!words.empty() && words[0] == "run.yaml") words.erase(words.begin());
      OptionTable table;
      verb->Declare(table);
      std::vector<std::string> notes;
      EXPECT_NO_THROW(ParseCommandLine(verb->Spell(words), text, table, notes)) << example;
      EXPECT_TRUE(notes.empty()) << example;
    }
  }
}

TEST(Help, FitsItsWidth) {
  for (const std::int64_t columns : {60, 80, 110}) {
    std::string all = ProgramHelp(AllVerbs(), columns);
    for (const std::unique_ptr<Verb>& verb : AllVerbs()) {
      OptionTable table;
      verb->Declare(table);
      all += VerbHelp(verb->text(), table, columns);
    }
    std::istringstream lines(all);
    for (std::string line; std::getline(lines, line);) {
      // A command is broken before its options only, and no word is broken.
      const bool command = line.starts_with("  qlora ") || line.starts_with("      --");
      const bool word = line.find(' ', line.find_first_not_of(' ')) == std::string::npos;
      EXPECT_TRUE(std::ssize(line) <= columns || (columns < 80 && (command || word))) << line;
      EXPECT_FALSE(line.ends_with(' ')) << line;
    }
  }
}

TEST(Help, ShowsDefaultsChoicesAndAliases) {
  std::string format = "gguf";
  std::int64_t rank = 16;
  std::string model;
  OptionTable table;
  table.Section("Adapter");
  table.Add("lora_r", &rank, "rank of the update", {"r", "rank"});
  table.Add("model", &model, "which model");
  table.Choice("format", &format, {"gguf", "hf"}, "what to write");
  const std::string help = VerbHelp({.name = "try",
                                     .summary = "try it",
                                     .explanation = "Tries.",
                                     .examples = {},
                                     .positionals = {"format"},
                                     .required = {"format", "model"}},
                                    table, 80);
  EXPECT_THAT(help, HasSubstr("qlora try - try it\n\nTries.\n\nUsage: qlora try FORMAT "));
  EXPECT_THAT(help, HasSubstr("\nAdapter:\n  --lora_r N "));
  EXPECT_THAT(help, HasSubstr("rank of the update [16] (also r, rank)\n"));
  EXPECT_THAT(help, HasSubstr("which model [required]\n"));
  EXPECT_THAT(help, HasSubstr("what to write; one of gguf, hf [gguf]\n"));
}

}  // namespace
}  // namespace qlora
