#!/usr/bin/env python3
"""Reads the machine code of the CUDA kernels that a build has compiled, for every architecture: a
kernel that spills registers, uses local memory, needs more registers than a block of its size may
have, has more instructions than are allowed for it, or calls a slow subroutine of the
compiler is an error. Needs no GPU.

  scripts/check_kernels.py [--verbose] [BUILD]      BUILD: build/release
"""
import argparse
import pathlib
import re
import struct
import sys

CUDA_MACHINE = 190  # e_machine of a cubin
# Instructions that a kernel may have on any architecture: about half more than it has where the
# compiler unrolls as intended. An instruction cache holds 8192, of 16 bytes.
MOST_INSTRUCTIONS = {
    "KeyGradientsKernel": 8192, "QueryGradientKernel": 8192, "ForwardKernel": 8192,
    "JoinPartsKernel": 2560, "FewRowsKernel": 2560, "DecodeKernel": 2048,
    "CrossEntropyKernel": 2560, "UpdateKernel": 2048, "RowNormsKernel": 2560,
    "FloatKeyGradientsKernel": 5120, "FloatQueryGradientKernel": 3584, "FloatForwardKernel": 3328,
    "ColumnDotsKernel": 2304, "RouteBackwardKernel": 2304,
    "GatedActivationBackwardKernel": 1664, "GatedActivationKernel": 1280,
    "RmsNormBackwardKernel": 1664, "RmsNormKernel": 1152, "RopeKernel": 1024,
}
MOST_OF_OTHERS = 1536
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


def plain_name(symbol):
    """The name of a kernel in a mangled symbol, where it ends in Kernel."""
    found = re.search(r"\d([A-Z][A-Za-z]*Kernel)[IE]", symbol)
    return found.group(1) if found else symbol


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
        most = MOST_INSTRUCTIONS.get(plain_name(name), MOST_OF_OTHERS)
        if len(opcodes) > most:
            errors.append("%s: %d instructions, expected at most %d" % (name, len(opcodes), most))
        if registers * threads > 65536:
            errors.append("%s: %d registers for %d threads" % (name, registers, threads))
    for symbol in cubin.symbols:
        if any(call in symbol for call in SLOW_CALLS):
            errors.append("calls " + symbol)
    return errors


def cubins(data):
    """(architecture, machine code) of each ELF file for a GPU within an object file."""
    at = data.find(b"\x7fELF", 1)
    while at >= 0:
        machine, = struct.unpack_from("<H", data, at + 18)
        if machine == CUDA_MACHINE:
            flags, = struct.unpack_from("<I", data, at + 48)
            yield flags >> 8 & 0xFF, Cubin(data[at:])
        at = data.find(b"\x7fELF", at + 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("build", nargs="?", type=pathlib.Path, default="build/release")
    args = parser.parse_args()
    kernels = failed = 0
    names = set()
    for path in sorted(args.build.glob("src/backend/CMakeFiles/*/cuda/*.cu.o")):
        for arch, cubin in cubins(path.read_bytes()):
            kernels += len(cubin.attributes())
            names.update(map(plain_name, cubin.attributes()))
            for error in check(cubin, arch, args.verbose):
                print("sm_%s %s: %s" % (arch, path.name, error))
                failed += 1
    for name in sorted(set(MOST_INSTRUCTIONS) - names):
        print("MOST_INSTRUCTIONS: no kernel is called " + name)
        failed += 1
    print("%d kernels of all architectures, %d errors" % (kernels, failed))
    return 1 if failed or not kernels else 0


if __name__ == "__main__":
    sys.exit(main())
