#include "step/window_sums.h"

#include <span>

#include "base/index_range.h"

namespace qlora {
namespace {

// The values of the micro-batches that a replica has computed.
std::span<double> OfReplica(std::vector<double>& values, const WindowSplit& window, int replica) {
  const IndexRange mine = window.MicroBatchesOfReplica(replica);
  const std::int64_t width = std::ssize(values) / window.micro_batches;
  return std::span(values).subspan(mine.begin * width, mine.size() * width);
}

}  // namespace

void ShareValues(Communicator& communicator, const RankPlace& place, const WindowSplit& window,
                 std::vector<double>& values) {
  if (place.ranks() == 1) return;
  const int last = place.stages - 1;
  std::vector<Communicator::Bytes> to_each(static_cast<std::size_t>(place.ranks()));
  std::vector<Communicator::MutableBytes> from_each(to_each.size());
  for (int replica = 0; replica < window.replicas; ++replica) {
    from_each[place.RankOf(replica, last)] =
        std::as_writable_bytes(OfReplica(values, window, replica));
  }
  if (place.stage() == last) {
    to_each.assign(to_each.size(), std::as_bytes(OfReplica(values, window, place.replica())));
    from_each[place.rank] = {};  // in its place already
  }
  communicator.Exchange(to_each, from_each);
}

}  // namespace qlora
