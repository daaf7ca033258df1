// Work that all ranks do, with one outcome for all of them.
#ifndef QLORA_DIST_TOGETHER_H_
#define QLORA_DIST_TOGETHER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "qlora/communicator.h"
#include "qlora/error.h"

namespace qlora {

// A text that moves between ranks, in bytes, at most: names, options, errors, records of adapters.
inline constexpr std::uint64_t kMostTextOfRank = std::uint64_t{1} << 26;

// What another rank says is no more believed than a file. Errors: Runtime, "rank 3 sent <what>".
[[noreturn]] void ThrowSent(const Communicator& communicator, int rank, std::string_view what);

// Returns the texts of all ranks, in their order. Errors: Runtime when a rank sends more than
// kMostTextOfRank; so does BroadcastText.
std::vector<std::string> GatherTexts(Communicator& communicator, std::string_view mine);
// Returns the text of rank 0.
std::string BroadcastText(Communicator& communicator, std::string_view of_root);
// Returns a text of rank 0 of any length, which moves in parts of at most `part` bytes.
std::string BroadcastLongText(Communicator& communicator, std::string_view of_root,
                              std::uint64_t part = kMostTextOfRank);
// True when it is true on any rank.
bool AnyRank(Communicator& communicator, bool mine);

// Sends to rank `to` and receives from rank `from`, at once, bytes of `memory`; a number below 0:
// not.
void SendAndReceive(Communicator& communicator, Memory& memory, int to, Communicator::Bytes data,
                    int from, Communicator::MutableBytes received);

// "rank 3 (host)", for messages.
std::string NameOfRank(const Communicator& communicator, int rank, std::string_view host);

// Runs work(), which communicates nothing, on every rank, and returns when all are done. Errors:
// where it failed on any rank, every rank throws the same error, which names the ranks unless all
// failed alike; other exceptions than Error leave work() as they are where they appear.
void Together(Communicator& communicator, const std::function<void()>& work);

// Together, with a result.
template <typename Make>
auto MakeTogether(Communicator& communicator, const Make& make) {
  std::optional<decltype(make())> result;
  Together(communicator, [&] { result.emplace(make()); });
  return std::move(*result);
}

}  // namespace qlora

#endif  // QLORA_DIST_TOGETHER_H_
