#include "machine/card_choice.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <vector>

#include "base/check.h"

namespace qlora {
namespace {

// The cards of the driver, which are /dev/nvidia0 ...; a container may see some of them.
int CardsOfSystem() {
  int cards = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    constexpr std::string_view kName = "nvidia";
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kName) || name.size() == kName.size()) continue;
    if (name.find_first_not_of("0123456789", kName.size()) == std::string::npos) ++cards;
  }
  return cards;
}

}  // namespace

std::string CardOf(int rank, int ranks, const std::optional<std::string>& visible, int cards) {
  std::vector<std::string> all;
  if (visible) {
    std::istringstream list(*visible);
    for (std::string card; std::getline(list, card, ',');) all.push_back(card);
    if (all.size() == 1) return all[0];
  } else {
    for (int card = 0; card < cards; ++card) all.push_back(std::to_string(card));
  }
  if (ranks > std::ssize(all) && !all.empty()) {
    ThrowInvalidInput("device cuda: a host has {} cards and {} ranks; start one rank for each card",
                      all.size(), ranks);
  }
  return all.empty() ? visible.value_or("") : all[rank];
}

void ChooseCard(const Communicator& communicator) {
  constexpr const char* kVariable = "CUDA_VISIBLE_DEVICES";
  const char* set = std::getenv(kVariable);
  const std::optional<std::string> visible =
      set != nullptr ? std::optional<std::string>(set) : std::nullopt;
  const std::string mine =
      CardOf(communicator.local_rank(), communicator.local_size(), visible, CardsOfSystem());
  if (!mine.empty()) setenv(kVariable, mine.c_str(), 1);
}

}  // namespace qlora
