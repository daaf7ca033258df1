"""The random weights and tokens of `qlora bench step`, value by value: bench/bench_weights.cc and
bench/bench_step.cc say how they are made, src/base/random.h has the generator."""
import struct

MASK = 0xFFFFFFFF
TEST_PLACE = 6 << 48  # RandomPlace::kTest
COUNT = 65536 - 64  # values of a list that is read over and over
ROW_STEP = 977  # places in it from row to row


def words(seed, place, index):
    """Four words of 32 bits: Philox4x32-10."""
    c = [index & MASK, index >> 32, place & MASK, place >> 32]
    k0, k1 = seed & MASK, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k0, p1 & MASK, p0 >> 32 ^ c[3] ^ k1, p0 & MASK]
        k0, k1 = k0 + 0x9E3779B9 & MASK, k1 + 0xBB67AE85 & MASK
    return c


def to_bfloat16(value):
    """The nearest bfloat16 of a finite float32, to even, as a float."""
    bits, = struct.unpack("<I", struct.pack("<f", value))
    bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def listed_values():
    """The list, in [-1, 1)."""
    drawn = [word for i in range(COUNT // 4) for word in words(1, TEST_PLACE, i)]
    return [to_bfloat16(2 * (word >> 8) * 2.0 ** -24 - 1) for word in drawn]


def token(index, vocab_size):
    w = words(3, TEST_PLACE, index)
    return (w[0] << 32 | w[1]) * vocab_size >> 64


class SeededWeights:
    """Matrices in bfloat16 on a device of PyTorch. All of one shape are equal."""

    def __init__(self, torch, device):
        self.torch = torch
        self.values = torch.tensor(listed_values(), dtype=torch.float32, device=device)

    def matrix(self, rows, cols):
        torch, device = self.torch, self.values.device
        width = torch.tensor(float(cols), dtype=torch.float32, device=device)
        table = (self.values * (1 / width.sqrt())).to(torch.bfloat16)
        made = torch.empty(rows, cols, dtype=torch.bfloat16, device=device)
        column = torch.arange(cols, device=device)
        for begin in range(0, rows, 4096):  # indices take four times the memory of the values
            row = torch.arange(begin, min(rows, begin + 4096), device=device)
            made[row] = table[(row[:, None] * ROW_STEP + column) % COUNT]
        return made
