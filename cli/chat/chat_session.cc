#include "chat/chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "command/common.h"
#include "command/model_loading.h"
#include "qlora/error.h"
#include "qlora/options.h"

namespace qlora {

ChatSession::ChatSession(Model& model, const GenerateOptions& options, bool plain,
                         std::string system, std::string template_file, const Console& console)
    : model_(model),
      options_(options),
      plain_(plain),
      template_file_(std::move(template_file)),
      console_(console),
      reader_(MakeLineReader(console, guard_)) {
  dialogue_.system = std::move(system);
}

void ChatSession::Run() {
  // A program at the other end of a pipe needs no advice.
  if (reader_->person()) Say(console_, "/help lists the commands; Ctrl+D ends");
  ChatLine command;
  std::string message;
  while (ReadInput(command, message)) {
    const bool goes_on = command.command == ChatCommand::kNone ? Answer(message) : Obey(command);
    if (!goes_on) return;
  }
}

// A program sends one message a line, a person may type several lines and nothing.
bool ChatSession::ReadInput(ChatLine& command, std::string& message) {
  MessageLines lines;
  for (std::string line;;) {
    const LineReader::Result result = reader_->Read(lines.empty() ? "> " : "... ", line);
    if (result == LineReader::Result::kEnd) return false;
    if (result == LineReader::Result::kSignal) ContinueAfterSignal();
    if (result != LineReader::Result::kLine) {
      // Drops the text that was typed so far.
      lines.Take();
      continue;
    }
    // Within a message of several lines, /save is text.
    command = lines.empty() ? ParseChatLine(line) : ChatLine();
    if (command.command != ChatCommand::kNone) return true;
    if (!reader_->person()) {
      message = line;
      return true;
    }
    if (!lines.Add(line)) continue;
    message = lines.Take();
    if (!message.empty()) return true;
  }
}

bool ChatSession::Obey(const ChatLine& command) {
  switch (command.command) {
    case ChatCommand::kExit:
      return false;
    case ChatCommand::kReset:
      dialogue_.Reset();
      Say(console_, "the conversation is forgotten");
      return true;
    case ChatCommand::kSystem:
      SetSystem(command.argument);
      return true;
    case ChatCommand::kSave:
      Save(command.argument);
      return true;
    case ChatCommand::kUnknown:
      Say(console_, "unknown command; the commands are:");
      break;
    case ChatCommand::kHelp:
    case ChatCommand::kNone:
      break;
  }
  console_.err << ChatHelp() << std::flush;
  return true;
}

void ChatSession::SetSystem(const std::string& text) {
  if (plain_) {
    Say(console_, "a system message needs a chat template; start with --chat_template");
    return;
  }
  if (!text.empty()) {
    Dialogue trial;
    trial.system = text;
    trial.Ask("?");
    try {  // some templates have no place for a system message
      // Rendered with a question, since some templates refuse a conversation without one.
      model_.PromptOfChat(Dump(trial.Messages()));
    } catch (const Error& error) {
      Say(console_, fmt::format("the system message stays as it was: {}", error.what()));
      return;
    }
  }
  dialogue_.system = text;
  Say(console_, text.empty() ? "no system message" : "the system message is set");
}

// Files that the session did not write stay as they are.
void ChatSession::Save(const std::string& name) {
  const std::string path = ExpandHome(name);
  std::error_code ignored;
  if (path.empty()) {
    Say(console_, "/save needs the name of a file");
  } else if (dialogue_.empty()) {
    Say(console_, "nothing has been said yet");
  } else if (std::filesystem::exists(path, ignored) && !saved_.contains(path)) {
    Say(console_, fmt::format("{} exists; choose another name", path));
  } else {
    try {
      const OpenMode mode = saved_.contains(path) ? OpenMode::kReplace : OpenMode::kCreate;
      WriteTextFile(path, Dump(dialogue_.Record(plain_)) + "\n", mode);
      saved_.insert(path);
      const std::string reading =
          "; train reads it with --chat_template " + ShellQuote(template_file_);
      Say(console_, fmt::format("saved in {}{}", path, template_file_.empty() ? "" : reading));
    } catch (const Error& error) {
      Say(console_, error.what());
    }
  }
}

bool ChatSession::Answer(const std::string& message) {
  if (guard_.requested()) ContinueAfterSignal();  // it came too late for the answer before
  dialogue_.Ask(message);
  const PromptText prompt = FittingPrompt();
  if (prompt.text.empty()) return true;
  const GenerateReport report = model_.Generate(prompt, options_, [&](std::string_view piece) {
    console_.out << Shown(console_, piece) << std::flush;
    // False ends the answer: a closed pipe, or Ctrl+C.
    return console_.out.good() && !guard_.requested();
  });
  console_.out << std::endl;
  // Also an answer that was cut: the model continues from the text that the user has seen.
  dialogue_.Answer(report.text);
  if (!console_.out) return false;
  SayWhereCut(report, model_.context_length(), console_);
  if (guard_.requested()) ContinueAfterSignal();
  return true;
}

void ChatSession::ContinueAfterSignal() {
  // SIGTERM and SIGHUP mean the program; Ctrl+C of a person means the answer.
  if (guard_.signal() != SIGINT || !reader_->person()) throw Interrupted();
  guard_.Rearm();
}

PromptText ChatSession::Prompt() const {
  if (plain_) return {.text = dialogue_.Text()};
  return model_.PromptOfChat(Dump(dialogue_.Messages()));
}

// The prompt for the answer to the last question. Where the conversation leaves no room for an
// answer, its oldest turns are left out. An empty text when the last question alone is too long,
// which is then taken back.
PromptText ChatSession::FittingPrompt() {
  const std::int64_t context = model_.context_length();
  // A quarter of the context at most is kept free: with max_new_tokens as large as the context,
  // every turn would be left out.
  const std::int64_t room = std::clamp<std::int64_t>(options_.max_new_tokens, 1, context / 4);
  std::int64_t left_out = 0;
  for (;; ++left_out) {
    PromptText prompt = Prompt();
    const std::int64_t tokens = model_.CountTokens(prompt.text, prompt.add_special_tokens);
    const bool fits = tokens + room <= context;
    // Rendered again each time: the tokens of a turn depend on the template.
    if (!fits && dialogue_.LeaveOutOldest()) continue;
    // Between the two, the answer is short, and SayWhereCut says so.
    if (!fits && tokens >= context) {
      dialogue_.TakeBack();
      Say(console_, fmt::format("message has {} tokens, the context holds {}; shorten the message",
                                tokens, context));
      return {};
    }
    if (left_out > 0) {
      Say(console_,
          fmt::format("the conversation outgrew the context of {} tokens: {} of its oldest "
                      "turns {} left out",
                      context, left_out, left_out == 1 ? "is" : "are"));
    }
    return prompt;
  }
}

}  // namespace qlora
