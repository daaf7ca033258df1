#include "serve/request_room.h"

#include <fmt/format.h>

#include "base/printable.h"
#include "serve/api_error.h"
#include "serve/request_fields.h"

namespace qlora {

void HeldBytes::Add(std::size_t bytes, const std::string& field, std::string_view remedy) {
  const std::size_t most = room_->most / 2;
  if (bytes_ + bytes > most) {
    RefuseField(field, fmt::format("takes more memory than the {} that a request may hold until it "
                                   "is answered; {}",
                                   FormatBytes(most), remedy));
  }
  if (room_->held.fetch_add(bytes) + bytes > room_->most) {
    room_->held -= bytes;
    throw ApiError(429, "the requests that wait hold too much memory; try again later", "",
                   "queue_full");
  }
  bytes_ += bytes;
}

}  // namespace qlora
