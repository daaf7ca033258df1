#include "tokenizer/tokenizer_json.h"

#include <cstddef>
#include <limits>

#include "base/check.h"
#include "base/file.h"
#include "io/foreign_content.h"
#include "io/json.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

using nlohmann::json;

// Receives the events of the parser. A tree of half a million small values would need ten times the
// memory of the vocabulary, so model.vocab and model.merges never become trees:
//
//     {"model": {"type": "BPE", "vocab": {"a": 0, ...}, "merges": ["a b", ["c", "d"], ...]}}
//      depth 1   depth 2                  depth 3                 depth 3  depth 4
//      kTree     kTree                    kVocab                  kMerges
class Reader final : public json::json_sax_t {
 public:
  Reader(std::string_view text, TokenizerJson* out) : text_(text), out_(out) {}

  bool null() override { return Value(nullptr); }
  bool boolean(bool value) override { return Value(value); }
  bool number_integer(number_integer_t value) override { return Value(value); }
  bool number_unsigned(number_unsigned_t value) override { return Value(value); }
  bool number_float(number_float_t value, const string_t&) override { return Value(value); }
  bool string(string_t& value) override { return Value(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // does not occur in JSON text
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_array() override { return Close(); }

  bool key(string_t& key) override {
    if (part_ == Part::kVocab) {
      if (depth_ != 3) FailVocab();
      out_->vocab.emplace_back(std::move(key), -1);
    } else if (part_ == Part::kMerges) {
      FailMerge();
    } else if (part_ == Part::kTree) {
      // JSON leaves the meaning of a repeated key open. Python takes the last one, other readers
      // the first: the tokenizer would depend on the reader.
      if (open_.back()->contains(key)) {
        ThrowInvalidInput("{}: key '{}' appears twice in one object; expected it once", out_->file,
                          key);
      }
      if (depth_ == 1) section_ = key;
      key_ = std::move(key);
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    ThrowInvalidInput("{}: expected JSON: {}{}", out_->file, error.what(), ForeignContent(text_));
  }

 private:
  // kIgnored: a vocabulary that is an array.
  enum class Part { kTree, kVocab, kMerges, kIgnored };

  bool Value(json value) {
    switch (part_) {
      case Part::kTree:
        Put(std::move(value));
        break;
      case Part::kVocab:
        PutId(value);
        break;
      case Part::kMerges:
        PutMerge(std::move(value));
        break;
      case Part::kIgnored:
        break;
    }
    return true;
  }

  bool Open(json container) {
    if (++depth_ > kMaxJsonDepth) {
      ThrowInvalidInput("{}: nested more than {} levels; expected a tokenizer", out_->file,
                        kMaxJsonDepth);
    }
    if (part_ == Part::kVocab) FailVocab();
    // A merge is a text or a list of two texts, nothing deeper.
    if (part_ == Part::kMerges && (depth_ != 4 || container.is_object())) FailMerge();
    if (part_ != Part::kTree) return true;
    // The container is open already, so `vocab` and `merges` themselves are depth 3.
    const bool in_model = depth_ == 3 && section_ == "model";
    if (in_model && key_ == "vocab") part_ = container.is_object() ? Part::kVocab : Part::kIgnored;
    if (in_model && key_ == "merges" && container.is_array()) part_ = Part::kMerges;
    open_.push_back(Put(std::move(container)));
    return true;
  }

  bool Close() {
    --depth_;
    if (part_ == Part::kMerges && depth_ == 3) {
      if (pair_.size() != 2) FailMerge();
      out_->merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      pair_.clear();
    }
    // At depth 2 the vocabulary or the list of merges has just been closed, which is in the tree.
    if (part_ != Part::kTree && depth_ > 2) return true;
    part_ = Part::kTree;
    open_.pop_back();
    return true;
  }

  // Adds a value to the container that is open, or as the whole document.
  json* Put(json value) {
    if (open_.empty()) {
      out_->rest = std::move(value);
      return &out_->rest;
    }
    json& container = *open_.back();
    if (container.is_object()) return &(container[key_] = std::move(value));
    container.push_back(std::move(value));
    return &container.back();
  }

  void PutId(const json& value) {
    const bool fits = value.is_number_unsigned() &&
                      value.get<std::uint64_t>() < std::numeric_limits<std::int32_t>::max();
    if (!fits) FailVocab();
    out_->vocab.back().second = value.get<std::int32_t>();
  }

  void PutMerge(json value) {
    if (!value.is_string()) FailMerge();
    std::string& text = value.get_ref<std::string&>();
    if (depth_ == 4) {
      if (pair_.size() == 2) FailMerge();
      pair_.push_back(std::move(text));
      return;
    }
    if (text.starts_with("#version")) return;  // the first line of merges.txt
    // Exactly one space: pieces of such files have none, and a second one would leave open where
    // the left piece ends. Files since tokenizers 0.20 write lists instead.
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) FailMerge();
    out_->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }

  [[noreturn]] void FailVocab() const {
    const std::string piece = out_->vocab.empty() ? "" : out_->vocab.back().first;
    ThrowInvalidInput("{}: model.vocab: the value of piece '{}' is not an id; expected 0 to 2^31",
                      out_->file, piece);
  }
  [[noreturn]] void FailMerge() const {
    ThrowInvalidInput(
        "{}: model.merges[{}] is malformed; expected \"left right\" or [\"left\", \"right\"]",
        out_->file, out_->merges.size());
  }

  std::string_view text_;
  TokenizerJson* out_;
  std::vector<json*> open_;        // the containers of the tree that are open
  std::int64_t depth_ = 0;         // open containers, those outside the tree included
  std::string section_;            // the last key of the root
  std::string key_;                // the last key of the tree
  Part part_ = Part::kTree;        // where the parser is
  std::vector<std::string> pair_;  // the merge that is open
};

// Throws that there is no such file, with what its folder has in its place and what to do.
[[noreturn]] void ThrowNoTokenizer(const std::filesystem::path& path) {
  const auto has = [&path](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(path.parent_path() / name, ignored);
  };
  const char* other = has("tokenizer.model")                   ? "tokenizer.model"
                      : has("vocab.json") && has("merges.txt") ? "vocab.json and merges.txt"
                                                               : nullptr;
  if (other == nullptr) {
    ThrowInvalidInput(
        "{}: no such file: the folder has no tokenizer. Copy tokenizer.json and "
        "tokenizer_config.json "
        "from the model that these weights were trained from",
        path.string());
  }
  ThrowInvalidInput(
      "{}: no such file; the model has only {}, which {} not read. Make the file once in Python: "
      "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
      path.string(), other, other == std::string_view("tokenizer.model") ? "is" : "are");
}

}  // namespace

TokenizerJson ReadTokenizerJson(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  if (type == std::filesystem::file_type::not_found) ThrowNoTokenizer(path);
  const std::string text = ReadTextFile(path);
  // The parser would take a zero byte for the end of the text.
  if (const std::size_t zero = text.find('\0'); zero != text.npos) {
    ThrowInvalidInput("{}: expected JSON: byte {} is zero", path.string(), zero);
  }
  TokenizerJson result;
  result.file = path.string();
  // The hash of the file's bytes: an index of data that was made with another tokenizer.json gets
  // another key.
  result.hash = HashBytes(text);
  Reader reader(text, &result);
  json::sax_parse(text, &reader);
  if (!result.rest.is_object()) ThrowInvalidInput("{}: expected a JSON object", result.file);
  return result;
}

}  // namespace qlora
