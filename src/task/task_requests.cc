#include "task/task_requests.h"

#include <algorithm>

#include "base/check.h"
#include "jinja/python_str.h"
#include "records/compressed_file.h"
#include "records/record_error.h"
#include "task/python_random.h"

namespace qlora {
namespace {

using Tokens = std::vector<std::int32_t>;

TaskDocument ReadDocument(const TaskReader& reader, const TaskRecords& records, std::int64_t i) {
  return NamePlace([&] { return records.Where(i); }, [&] { return reader.Read(records.Read(i)); });
}

// Draws the examples before each record, in the order of the records.
class Examples {
 public:
  Examples(const TaskFile& task, const TaskReader& reader, std::int64_t shots, std::int64_t seed)
      : task_(task), shots_(shots), random_(seed) {
    if (shots == 0) return;
    const TaskRecords records(SplitNamed(task, task.fewshot_split));
    for (std::int64_t i = 0; i < records.size(); ++i) {
      records_.push_back(records.Read(i));
      texts_.push_back(TextOfExample(ReadDocument(reader, records, i)));
    }
    // One more where the record itself may be drawn.
    drawn_ = shots + (task.fewshot_split == task.test_split ? 1 : 0);
    if (drawn_ > std::ssize(records_)) {
      ThrowInvalidInput("{}: num_fewshot: {} examples are asked for, the split '{}' has {}",
                        task.path.string(), drawn_, task.fewshot_split, records_.size());
    }
  }

  // The texts of the examples of the next record.
  std::string Next(const OrderedJson& record) {
    std::string text;
    if (shots_ == 0) return text;
    std::int64_t taken = 0;
    const bool skips = drawn_ > shots_;
    for (const std::int64_t i : Draw()) {
      if (taken == shots_ || (skips && records_[i] == record)) continue;
      text += texts_[i];
      ++taken;
    }
    return text;
  }

 private:
  std::vector<std::int64_t> Draw() {
    if (!task_.first_n) return random_.Sample(std::ssize(records_), drawn_);
    std::vector<std::int64_t> first;
    for (std::int64_t i = 0; i < drawn_; ++i) first.push_back(i);
    return first;
  }

  std::string TextOfExample(const TaskDocument& document) const {
    const std::string& text =
        document.has_contexts ? document.choices[document.gold.front()] : document.text;
    return text + task_.target_delimiter + document.target + task_.fewshot_delimiter;
  }

  const TaskFile& task_;
  std::int64_t shots_;
  PythonRandom random_;
  std::int64_t drawn_ = 0;
  std::vector<OrderedJson> records_;
  std::vector<std::string> texts_;
};

// Context and continuation as tokens. White space at the end of the context belongs to the
// continuation, whose tokens are those of both behind as many as the context has.
struct TokenPair {
  Tokens context;
  Tokens continuation;
};
TokenPair EncodePair(std::string_view context, std::string continuation, const TaskTokens& tokens) {
  const std::string_view kept = jinja::StripText(context, jinja::Side::kRight);
  continuation.insert(0, context.substr(kept.size()));
  if (kept.empty()) return {{tokens.start}, tokens.encode(continuation, false)};
  TokenPair pair;
  pair.context = tokens.encode(kept, tokens.add_bos_token);
  const Tokens whole = tokens.encode(std::string(kept) + continuation, tokens.add_bos_token);
  const auto begin = std::min(pair.context.size(), whole.size());
  pair.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(begin), whole.end());
  return pair;
}

}  // namespace

TaskRecords::TaskRecords(const TaskSplit& split) {
  for (const std::filesystem::path& path : split.files) {
    files_.emplace_back(Decompressed(FileBytes(path), {}));
    begins_.push_back(begins_.back() + files_.back().size());
  }
  if (size() == 0) ThrowInvalidInput("the split '{}' has no records", split.name);
}

std::int64_t TaskRecords::FileOf(std::int64_t i) const {
  return std::upper_bound(begins_.begin(), begins_.end(), i) - begins_.begin() - 1;
}

OrderedJson TaskRecords::Read(std::int64_t i) const {
  const std::int64_t file = FileOf(i);
  return files_[file].Read(i - begins_[file]);
}

std::string TaskRecords::Where(std::int64_t i) const {
  const std::int64_t file = FileOf(i);
  return files_[file].Where(i - begins_[file]);
}

std::vector<TaskItem> MakeItems(const TaskFile& task, std::int64_t shots, std::int64_t seed,
                                std::int64_t limit) {
  const TaskReader reader(task);
  const TaskRecords records(SplitNamed(task, task.test_split));
  Examples examples(task, reader, shots, seed);
  const std::int64_t count = limit > 0 ? std::min(limit, records.size()) : records.size();
  std::vector<TaskItem> items;
  for (std::int64_t i = 0; i < count; ++i) {
    TaskItem& item = items.emplace_back();
    item.record = i;
    item.document = ReadDocument(reader, records, i);
    item.context = task.description + examples.Next(records.Read(i)) + item.document.text;
  }
  return items;
}

std::vector<ScoreRequest> ChoiceRequests(const TaskItem& item, const std::string& delimiter,
                                         const TaskTokens& tokens) {
  std::vector<ScoreRequest> requests;
  const TaskDocument& document = item.document;
  for (const std::string& choice : document.choices) {
    const std::string context = document.has_contexts ? item.context + choice : item.context;
    TokenPair pair =
        EncodePair(context, delimiter + (document.has_contexts ? document.target : choice), tokens);
    if (pair.continuation.empty()) {
      ThrowInvalidInput("the choice '{}' adds no token to its context", choice);
    }
    if (requests.empty() || requests.back().context != pair.context) {
      requests.push_back({std::move(pair.context), {}});
    }
    requests.back().continuations.push_back(std::move(pair.continuation));
  }
  return requests;
}

std::vector<ScoreRequest> RollingRequests(std::string_view text, const TaskTokens& tokens) {
  const Tokens all = tokens.encode(text, false);
  std::vector<ScoreRequest> requests;
  const std::int64_t total = std::ssize(all);
  for (std::int64_t begin = 0; begin < total;) {
    const std::int64_t end = std::min(total, begin + tokens.limit);
    const std::int64_t from = std::max<std::int64_t>(0, end - tokens.limit - 1);
    ScoreRequest& request = requests.emplace_back();
    if (begin == 0) {
      request.context = {tokens.start};
    } else {
      request.context.assign(all.begin() + from, all.begin() + begin);
    }
    request.continuations.emplace_back(all.begin() + begin, all.begin() + end);
    begin = end;
  }
  return requests;
}

}  // namespace qlora
