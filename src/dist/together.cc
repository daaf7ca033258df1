#include "dist/together.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <new>
#include <span>

#include "base/check.h"
#include "base/file.h"

namespace qlora {
namespace {

// How work ended on a rank.
struct Outcome {
  std::int32_t code = 0;  // 0: well; otherwise an ErrorCode
  std::string message;
};

// One character for the code, then the message.
std::string ToText(const Outcome& outcome) {
  return static_cast<char>('0' + outcome.code) + outcome.message;
}

Outcome FromText(const Communicator& communicator, int rank, const std::string& text) {
  const int code = text.empty() ? -1 : text[0] - '0';
  if (code < 0 || code > static_cast<int>(ErrorCode::kOutOfMemory)) {
    ThrowSent(communicator, rank, "no outcome of its work");
  }
  return {code, text.substr(1)};
}

bool IsSame(const Outcome& a, const Outcome& b) {
  return a.code == b.code && a.message == b.message;
}

// Throws where a rank failed. The error of the lowest rank counts: those of others often follow
// from the same cause.
void ThrowIfFailed(Communicator& communicator, const Outcome& mine) {
  std::vector<Outcome> all;
  for (const std::string& text : GatherTexts(communicator, ToText(mine))) {
    all.push_back(FromText(communicator, static_cast<int>(all.size()), text));
  }
  const auto failed = std::find_if(all.begin(), all.end(),
                                   [](const Outcome& outcome) { return outcome.code != 0; });
  if (failed == all.end()) return;
  communicator.EndTogether();
  const auto code = static_cast<ErrorCode>(failed->code);
  const auto alike = std::count_if(
      all.begin(), all.end(), [&](const Outcome& outcome) { return IsSame(outcome, *failed); });
  // The names of hosts are gathered here, where they are needed, by all ranks.
  const std::vector<std::string> hosts = GatherTexts(communicator, communicator.host());
  if (alike == communicator.size()) throw Error(code, failed->message);
  const int rank = static_cast<int>(failed - all.begin());
  const std::string others = alike > 1 ? fmt::format(", and {} others", alike - 1) : std::string();
  throw Error(code, fmt::format("{}{}: {}", NameOfRank(communicator, rank, hosts[rank]), others,
                                failed->message));
}

// Errors: Runtime for a text that no rank sends.
void CheckText(const Communicator& communicator, int rank, std::uint64_t bytes) {
  if (bytes <= kMostTextOfRank) return;
  ThrowSent(communicator, rank, fmt::format("a text of {} bytes", bytes));
}

}  // namespace

void ThrowSent(const Communicator& communicator, int rank, std::string_view what) {
  ThrowRuntime(
      "rank {} of {} sent {} to rank {}: its release of qlora is another one, or the connection is "
      "damaged",
      rank, communicator.size(), what, communicator.rank());
}

std::vector<std::string> GatherTexts(Communicator& communicator, std::string_view mine) {
  const std::uint64_t size = mine.size();
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(communicator.size()));
  communicator.Gather(std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)));
  const std::vector<Communicator::Bytes> to_each(sizes.size(), std::as_bytes(std::span(mine)));
  std::vector<std::string> texts;
  std::vector<Communicator::MutableBytes> from_each;
  for (const std::uint64_t bytes : sizes) {
    CheckText(communicator, static_cast<int>(texts.size()), bytes);
    texts.emplace_back(bytes, ' ');
  }
  for (std::string& text : texts) from_each.push_back(std::as_writable_bytes(std::span(text)));
  communicator.Exchange(to_each, from_each);
  return texts;
}

std::string BroadcastText(Communicator& communicator, std::string_view of_root) {
  std::uint64_t size = of_root.size();
  communicator.Broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
  CheckText(communicator, 0, size);
  std::string text = communicator.is_root() ? std::string(of_root) : std::string(size, ' ');
  communicator.Broadcast(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

// Memory grows with what has come, not with what a rank says will come. An empty part is the last.
std::string BroadcastLongText(Communicator& communicator, std::string_view of_root,
                              std::uint64_t part) {
  if (communicator.is_alone()) return std::string(of_root);
  std::string text;
  for (;;) {
    const std::string_view rest = of_root.substr(std::min(text.size(), of_root.size()));
    const std::string next = BroadcastText(communicator, rest.substr(0, part));
    if (next.empty()) return text;
    text += next;
  }
}

bool AnyRank(Communicator& communicator, bool mine) {
  if (communicator.is_alone()) return mine;
  const auto flag = static_cast<std::byte>(mine);
  std::vector<std::byte> all(static_cast<std::size_t>(communicator.size()));
  communicator.Gather(std::span(&flag, 1), all);
  return std::any_of(all.begin(), all.end(), [](std::byte one) { return one != std::byte{0}; });
}

void SendAndReceive(Communicator& communicator, Memory& memory, int to, Communicator::Bytes data,
                    int from, Communicator::MutableBytes received) {
  if (to < 0 && from < 0) return;
  std::vector<Communicator::Bytes> to_each(static_cast<std::size_t>(communicator.size()));
  std::vector<Communicator::MutableBytes> from_each(to_each.size());
  if (to >= 0) to_each[to] = data;
  if (from >= 0) from_each[from] = received;
  communicator.Exchange(to_each, from_each, memory);
}

std::string NameOfRank(const Communicator& communicator, int rank, std::string_view host) {
  return fmt::format("rank {} of {} ({})", rank, communicator.size(), host);
}

void Together(Communicator& communicator, const std::function<void()>& work) {
  if (communicator.is_alone()) return work();
  Outcome mine;
  try {
    work();
  } catch (const Error& error) {
    mine = {static_cast<std::int32_t>(error.code()), error.what()};
  } catch (const std::bad_alloc&) {
    mine = {static_cast<std::int32_t>(ErrorCode::kOutOfMemory), "memory ran out"};
  } catch (const std::filesystem::filesystem_error& error) {
    mine = {static_cast<std::int32_t>(CodeOf(error)),
            fmt::format("{}: {}", error.path1().string(), error.code().message())};
  } catch (const std::exception& error) {
    mine = {static_cast<std::int32_t>(ErrorCode::kRuntime),
            fmt::format("unexpected: {}; this is a defect of qlora", error.what())};
  }
  ThrowIfFailed(communicator, mine);
}

}  // namespace qlora
