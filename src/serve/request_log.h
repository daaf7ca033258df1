// Conversations and what people say of the answers, as JSON Lines that `train` reads as they are:
//
//   chats-2026-11-30.jsonl   {"messages": [...]}: each conversation whose answer came to its end
//   marks-2026-11-30.jsonl   {"prompt": [...], "completion": [...], "label": true}: good or bad
//   (kto) edits-2026-11-30.jsonl   {"messages": [...]}: with the answer as somebody corrected it
//
// with "tools" and "chat_template_kwargs" where there were some. Answers that no training reads are
// left out: those that say nothing, and calls whose arguments are no JSON object. Texts that were
// continued have files of their own, texts-, texts-marks- and texts-edits-: {"prompt": "...",
// "completion": "..."}, marks with their label. Files of a day (UTC) are only added to, in whole
// lines, and never read back: marks are of the newest answers, which are in memory.
#ifndef QLORA_SERVE_REQUEST_LOG_H_
#define QLORA_SERVE_REQUEST_LOG_H_

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "serve/workers.h"

namespace qlora {

struct LoggedQuestion {
  OrderedJson messages = {};   // null: texts were continued
  OrderedJson tools = {};      // or null
  OrderedJson variables = {};  // of the chat template, or null
  std::string begin = {};      // of each answer, which the request has and the messages have not
};
struct LoggedAnswer {
  // {"role": "assistant", "content", ...}, or of a text {"prompt", "completion"}.
  OrderedJson message = {};
  bool is_whole = true;  // false: was cut at a limit of tokens, or by its client
};

struct RequestLogLimits {
  std::int64_t file_bytes = std::int64_t{1} << 30;
  std::int64_t answers = 1000;  // that can be marked
  // Of these; and as many that wait for the disk, beyond which conversations are not kept.
  std::int64_t answer_bytes = std::int64_t{64} << 20;
};

enum class AnswerMark { kUp, kDown, kEdited };

class RequestLog {
 public:
  // Makes the folder, and shows that files can be made in it. workers: write what is kept, and must
  // have done so before this is destroyed. log: what could not be written. now: seconds since 1970.
  // Errors: InvalidInput, Runtime.
  RequestLog(std::filesystem::path folder, Workers& workers,
             std::function<void(const std::string& line)> log,
             std::function<std::int64_t()> now = {}, RequestLogLimits limits = {});

  // Takes the answers to one question, before their client gets the end. Does not wait for a disk.
  void Keep(const std::string& id, const LoggedQuestion& question,
            const std::vector<LoggedAnswer>& answers);
  // choice: which of the answers; edited: the text of a corrected one, with or without what the
  // request had begun. Errors: ApiError 404 for an answer that is not in memory, 409 for one that
  // has such a mark, or that no training reads, 503 for a file that is full, 507 for a disk.
  void Mark(const std::string& id, std::int64_t choice, AnswerMark mark, const std::string& edited);

 private:
  struct Entry {
    std::string text = {};  // JSON: the question, and "answers"
    std::vector<bool> is_judged = {};
    std::vector<bool> is_edited = {};
    std::vector<bool>& Marked(bool is_edit) { return is_edit ? is_edited : is_judged; }
  };

  // Marks an answer, so that no other request does, and returns its text. Without waiting for a
  // disk.
  std::string Reserve(const std::string& id, std::int64_t choice, bool is_edit);
  void WriteMark(const OrderedJson& all, std::int64_t choice, AnswerMark mark,
                 const std::string& edited);
  // The file of today.
  std::filesystem::path FileOf(std::string_view kind) const;
  // False where the file is full.
  bool Write(std::string_view kind, const std::string& lines);
  void Forget();

  const std::filesystem::path folder_;
  Workers& workers_;
  const std::function<void(const std::string&)> log_;
  const std::function<std::int64_t()> now_;
  const RequestLogLimits limits_;

  std::mutex mutex_;  // of what follows
  std::map<std::string, Entry, std::less<>> entries_;
  std::deque<std::string> order_;  // the oldest first
  std::int64_t bytes_ = 0;         // of the texts
  std::int64_t unwritten_ = 0;     // bytes of lines that wait for the disk

  std::mutex writing_;  // of the files
};

}  // namespace qlora

#endif  // QLORA_SERVE_REQUEST_LOG_H_
