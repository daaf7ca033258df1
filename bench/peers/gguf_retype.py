#!/usr/bin/python3
"""Copies a GGUF and replaces the weights of its linears by random ones of another type.

    bench/peers/gguf_retype.py IN OUT q4_0|iq4_nl

For measurements of speed only: the model that comes out says nothing sensible.
"""
import os
import struct
import sys

import numpy as np

TYPES = {"q4_0": 2, "iq4_nl": 20}  # both: blocks of 32 values, a float16 scale and 16 bytes
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
BLOCKS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 8: (32, 34)}  # f32, f16, bf16, q8_0: values, bytes


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        size = self.take("Q")
        self.at += size
        return bytes(self.data[self.at - size:self.at])

    def skip_value(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            item, count = self.take("I"), self.take("Q")
            for _ in range(count):
                self.skip_value(item)
        else:
            self.at += SIZES[kind]


def main():
    if len(sys.argv) != 4 or sys.argv[3] not in TYPES:
        sys.exit(__doc__)
    data = np.memmap(sys.argv[1], np.uint8, "r")
    reader = Reader(data)
    reader.at = 8
    tensors, keys = reader.take("Q"), reader.take("Q")
    for _ in range(keys):
        reader.text()
        reader.skip_value(reader.take("I"))
    head = bytes(data[:reader.at])
    infos = []
    for _ in range(tensors):
        name = reader.text()
        shape = [reader.take("Q") for _ in range(reader.take("I"))]
        infos.append((name, shape, reader.take("I"), reader.take("Q")))
    base = -(-reader.at // 32) * 32

    rng = np.random.default_rng(1)
    blocks = np.zeros((1 << 18, 18), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.002).tobytes(), np.uint8)
    blocks[:, 2:] = rng.integers(0, 256, (len(blocks), 16), np.uint8)
    table, bodies, offset = b"", [], 0
    for name, shape, kind, at in infos:
        count = int(np.prod(shape))
        linear = name.startswith(b"blk.") and len(shape) == 2
        values, size = BLOCKS[kind]
        if linear:
            kind, values, size = TYPES[sys.argv[3]], 32, 18
        total = count // values * size
        table += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(shape))
        table += struct.pack(f"<{len(shape)}QIQ", *shape, kind, offset)
        bodies.append((linear, base + at, total))
        offset += -(-total // 32) * 32
    with open(sys.argv[2], "wb") as out:
        out.write(head + table)
        out.write(b"\0" * (-out.tell() % 32))
        for linear, at, total in bodies:
            if linear:
                for begin in range(0, total, blocks.size):
                    out.write(blocks.reshape(-1)[:min(blocks.size, total - begin)].tobytes())
            else:
                out.write(bytes(data[at:at + total]))
            out.write(b"\0" * (-out.tell() % 32))


if __name__ == "__main__":
    main()
