// TensorBoard event files: records of the TFRecord format, each an Event message of
// tensorflow/core/util/event.proto with scalars of summary.proto.
//
//   record   u64 length, u32 masked CRC-32C of these 8 bytes, the message, u32 masked CRC-32C of it
//   Event    1 wall_time double, 2 step int64, 3 file_version string, 5 summary, 7 session_log
//   Summary  1 value (repeated): 1 tag string, 2 simple_value float
//   SessionLog  1 status enum (START = 1)
//
// Integers are little-endian; a masked CRC c is rotate_right(c, 15) + 0xa282ead8.
#ifndef QLORA_LOG_TENSORBOARD_H_
#define QLORA_LOG_TENSORBOARD_H_

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "base/file.h"
#include "log/log_files.h"

namespace qlora {

// CRC-32C (Castagnoli, polynomial 0x1edc6f41 reflected).
std::uint32_t Crc32c(std::string_view bytes);

class TensorboardLog : public LogSink {
 public:
  // Starts a new event file in `dir`. TensorBoard ignores events of later steps than `step` in
  // older files of the folder.
  TensorboardLog(const std::filesystem::path& dir, std::int64_t step);

  // Numbers and flags of steps as train/<name>, of evaluations as eval/<name without eval_>.
  void Write(LogKind kind, const LogFields& fields) override;

 private:
  void WriteRecord(std::string_view event);

  std::filesystem::path path_;
  Stream file_;
};

}  // namespace qlora

#endif  // QLORA_LOG_TENSORBOARD_H_
