#!/usr/bin/env python3
"""Compiles the CUDA kernels for each architecture and reads the machine code: a kernel that spills
registers, uses local memory, needs more registers than a block of its size may have, or calls a slow
subroutine of the compiler is an error. Needs nvcc, no GPU.

  scripts/check_kernels.py [--nvcc PATH] [--arch 90] [--verbose]     architectures: 80 90 120
"""
import argparse
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Attributes in the sections .nv.info of a cubin.
FRAME_SIZE, LEAST_STACK, REGISTERS, MOST_THREADS = 0x11, 0x12, 0x2F, 0x05
# Loads and stores of local memory: the low 9 bits of an instruction, since sm_70.
LOCAL_LOAD, LOCAL_STORE = 0x183, 0x187
# Divisions of 64-bit integers, and shuffles whose lanes the compiler could not prove to meet.
SLOW_CALLS = ("_div_s64", "_div_u64", "_rem_s64", "_rem_u64", "shflsync", "votesync")


class Cubin:
    """The sections and symbols of an ELF file."""

    def __init__(self, data):
        self.data = data
        start, = struct.unpack_from("<Q", data, 0x28)
        size, count, names = struct.unpack_from("<HHH", data, 0x3A)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
        self.sections = {self.text(headers[names][4] + h[0]): (h[4], h[5]) for h in headers}
        table = next(h for h in headers if self.text(headers[names][4] + h[0]) == ".symtab")
        strings = headers[table[6]][4]
        self.symbols = [
            self.text(strings + struct.unpack_from("<I", data, table[4] + i * 24)[0])
            for i in range(table[5] // 24)
        ]

    def text(self, at):
        return self.data[at:self.data.index(b"\0", at)].decode()

    def attributes(self):
        """{kernel: {attribute: value}}"""
        kernels = {}
        for name, (at, length) in self.sections.items():
            if not name.startswith(".nv.info"):
                continue
            end = at + length
            while at < end:
                form, attribute, value = struct.unpack_from("<BBH", self.data, at)
                at += 4
                if form != 4:
                    continue
                words = struct.unpack_from("<%dI" % (value // 4), self.data, at)
                at += value
                if name == ".nv.info" and attribute in (FRAME_SIZE, LEAST_STACK, REGISTERS):
                    kernels.setdefault(self.symbols[words[0]], {})[attribute] = words[1]
                elif attribute == MOST_THREADS:
                    threads = words[0] * words[1] * words[2]
                    kernels.setdefault(name[len(".nv.info."):], {})[attribute] = threads
        return kernels

    def instructions(self, kernel):
        at, length = self.sections[".text." + kernel]
        return [struct.unpack_from("<Q", self.data, at + i)[0] & 0x1FF for i in range(0, length, 16)]


def check(cubin, arch, verbose):
    errors = []
    for name, found in sorted(cubin.attributes().items()):
        if ".text." + name not in cubin.sections:  # a subroutine within a kernel
            continue
        opcodes = cubin.instructions(name)
        local = sum(op in (LOCAL_LOAD, LOCAL_STORE) for op in opcodes)
        registers = (found.get(REGISTERS, 0) + 7) // 8 * 8
        threads = found.get(MOST_THREADS, 1024)
        if verbose:
            print("sm_%s %4d registers %5d threads %6d instructions  %s" %
                  (arch, registers, threads, len(opcodes), name))
        if found.get(FRAME_SIZE) or found.get(LEAST_STACK) or local:
            errors.append("%s: %d bytes of stack, %d accesses of local memory" %
                          (name, found.get(FRAME_SIZE, 0), local))
        if registers * threads > 65536:
            errors.append("%s: %d registers for %d threads" % (name, registers, threads))
    for symbol in cubin.symbols:
        if any(call in symbol for call in SLOW_CALLS):
            errors.append("calls " + symbol)
    return errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--arch", action="append")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("sources", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    sources = args.sources or sorted((ROOT / "src/backend/cuda").glob("*.cu"))
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for arch in args.arch or ["80", "90", "120"]:
            for source in sources:
                out = pathlib.Path(folder) / "kernels.cubin"
                subprocess.run([
                    args.nvcc, "-std=c++20", "-O3", "-cubin", "-arch=sm_" + arch, "-Werror",
                    "all-warnings", "-Xptxas", "-warn-spills,-warn-lmem-usage", "-I",
                    ROOT / "include", "-I", ROOT / "src", "-o", out, source
                ], check=True)
                for error in check(Cubin(out.read_bytes()), arch, args.verbose):
                    print("sm_%s %s: %s" % (arch, source.name, error))
                    failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
