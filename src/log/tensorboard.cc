#include "log/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/file.h"
#include "io/json.h"

namespace qlora {
namespace {

static_assert(std::endian::native == std::endian::little);

// The bytes of a number in little-endian order, which is the order of memory by the assertion
// above.
template <typename T>
std::string Fixed(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// The wire format of Protocol Buffers.
enum WireType : std::uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Groups of 7 bits, the lowest first; the top bit of a byte says that more follow.
std::string Varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string Tag(int field, WireType type) {
  return Varint(static_cast<std::uint64_t>(field) << 3 | type);
}
// A field of variable length: a nested message, or a string.
std::string Message(int field, std::string_view bytes) {
  return Tag(field, kBytes) + Varint(bytes.size()) + std::string(bytes);
}

// An Event with the current time. what: its third part, encoded.
std::string Event(std::int64_t step, const std::string& what) {
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return Tag(1, kFixed64) + Fixed(now) + Tag(2, kVarint) +
         Varint(static_cast<std::uint64_t>(step)) + what;
}

std::uint32_t MaskedCrc(std::string_view bytes) {
  return std::rotr(Crc32c(bytes), 15) + 0xa282ead8u;
}

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace

std::uint32_t Crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t crc = i;
      // One byte at a time needs the effect of 8 divisions by the polynomial for each value of a
      // byte.
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
      table[i] = crc;
    }
    return table;
  }();
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 255] ^ crc >> 8;
  return ~crc;
}

TensorboardLog::TensorboardLog(const std::filesystem::path& dir, std::int64_t step) {
  MakeDirectories(dir);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::system_clock::now().time_since_epoch());
  const std::string name =
      fmt::format("events.out.tfevents.{:010d}.{}.{}", seconds.count(), HostName(), getpid());
  std::error_code ignored;
  int number = 0;  // of the logs that this process opened within this second
  do {
    path_ = dir / fmt::format("{}.{}", name, number++);
  } while (std::filesystem::exists(std::filesystem::symlink_status(path_, ignored)));
  file_ = OpenStream(path_, OpenMode::kCreate);
  // The file begins with its version. The start of a session follows, which makes TensorBoard drop
  // the events of later steps that an interrupted run wrote into older files.
  WriteRecord(Event(0, Message(3, "brain.Event:2")));
  const std::string start = Tag(1, kVarint) + Varint(1);
  WriteRecord(Event(step + 1, Message(7, start)));
}

void TensorboardLog::Write(LogKind kind, const LogFields& fields) {
  if (kind == LogKind::kSample) return;
  const std::string prefix = kind == LogKind::kStep ? "train/" : "eval/";
  std::string summary;
  const auto add = [&](std::string_view full, const Json& value) {
    const std::string_view tail = full.starts_with("eval_") ? full.substr(5) : full;
    const float number =
        value.is_boolean() ? static_cast<float>(value.get<bool>()) : value.get<float>();
    summary +=
        Message(1, Message(1, prefix + std::string(tail)) + Tag(2, kFixed32) + Fixed(number));
  };
  for (const auto& [name, value] : fields) {
    if (value.is_object()) {
      for (const auto& [inner, number] : value.items()) add(inner, number);
    } else if (!value.is_array() && std::string_view(name) != "step") {
      add(name, value);
    }
  }
  WriteRecord(Event(fields.front().second.get<std::int64_t>(), Message(5, summary)));
}

void TensorboardLog::WriteRecord(std::string_view event) {
  const std::string length = Fixed(static_cast<std::uint64_t>(event.size()));
  const std::string record =
      length + Fixed(MaskedCrc(length)) + std::string(event) + Fixed(MaskedCrc(event));
  if (std::fwrite(record.data(), 1, record.size(), file_.get()) != record.size() ||
      std::fflush(file_.get()) != 0) {
    ThrowRuntime("cannot write {}: {}", path_.string(), std::strerror(errno));
  }
}

}  // namespace qlora
