"""A frozen 4-bit weight for PyTorch: NF4 codes with doubly quantized scales, decoded to bfloat16
before each product, on a GPU by a kernel in Triton."""
import torch
import torch.nn.functional as F

from nf4_tables import BLOCK, NESTED_BLOCK, NF4, midpoints, signed_map

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton:
    @triton.jit
    def decode_blocks(packed, scales, nested, offset, code, scale_map, out, blocks,
                      BLOCKS: tl.constexpr):
        """BLOCKS blocks of 64 values: value = code[4 bits] * (map[8 bits] * nested + offset)."""
        block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
        inside = block < blocks
        index = tl.load(scales + block, mask=inside, other=0).to(tl.int32)
        outer = tl.load(nested + block // 256, mask=inside, other=0.0)
        scale = tl.load(scale_map + index) * outer + offset
        wide = block[:, None].to(tl.int64)
        pair = tl.load(packed + wide * 32 + tl.arange(0, 32)[None, :], mask=inside[:, None],
                       other=0).to(tl.int32)
        first = tl.load(code + (pair >> 4)) * scale[:, None]
        second = tl.load(code + (pair & 15)) * scale[:, None]
        values = tl.interleave(first, second).to(tl.bfloat16)
        tl.store(out + wide * 64 + tl.arange(0, 64)[None, :], values, mask=inside[:, None])


def nearest(x, table):
    """The index of the nearest value of an ascending table, as uint8."""
    bounds = torch.tensor(midpoints(table), device=x.device)
    return torch.bucketize(x, bounds, out_int32=True).to(torch.uint8)


class Nf4Weight:
    def __init__(self, dense):
        """dense: (O, I) with I a multiple of 64."""
        self.shape = dense.shape
        self.code = torch.tensor(NF4, device=dense.device)
        self.scale_map = torch.tensor(signed_map(), device=dense.device)
        blocks = dense.float().reshape(-1, BLOCK)
        absmax = blocks.abs().amax(1)
        codes = nearest(blocks / absmax.clamp(min=1e-12)[:, None], NF4).flatten()
        self.packed = codes[0::2] * 16 + codes[1::2]
        self.offset = absmax.mean().item()
        rest = F.pad(absmax - self.offset, (0, -len(absmax) % NESTED_BLOCK))
        rest = rest.reshape(-1, NESTED_BLOCK)
        self.nested = rest.abs().amax(1)
        indices = nearest(rest / self.nested.clamp(min=1e-12)[:, None], signed_map())
        self.scales = indices.flatten()[:len(absmax)].contiguous()

    def decode(self):
        if triton is None or not self.packed.is_cuda:
            return self.decode_by_torch()
        out = torch.empty(self.shape, dtype=torch.bfloat16, device=self.packed.device)
        blocks = len(self.scales)
        decode_blocks[(triton.cdiv(blocks, 32),)](self.packed, self.scales, self.nested, self.offset,
                                                  self.code, self.scale_map, out, blocks, BLOCKS=32)
        return out

    def decode_by_torch(self):
        nested = self.nested.repeat_interleave(NESTED_BLOCK)[:len(self.scales)]
        scale = self.scale_map[self.scales.long()] * nested + self.offset
        pair = self.packed.long()
        values = torch.stack([self.code[pair // 16], self.code[pair % 16]], 1).reshape(-1, BLOCK)
        return (values * scale[:, None]).to(torch.bfloat16).view(self.shape)

    def __call__(self, x):
        return Product.apply(x, self)


class Product(torch.autograd.Function):
    """y = x W^T and dx = dy W, with W decoded again in both."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return F.linear(x, weight.decode())

    @staticmethod
    def backward(ctx, dy):
        return dy @ ctx.weight.decode(), None


def check_kernel(device):
    """Both decoders give the same weight but for the rounding of a scale. Odd shapes on purpose."""
    weight = Nf4Weight(torch.randn(37, 3 * BLOCK, device=device))
    torch.testing.assert_close(weight.decode(), weight.decode_by_torch(), rtol=1e-2, atol=1e-6)
