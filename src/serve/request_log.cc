#include "serve/request_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "serve/api_error.h"

namespace qlora {
namespace {

constexpr const char* kKinds[] = {"chats", "marks", "edits"};

bool IsOfTexts(const OrderedJson& question) { return question.at("messages").is_null(); }

std::string FileKind(const OrderedJson& question, std::string_view kind) {
  if (!IsOfTexts(question)) return std::string(kind);
  return kind == "chats" ? "texts" : fmt::format("texts-{}", kind);
}

// Adds what a question says beside its messages, under the names that `train` reads.
void AddContext(const OrderedJson& question, OrderedJson& line) {
  for (const char* name : {"tools", "chat_template_kwargs"}) {
    if (!question.at(name).is_null()) line[name] = question.at(name);
  }
}

OrderedJson ConversationLine(const OrderedJson& question, OrderedJson answer) {
  if (IsOfTexts(question)) return answer;
  OrderedJson line = {{"messages", question.at("messages")}};
  line["messages"].push_back(std::move(answer));
  AddContext(question, line);
  return line;
}

OrderedJson JudgementLine(const OrderedJson& question, OrderedJson answer, bool is_good) {
  if (IsOfTexts(question)) {
    answer["label"] = is_good;
    return answer;
  }
  OrderedJson line = {{"prompt", question.at("messages")},
                      {"completion", OrderedJson::array({std::move(answer)})},
                      {"label", is_good}};
  AddContext(question, line);
  return line;
}

// The answer with what the request had begun of it.
OrderedJson WholeAnswer(const std::string& begin, OrderedJson message) {
  if (begin.empty()) return message;
  OrderedJson& content = message["content"];
  content = begin + (content.is_string() ? content.get<std::string>() : "");
  return message;
}

// False for what makes `train` refuse the whole file: an empty text, and a call that was cut, or
// was never JSON.
bool CanBeTrained(const OrderedJson& answer) {
  if (answer.contains("completion")) return answer["completion"] != "";
  if (!answer.contains("tool_calls")) return true;
  return std::ranges::all_of(answer["tool_calls"], [](const OrderedJson& call) {
    OrderedJson arguments;
    const auto& text = call["function"]["arguments"].get_ref<const std::string&>();
    return !TryParseJson(text, arguments) && arguments.is_object();
  });
}

// Before the answer.
bool EndsWithAnswer(const OrderedJson& question) {
  return !IsOfTexts(question) && question.at("messages").back().at("role") == "assistant";
}

bool IsSilent(const OrderedJson& answer) {
  return answer.contains("content") && answer["content"] == "" && !answer.contains("tool_calls");
}

}  // namespace

RequestLog::RequestLog(std::filesystem::path folder, Workers& workers,
                       std::function<void(const std::string&)> log,
                       std::function<std::int64_t()> now, RequestLogLimits limits)
    : folder_(std::move(folder)),
      workers_(workers),
      log_(std::move(log)),
      now_(now ? std::move(now) : [] { return static_cast<std::int64_t>(std::time(nullptr)); }),
      limits_(limits) {
  MakeDirectories(folder_);
  for (const char* kind : kKinds) AppendWhole(FileOf(kind), "");
}

std::filesystem::path RequestLog::FileOf(std::string_view kind) const {
  return folder_ /
         fmt::format("{}-{:%Y-%m-%d}.jsonl", kind, fmt::gmtime(static_cast<std::time_t>(now_())));
}

bool RequestLog::Write(std::string_view kind, const std::string& lines) {
  const std::lock_guard lock(writing_);
  return AppendWhole(FileOf(kind), lines, limits_.file_bytes);
}

void RequestLog::Keep(const std::string& id, const LoggedQuestion& question,
                      const std::vector<LoggedAnswer>& answers) {
  OrderedJson all = {{"messages", question.messages},
                     {"tools", question.tools},
                     {"chat_template_kwargs", question.variables},
                     {"begin", question.begin},
                     {"answers", OrderedJson::array()}};
  std::string lines;
  for (const LoggedAnswer& answer : answers) {
    OrderedJson message = WholeAnswer(question.begin, answer.message);
    if (answer.is_whole && CanBeTrained(message) && !IsSilent(message)) {
      lines += FormatJson(ConversationLine(all, message)) + "\n";
    }
    all["answers"].push_back(std::move(message));
  }
  const std::int64_t bytes = std::ssize(lines);
  bool has_room = false;
  {
    const std::lock_guard lock(mutex_);
    has_room = unwritten_ + bytes <= limits_.answer_bytes;
    if (has_room) unwritten_ += bytes;
    Entry entry = {.text = FormatJson(all),
                   .is_judged = std::vector<bool>(answers.size()),
                   .is_edited = std::vector<bool>(answers.size())};
    const auto [at, is_new] = entries_.emplace(id, std::move(entry));
    if (is_new) {
      bytes_ += std::ssize(at->second.text);
      order_.push_back(id);
      Forget();
    }
  }
  if (!has_room) log_("warning: the disk is too slow: a conversation is not kept");
  if (!has_room || lines.empty()) return;
  workers_.Run([this, bytes, kind = FileKind(all, "chats"), lines = std::move(lines)] {
    const std::shared_ptr<void> end(nullptr, [&](void*) {
      const std::lock_guard lock(mutex_);
      unwritten_ -= bytes;
    });
    try {
      if (!Write(kind, lines)) {
        log_(fmt::format("warning: {} is full: a conversation is not kept", FileOf(kind).string()));
      }
    } catch (const std::exception& error) {
      log_(fmt::format("error: a conversation is not kept: {}", error.what()));
    }
  });
}

void RequestLog::Forget() {
  while (std::ssize(order_) > limits_.answers || bytes_ > limits_.answer_bytes) {
    const auto oldest = entries_.find(order_.front());
    bytes_ -= std::ssize(oldest->second.text);
    entries_.erase(oldest);
    order_.pop_front();
  }
}

void RequestLog::Mark(const std::string& id, std::int64_t choice, AnswerMark mark,
                      const std::string& edited) {
  const bool is_edit = mark == AnswerMark::kEdited;
  const std::string text = Reserve(id, choice, is_edit);
  try {
    WriteMark(ParseOrderedJson(text, "a kept answer"), choice, mark, edited);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(id);
    if (at != entries_.end()) at->second.Marked(is_edit)[choice] = false;
    throw;
  }
}

std::string RequestLog::Reserve(const std::string& id, std::int64_t choice, bool is_edit) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  if (at == entries_.end() || choice >= std::ssize(at->second.is_judged)) {
    throw ApiError(
        404,
        fmt::format("there is no such answer here: the newest {} can be marked", limits_.answers),
        "id");
  }
  std::vector<bool>& marked = at->second.Marked(is_edit);
  if (marked[choice]) throw ApiError(409, "the answer has such a mark already", "mark");
  marked[choice] = true;
  return at->second.text;
}

void RequestLog::WriteMark(const OrderedJson& all, std::int64_t choice, AnswerMark mark,
                           const std::string& edited) {
  const bool is_edit = mark == AnswerMark::kEdited;
  OrderedJson answer = all.at("answers").at(choice);
  OrderedJson line;
  if (is_edit && IsOfTexts(all)) {
    answer["completion"] = edited;
    line = std::move(answer);
  } else if (is_edit) {
    const std::string begin = all.at("begin");
    OrderedJson message = {{"role", "assistant"},
                           {"content", edited.starts_with(begin) ? edited : begin + edited}};
    const auto thought = answer.find("reasoning_content");
    if (thought != answer.end()) message["reasoning_content"] = *thought;
    line = ConversationLine(all, std::move(message));
  } else if (EndsWithAnswer(all)) {
    throw ApiError(409,
                   "the conversation ends with a message of the assistant, behind which no "
                   "training of preferences reads an answer; mark it as edited",
                   "mark");
  } else if (!CanBeTrained(answer)) {
    throw ApiError(
        409,
        "the answer is empty, or has a call whose arguments are no JSON object, which no "
        "training reads; mark it as edited",
        "mark");
  } else {
    line = JudgementLine(all, std::move(answer), mark == AnswerMark::kUp);
  }
  const std::string kind = FileKind(all, is_edit ? "edits" : "marks");
  if (!OnDisk([&] { return Write(kind, FormatJson(line) + "\n"); })) {
    throw ApiError(503, "the file of today's marks is full");
  }
}

}  // namespace qlora
