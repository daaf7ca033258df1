// Queued transfers: their order among ops and other transfers, and what the host may touch when.
// The model of a GPU runs them late, early and by chance.
#include <gmock/gmock.h>

#include <numeric>
#include <optional>

#include "backend/cuda/cuda_backend.h"
#include "cuda/test_device.h"
#include "qlora/communicator.h"

namespace qlora {
namespace {

constexpr std::int64_t kN = 1024;  // floats: one page

class CudaTransfer : public testing::TestWithParam<std::uint64_t> {
 protected:
  static std::vector<float> Values(float first) {
    std::vector<float> values(kN);
    std::iota(values.begin(), values.end(), first);
    return values;
  }
  // Page i of the host's memory, and of the device's.
  float* Host(std::int64_t i) { return reinterpret_cast<float*>(host_.data()) + i * kN; }
  MatrixView OnDevice(std::int64_t i) {
    return {device_.data() + i * kN * std::int64_t{sizeof(float)}, DType::kF32, 1, kN, kN};
  }
  std::vector<float> HostValues(std::int64_t i) { return {Host(i), Host(i) + kN}; }
  void Fill(std::int64_t i, float first) {
    const std::vector<float> values = Values(first);
    std::copy(values.begin(), values.end(), Host(i));
  }
  void QueueUpload(std::int64_t host, std::int64_t device) {
    memory().QueueUpload(Host(host), OnDevice(device).data, kBytes);
  }
  void QueueDownload(std::int64_t device, std::int64_t host) {
    memory().QueueDownload(OnDevice(device).data, Host(host), kBytes);
  }
  void OpsWaitFor(std::int64_t device) { memory().OpsWaitFor(OnDevice(device).data, kBytes); }
  void WaitFor(std::int64_t host) { memory().WaitFor(Host(host), kBytes); }
  Memory& memory() const { return backend_->memory(); }

  static constexpr std::size_t kBytes = kN * sizeof(float);
  Context context_{1};
  std::unique_ptr<Backend> backend_ =
      cuda::MakeBackendOn(context_, testing_util::MakeTestDevice(GetParam()), DType::kF32);
  Arena device_{4 * kBytes, backend_->memory()};
  Arena host_{4 * kBytes, backend_->memory().staging()};
};

TEST_P(CudaTransfer, TheMemoryOfTheHostIsZeroFilledAndAligned) {
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(host_.data()) % 256, 0u);
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(HostValues(i), std::vector<float>(kN)) << i;
  Upload(memory().staging(), std::span<const float>(Values(3)), MakeView(Host(2), 1, kN));
  EXPECT_EQ(Download<float>(memory().staging(), MakeView(Host(2), 1, kN)), Values(3));
  Zero(memory().staging(), MakeView(Host(2), 1, kN));
  EXPECT_EQ(HostValues(2), std::vector<float>(kN));
}

// Ranks exchange what ops have made, and later ops find what has come.
TEST_P(CudaTransfer, SlicesForRanksAreBehindOps) {
  const std::unique_ptr<Communicator> rank = MakeOneProcess();
  Upload(memory(), std::span<const float>(Values(1)), OnDevice(0));
  backend_->Run(ops::Copy{OnDevice(0), OnDevice(1)});
  backend_->Run(ops::Add{OnDevice(1), OnDevice(0)});
  const Communicator::Bytes leaving = BytesIn(OnDevice(0));
  const Communicator::MutableBytes arriving = BytesIn(OnDevice(2));
  rank->Exchange(std::span(&leaving, 1), std::span(&arriving, 1), memory());
  backend_->Run(ops::Add{OnDevice(2), OnDevice(1)});
  std::vector<float> expected = Values(1);
  for (float& value : expected) value *= 3;
  EXPECT_EQ(Download<float>(memory(), OnDevice(1)), expected);
}

TEST_P(CudaTransfer, RunBehindOpsAndOneAnother) {
  Fill(0, 1);
  QueueUpload(0, 0);
  OpsWaitFor(0);
  backend_->Run(ops::Copy{OnDevice(0), OnDevice(1)});
  QueueDownload(1, 1);
  OpsWaitFor(1);
  Upload(memory(), std::span<const float>(Values(100)), OnDevice(1));
  QueueDownload(1, 2);
  OpsWaitFor(1);
  Zero(memory(), OnDevice(1));
  QueueDownload(1, 3);
  OpsWaitFor(1);
  backend_->Run(ops::Copy{OnDevice(0), OnDevice(1)});
  WaitFor(3);
  EXPECT_EQ(HostValues(1), Values(1));
  EXPECT_EQ(HostValues(2), Values(100));
  EXPECT_EQ(HostValues(3), std::vector<float>(kN));
  EXPECT_EQ(Download<float>(memory(), OnDevice(1)), Values(1));
}

// Ops go on beside a transfer, and the host waits for it alone.
TEST_P(CudaTransfer, RunBesideOps) {
  Fill(0, 1);
  QueueUpload(0, 0);
  Upload(memory(), std::span<const float>(Values(5)), OnDevice(1));
  backend_->Run(ops::Copy{OnDevice(1), OnDevice(2)});
  EXPECT_EQ(Download<float>(memory(), OnDevice(2)), Values(5));
  const std::optional<std::int64_t> waits = testing_util::Waits();
  WaitFor(0);
  // The model had not run the upload, unless it runs as early as it can.
  if (waits && GetParam() == 0) {
    EXPECT_EQ(*testing_util::Waits(), *waits + 1);
  }
  OpsWaitFor(0);
  EXPECT_EQ(Download<float>(memory(), OnDevice(0)), Values(1));
}

// As the input of a layer: out in the forward pass, back in the backward pass, and out again in the
// next forward pass, while the host touches none of it.
TEST_P(CudaTransfer, BytesGoOutAndBackWithoutTheHost) {
  Upload(memory(), std::span<const float>(Values(5)), OnDevice(0));
  QueueDownload(0, 0);
  OpsWaitFor(0);
  Zero(memory(), OnDevice(0));
  QueueUpload(0, 1);
  Upload(memory(), std::span<const float>(Values(6)), OnDevice(0));
  QueueDownload(0, 0);
  OpsWaitFor(1);
  EXPECT_EQ(Download<float>(memory(), OnDevice(1)), Values(5));
  WaitFor(0);
  EXPECT_EQ(HostValues(0), Values(6));
}

// Two places in turn, of which one is computed from while the other is filled; what was computed
// goes out beside the next.
TEST_P(CudaTransfer, TwoPlacesAreFilledInTurn) {
  constexpr std::int64_t kParts = 4;
  for (std::int64_t i = 0; i < kParts; ++i) Fill(i, static_cast<float>(10 * i));
  Upload(memory(), std::span<const float>(Values(1)), OnDevice(2));
  const auto fetch = [&](std::int64_t i) {
    if (i < kParts) QueueUpload(i, i % 2);
  };
  fetch(0);
  for (std::int64_t i = 0; i < kParts; ++i) {
    fetch(i + 1);
    OpsWaitFor(i % 2);
    backend_->Run(ops::Add{OnDevice(2), OnDevice(i % 2)});
    QueueDownload(i % 2, i);
  }
  WaitFor(kParts - 1);
  for (std::int64_t i = 0; i < kParts; ++i) {
    std::vector<float> expected = Values(static_cast<float>(10 * i));
    for (std::int64_t n = 0; n < kN; ++n) expected[n] += static_cast<float>(n + 1);
    EXPECT_EQ(HostValues(i), expected) << i;
  }
}

// One place is filled from memory that is locked, and then from memory that is not.
TEST_P(CudaTransfer, LockedAndPageableMemoryKeepTheirOrder) {
  if (!testing_util::Waits()) GTEST_SKIP() << "the system of a GPU locks what it likes";
  const testing_util::LockedLimit limit(0);
  Arena pageable(kBytes, memory().staging());
  auto* const values = reinterpret_cast<float*>(pageable.data());
  std::fill_n(values, kN, 8.0f);
  Fill(0, 1);
  QueueUpload(0, 0);
  memory().QueueUpload(values, OnDevice(0).data, kBytes);
  OpsWaitFor(0);
  EXPECT_EQ(Download<float>(memory(), OnDevice(0)), std::vector<float>(kN, 8.0f));
  WaitFor(0);
  EXPECT_EQ(Download<float>(memory(), OnDevice(0)), std::vector<float>(kN, 8.0f));
}

TEST_P(CudaTransfer, TheHostMayWriteAgainAfterAWait) {
  for (std::int64_t i = 0; i < 4; ++i) {
    WaitFor(0);
    Fill(0, static_cast<float>(10 * i));
    QueueUpload(0, i);
    OpsWaitFor(i);
  }
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Download<float>(memory(), OnDevice(i)), Values(static_cast<float>(10 * i))) << i;
  }
}

// What the host frees while a transfer is queued is freed behind it.
TEST_P(CudaTransfer, FreeingWaits) {
  {
    Arena once(kBytes, memory().staging());
    auto* const values = reinterpret_cast<float*>(once.data());
    std::fill_n(values, kN, 8.0f);
    memory().QueueUpload(values, OnDevice(0).data, kBytes);
  }
  OpsWaitFor(0);
  EXPECT_EQ(Download<float>(memory(), OnDevice(0)), std::vector<float>(kN, 8.0f));
}

TEST_P(CudaTransfer, TooMuchIsAnErrorThatLeavesTheRestInOrder) {
  try {
    Arena arena(std::size_t{1} << 46, memory().staging());
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
  }
  Fill(0, 1);
  QueueUpload(0, 0);
  OpsWaitFor(0);
  EXPECT_EQ(Download<float>(memory(), OnDevice(0)), Values(1));
}

INSTANTIATE_TEST_SUITE_P(Orders, CudaTransfer, testing::Values(0, 1, 7));

}  // namespace
}  // namespace qlora
