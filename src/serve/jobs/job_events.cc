#include "serve/jobs/job_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/stopwatch.h"
#include "io/json.h"

namespace qlora {
namespace {

constexpr std::int64_t kMaxFileBytes = std::int64_t{64} << 20;

// The whole lines of a text, without their ends.
std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1)) {
    lines.push_back(text.substr(0, end));
  }
  return lines;
}

// Null for a damaged line.
OrderedJson ParseEvent(std::string_view line) {
  OrderedJson event;
  if (TryParseJson(line, event) || !event.is_object()) return nullptr;
  return event;
}

OrderedJson DamagedEvent() {
  return {{"level", "warn"},
          {"message", "the line of this event is damaged"},
          {"type", "message"},
          {"created_at", 0}};
}

std::int64_t StepOf(const OrderedJson& event) {
  const auto data = event.find("data");
  if (data == event.end() || !data->is_object()) return 0;
  const auto step = data->find("step");
  return step != data->end() && step->is_number_integer() ? step->get<std::int64_t>() : 0;
}

}  // namespace

JobEvents::JobEvents(std::filesystem::path path, std::string job_id)
    : path_(std::move(path)), job_id_(std::move(job_id)) {
  if (!Exists(path_)) return;
  const std::string text = ReadTextFile(path_, kMaxFileBytes);
  const std::string_view whole = std::string_view(text).substr(0, text.rfind('\n') + 1);
  if (whole.size() < text.size()) WriteTextFile(path_, whole);
  for (const std::string_view line : LinesOf(whole)) {
    ++size_;
    last_step_ = std::max(last_step_, StepOf(ParseEvent(line)));
  }
}

std::string JobEvents::IdOf(std::int64_t number) const {
  return fmt::format("ftevent-{}-{}", job_id_.substr(job_id_.find('-') + 1), number);
}

void JobEvents::Say(std::string_view level, std::string_view message) {
  Add({{"level", level}, {"message", message}, {"type", "message"}});
}

void JobEvents::AddMetrics(std::string_view message, const OrderedJson& data) {
  Add({{"level", "info"}, {"message", message}, {"type", "metrics"}, {"data", data}});
  last_step_ = data.at("step").get<std::int64_t>();
}

void JobEvents::Add(OrderedJson event) {
  event["created_at"] = SecondsSince1970();
  AppendWhole(path_, FormatJson(event) + "\n");
  ++size_;
}

OrderedJson JobEvents::Page(const PageQuery& query) const {
  const std::string text = Exists(path_) ? ReadTextFile(path_, kMaxFileBytes) : "";
  const std::vector<std::string_view> lines = LinesOf(text);
  const std::int64_t size = std::min(size_, std::ssize(lines));
  const auto number = [size](std::int64_t i) { return size - 1 - i; };
  return PageOf(
      {.size = size,
       .id = [&](std::int64_t i) { return IdOf(number(i)); },
       .item =
           [&](std::int64_t i) {
             OrderedJson event = {{"id", IdOf(number(i))}, {"object", "fine_tuning.job.event"}};
             const OrderedJson kept = ParseEvent(lines[number(i)]);
             event.update(kept.is_object() ? kept : DamagedEvent());
             return event;
           }},
      query);
}

}  // namespace qlora
