#include "base/arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "qlora/error.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

TEST(Arena, IsZeroFilled) {
  Arena arena(100000);
  ASSERT_EQ(arena.bytes(), 100000u);
  for (std::size_t i = 0; i < arena.bytes(); i += 997) EXPECT_EQ(arena.data()[i], std::byte{0});
}

TEST(Arena, EmptyOwnsNothing) {
  Arena arena(0);
  EXPECT_EQ(arena.data(), nullptr);
  EXPECT_EQ(Arena().bytes(), 0u);
}

TEST(Arena, MovesItsMapping) {
  Arena a(4096);
  a.data()[7] = std::byte{42};
  Arena b = std::move(a);
  EXPECT_EQ(b.data()[7], std::byte{42});
  Arena c(8192);
  c = std::move(b);
  EXPECT_EQ(c.bytes(), 4096u);
  EXPECT_EQ(c.data()[7], std::byte{42});
}

TEST(Arena, AFileBackedArenaLeavesNoFileBehind) {
  const TemporaryFolder folder;
  const std::string directory = folder.path();
  {
    Arena arena(1 << 20, directory);
    arena.data()[(1 << 20) - 1] = std::byte{1};
    EXPECT_EQ(arena.data()[0], std::byte{0});
    EXPECT_TRUE(std::filesystem::is_empty(directory));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory));
}

TEST(Arena, SaysWhatCannotBeReserved) {
  try {
    Arena arena(4096, "/nonexistent/directory");
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kRuntime);
    EXPECT_NE(std::string(e.what()).find("/nonexistent/directory"), std::string::npos);
  }
  try {
    Arena arena(std::size_t{1} << 60);
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory);
  }
}

TEST(Carver, PlansWhatItLaterHandsOut) {
  MatrixView a;
  MatrixView b;
  const auto layout = [&](Carver& carver) {
    a = carver.Matrix(DType::kBF16, 3, 5);
    b = carver.Matrix(DType::kF32, 7, 9);
    carver.Matrix(DType::kF32, 0, 9);
  };
  Carver plan;
  layout(plan);
  EXPECT_EQ(a.data, nullptr);
  EXPECT_EQ(plan.bytes(), 64u + 256u);  // 30 and 252 bytes, rounded up to 64

  Arena arena(plan.bytes());
  Carver carver(arena);
  layout(carver);
  EXPECT_EQ(carver.bytes(), plan.bytes());
  EXPECT_EQ(a.data, arena.data());
  EXPECT_EQ(b.data, arena.data() + 64);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data) % 64, 0u);
  EXPECT_EQ(b.rows, 7);
  EXPECT_EQ(b.cols, 9);
  EXPECT_EQ(b.stride, 9);
  EXPECT_EQ(b.dtype, DType::kF32);
}

}  // namespace
}  // namespace qlora
