#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <sstream>

#include "common.h"
#include "errors.h"
#include "model/hub.h"
#include "text/tokenize_jsonl.h"
#include "verbs.h"

namespace qlora {
namespace {

std::vector<std::int32_t> ParseIds(const std::vector<std::string>& items) {
  std::vector<std::int32_t> ids;
  for (const std::string& item : items) {
    std::int32_t id = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), id);
    if (error != std::errc() || end != item.data() + item.size() || id < 0) {
      ThrowUsage("ids: expected token ids, found '{}'", item);
    }
    ids.push_back(id);
  }
  return ids;
}

class TokenizeVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "tokenize",
        .summary = "text to token ids, and back",
        .explanation =
            "Prints {\"ids\": [...], \"text\": \"...\"} for a text, where the second is what the "
            "ids "
            "decode to. --jsonl reads one JSON string a line, from a file or - for standard input, "
            "and prints one such line each; --ids decodes. Special tokens that the tokenizer puts "
            "around a text (such as BOS) are left away with --no-special.",
        .examples = {"qlora tokenize ./my-model \"Hello world\"",
                     "qlora tokenize ./my-model --ids 1,9906,1917",
                     "qlora tokenize ./my-model --jsonl texts.jsonl --no-special"},
        .positionals = {"model_name_or_path", "text"},
        .required = {"model_name_or_path"},
    };
  }

  void Declare(OptionTable& table) override {
    table.Section("Input");
    table.Add("model_name_or_path", &model_,
              "directory with tokenizer.json, or org/name in the local cache",
              {"base_model", "model"});
    table.Add("text", &text_, "text to turn into ids");
    table.Add("jsonl", &jsonl_, "file with one JSON string a line; -: standard input");
    table.Add("ids", &ids_, "token ids to turn into text");
    table.Add("special", &special_, "add the special tokens that belong around a text");
  }

  int Run(const Console& console) override {
    if (static_cast<int>(!text_.empty()) + static_cast<int>(!jsonl_.empty()) +
            static_cast<int>(!ids_.empty()) !=
        1) {
      ThrowUsage("give one of: a text, --jsonl FILE, --ids 1,2,3");
    }
    const std::vector<std::int32_t> ids = ParseIds(ids_);
    // A tokenizer may stand alone, without the rest of a model.
    const std::filesystem::path given = model_;
    const bool alone = std::filesystem::exists(given / "tokenizer.json");
    const Tokenizer tokenizer = Tokenizer::Load(alone ? given : ResolveModelDir(model_));
    if (!ids.empty()) {
      console.out << tokenizer.Decode(ids, !special_) << '\n';
    } else if (!text_.empty()) {
      std::istringstream line(Json(text_).dump(-1, ' ', false, Json::error_handler_t::replace));
      TokenizeJsonl(tokenizer, line, "text", special_, console.out);
    } else {
      std::istringstream lines(ReadInput(jsonl_));
      TokenizeJsonl(tokenizer, lines, jsonl_ == "-" ? "standard input" : jsonl_, special_,
                    console.out);
    }
    return 0;
  }

 private:
  std::string model_;
  std::string text_;
  std::string jsonl_;
  std::vector<std::string> ids_;
  bool special_ = true;
};

}  // namespace

std::unique_ptr<Verb> MakeTokenizeVerb() { return std::make_unique<TokenizeVerb>(); }

}  // namespace qlora
