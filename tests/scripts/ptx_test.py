#!/usr/bin/env python3
"""The instructions that src/backend/cuda/gpu.h writes as text, as nvcc places their operands: the
model of a GPU has them in C++, and machine code alone does not show which value is where.

  ptx_test.py NVCC SOURCE_DIR ARCHITECTURE
"""
import pathlib
import re
import subprocess
import sys
import tempfile

# The instructions of each kernel of tests/cuda/ptx_samples.cu. in0, in1 ... are the parameters of
# the kernel, out0, out1 ... the values that it stores, one after the other.
EXPECTED = {
    "NarrowSample": ["cvt.rn.bf16.f32 out0, in0"],
    "WidenSample": ["cvt.f32.f16 out0, in0"],
    # The first operand goes to the upper half.
    "PackSample": ["cvt.rn.bf16x2.f32 out0, in1, in0"],
    "LoadMatrixSample": ["ldmatrix.sync.aligned.m8n8.x4.shared.b16 {out0,out1,out2,out3}, [shared]"],
    "LoadTransposedSample": [
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {out0,out1,out2,out3}, [shared]"],
    "MultiplySample": [
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {out0,out1,out2,out3}, "
        "{in0,in1,in2,in3}, {in4,in5}, {in6,in7,in8,in9}"],
    "CopySample": ["cp.async.cg.shared.global [shared], [in0], 16, in1", "cp.async.commit_group",
                   "cp.async.wait_group 1"],
}
REGISTER = r"%[a-z]+\d+"


def instructions(body):
    """The inline instructions of a kernel, with names in the place of registers."""
    inputs = {register: "in" + number for register, number in
              re.findall(r"ld\.param\.\w+\s+(%s), \[\w+_param_(\d+)\]" % REGISTER, body)}
    inputs.update({register: "shared" for register in
                   re.findall(r"mov\.u32\s+(%s), [a-z]+;" % REGISTER, body)})
    stores = re.findall(r"st\.global\.\w+\s+\[%s(?:\+(\d+))?\], (%s)" % (REGISTER, REGISTER), body)
    outputs = {register: "out%d" % (int(place or 0) // 4) for place, register in stores}
    found = []
    for text in re.findall(r"// begin inline asm\s+(.*?);\s+// end inline asm", body, re.S):
        name, _, operands = text.partition(" ")
        # The result comes first; it may be in the register of an input.
        result, rest = re.match(r"(\{[^}]*\}|[^,]*)(.*)", operands).groups()
        named = lambda part, names: re.sub(REGISTER, lambda r: names.get(r[0], r[0]), part)
        operands = named(result, {**inputs, **outputs}) + named(rest, {**outputs, **inputs})
        found.append((name + " " + operands).strip())
    return found


def main():
    nvcc, source, architecture = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "samples.ptx")
        subprocess.run(
            [nvcc, "-ptx", "-std=c++20", "-arch=sm_" + architecture, "-I%s/include" % source,
             "-I%s/src" % source, source + "/tests/cuda/ptx_samples.cu", "-o", path], check=True)
        ptx = path.read_text()
    kernels = re.findall(r"\.entry (\w+)\((.*?)\n\}", ptx, re.S)
    found = {name: instructions(body) for name, body in kernels}
    for name in sorted(EXPECTED.keys() | found.keys()):
        if found.get(name) != EXPECTED.get(name):
            print("%s: expected %s, found %s" % (name, EXPECTED.get(name), found.get(name)))
    return found != EXPECTED


if __name__ == "__main__":
    sys.exit(main())
