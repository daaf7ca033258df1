"""Products of llama.cpp's CPU kernels, through the C functions of its shared libraries (ggml)."""
import array
import ctypes
import glob
import os
import random
import re
import sys
import time

# As in `qlora-bench nf4-matmul`: products of fewer rows take their weights from memory.
MANY_ROWS = 128
BEYOND_CACHES = 256 << 20
FLOPS_PER_TIMING = 4e9

BLOCK, BLOCK_BYTES = 32, 18  # values; float16 scale and codes of value i (low) and i + 16 (high)
BITS = 8 * BLOCK_BYTES / BLOCK
TYPES = {  # ggml's number of the type, what the codes stand for
    "q4_0": (2, range(-8, 8)),
    "iq4_nl": (20, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)),
}
F32, CPU = 0, 0  # of ggml's types of tensors and of devices
WARNING, ERROR = 3, 4  # of ggml's levels of messages

POINTER, TEXT, SIZE, INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", SIZE), ("mem_buffer", POINTER), ("no_alloc", ctypes.c_bool)]


FUNCTIONS = {  # result, arguments
    "ggml_version": (TEXT,),
    "ggml_log_set": (None, POINTER, POINTER),
    "ggml_init": (POINTER, InitParams),
    "ggml_free": (None, POINTER),
    "ggml_tensor_overhead": (SIZE,),
    "ggml_graph_overhead_custom": (SIZE, SIZE, ctypes.c_bool),
    "ggml_new_tensor_2d": (POINTER, POINTER, INT, ctypes.c_int64, ctypes.c_int64),
    "ggml_get_data": (POINTER, POINTER),
    "ggml_mul_mat": (POINTER, POINTER, POINTER, POINTER),
    "ggml_new_graph_custom": (POINTER, POINTER, SIZE, ctypes.c_bool),
    "ggml_build_forward_expand": (None, POINTER, POINTER),
    "ggml_backend_load_all_from_path": (None, TEXT),
    "ggml_backend_dev_by_type": (POINTER, INT),
    "ggml_backend_dev_init": (POINTER, POINTER, TEXT),
    "ggml_backend_dev_backend_reg": (POINTER, POINTER),
    "ggml_backend_dev_supports_op": (ctypes.c_bool, POINTER, POINTER),
    "ggml_backend_dev_buffer_type": (POINTER, POINTER),
    "ggml_backend_reg_get_proc_address": (POINTER, POINTER, TEXT),
    "ggml_backend_buft_name": (TEXT, POINTER),
    "ggml_backend_alloc_ctx_tensors_from_buft": (POINTER, POINTER, POINTER),
    "ggml_backend_buffer_free": (None, POINTER),
    "ggml_backend_tensor_set": (None, POINTER, TEXT, SIZE, SIZE),
    "ggml_backend_tensor_get": (None, POINTER, POINTER, SIZE, SIZE),
    "ggml_backend_graph_compute": (INT, POINTER, POINTER),
}


@ctypes.CFUNCTYPE(None, INT, TEXT, POINTER)
def print_warnings(level, text, _):
    if level in (WARNING, ERROR):
        sys.stderr.write(text.decode(errors="replace"))


class Ggml:
    """The CPU backend whose library ggml chooses for this processor, as llama.cpp does."""

    def __init__(self, folder, threads):
        found = glob.glob(os.path.join(glob.escape(folder), "libggml.*so"))
        if not found:
            sys.exit(f"{folder}: no libggml.*so there; run `npm install --ignore-scripts` in "
                     "tests/interop, or name the folder with --ggml")
        library = ctypes.CDLL(os.path.abspath(found[0]))
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)
        self.log_set(print_warnings, None)
        self.backend_load_all_from_path(folder.encode())
        self.device = self.backend_dev_by_type(CPU)
        if not self.device:
            sys.exit(f"{folder}: no libggml-cpu-*.so there that runs on this processor")
        with open("/proc/self/maps") as maps:
            self.kernels = re.search(r"libggml-cpu\S*", maps.read()).group()
        self.backend = self.backend_dev_init(self.device, None)
        self.of_backend("ggml_backend_set_n_threads", None, POINTER, INT)(self.backend, threads)
        types = self.of_backend("ggml_backend_dev_get_extra_bufts", ctypes.POINTER(POINTER),
                                POINTER)(self.device)
        names = []
        while types[len(names)]:
            names.append(self.backend_buft_name(types[len(names)]).decode())
        if "CPU_REPACK" not in names:
            sys.exit(f"{self.kernels}: expected the buffer type CPU_REPACK, found {names}")
        self.repack = types[names.index("CPU_REPACK")]

    def of_backend(self, name, *prototype):
        registered = self.backend_dev_backend_reg(self.device)
        address = self.backend_reg_get_proc_address(registered, name.encode())
        if not address:
            sys.exit(f"{self.kernels}: has no {name}")
        return ctypes.CFUNCTYPE(*prototype)(address)

    def context(self, tensors, nodes=0):
        size = self.tensor_overhead() * (tensors + nodes)
        return self.init(InitParams(size + self.graph_overhead_custom(nodes, False), None, True))


class Weights:
    """W (N, K) of one type in ggml's interleaved layout; for few rows as many copies as leave the
    caches. Activations are integers that ggml's 8-bit blocks hold exactly: products are known."""

    def __init__(self, ggml, name, N, K, few_rows):
        self.ggml, self.name, self.N, self.K = ggml, name, N, K
        kind, self.levels = TYPES[name]
        self.bytes = N * K // BLOCK * BLOCK_BYTES
        rng = random.Random(1)
        # Prime periods, so that rows differ; the scale is 2^-10.
        blocks = b"".join(b"\x00\x14" + rng.randbytes(16) for _ in range(4099))
        self.data = (blocks * (self.bytes // len(blocks) + 1))[:self.bytes]
        self.x = [float(v) for _ in range(61) for v in [127] + rng.choices(range(-127, 128), k=31)]
        copies = 1 + (BEYOND_CACHES // self.bytes if few_rows else 0)
        context = ggml.context(copies)
        self.copies = [ggml.new_tensor_2d(context, kind, K, N) for _ in range(copies)]
        self.contexts, self.buffers = [], []
        self.allocate(context, ggml.repack)
        if not self.interleaved():
            sys.exit(f"{ggml.kernels}: interleaves no {name} weights of {N}x{K}")
        for copy in self.copies:
            ggml.backend_tensor_set(copy, self.data, 0, self.bytes)
        if ctypes.string_at(ggml.get_data(self.copies[-1]), self.bytes) == self.data:
            sys.exit(f"ggml: {name} weights of {N}x{K} were copied, not interleaved")

    def allocate(self, context, buffer_type):
        self.contexts.append(context)
        self.buffers.append(self.ggml.backend_alloc_ctx_tensors_from_buft(context, buffer_type))
        if not self.buffers[-1]:
            sys.exit(f"ggml: no memory for products with weights of {self.N}x{self.K}")

    def interleaved(self):
        """Whether ggml has kernels for these weights in the buffer type that they are in."""
        context = self.ggml.context(2)
        x = self.ggml.new_tensor_2d(context, F32, self.K, 1)
        product = self.ggml.mul_mat(context, self.copies[0], x)
        supported = self.ggml.backend_dev_supports_op(self.ggml.device, product)
        self.ggml.free(context)
        return supported

    def product(self, M):
        """A function that returns the seconds of one y = x W^T, (M, N), repeated in one graph."""
        ggml = self.ggml
        copies = self.copies if M < MANY_ROWS else self.copies[:1]
        calls = max(1, int(FLOPS_PER_TIMING / (2.0 * M * self.N * self.K)))
        context = ggml.context(1, calls + 2)
        x = ggml.new_tensor_2d(context, F32, self.K, M)
        graph = ggml.new_graph_custom(context, calls + 2, False)  # products, or x and copies
        outputs = [ggml.mul_mat(context, copies[i % len(copies)], x) for i in range(calls)]
        for output in outputs:
            ggml.build_forward_expand(graph, output)
        self.allocate(context, ggml.backend_dev_buffer_type(ggml.device))
        values = array.array("f", self.x * (M * self.K // len(self.x) + 1))[:M * self.K].tobytes()
        ggml.backend_tensor_set(x, values, 0, len(values))

        def run():
            start = time.perf_counter()
            status = ggml.backend_graph_compute(ggml.backend, graph)
            seconds = time.perf_counter() - start
            if status != 0:
                sys.exit(f"ggml: a product failed with status {status}")
            return seconds / calls

        run()
        for output in (outputs[0], outputs[-1]):
            for m, n in ((0, 0), (0, self.N - 1), (M - 1, self.N // 2), (M - 1, self.N - 1)):
                self.check(output, m, n)
        return run

    def check(self, output, m, n):
        expected = total = 0.0
        for b in range(self.K // BLOCK):
            at = (n * self.K // BLOCK + b) * BLOCK_BYTES + 2
            codes = self.data[at:at + 16]
            for i, code in enumerate([c & 15 for c in codes] + [c >> 4 for c in codes]):
                x = self.x[(m * self.K + b * BLOCK + i) % len(self.x)]
                term = 2.0**-10 * self.levels[code] * x
                expected, total = expected + term, total + abs(term)
        found = ctypes.c_float()
        self.ggml.backend_tensor_get(output, ctypes.byref(found), 4 * (m * self.N + n), 4)
        # Sums of blocks are exact; only adding them up in float32 rounds.
        if not abs(found.value - expected) <= self.K // BLOCK * 2.0**-24 * total:
            sys.exit(f"ggml: {self.name} {self.N}x{self.K}: y[{m}][{n}] is {found.value}, "
                     f"expected {expected}")

    def free(self):
        for buffer in self.buffers:
            self.ggml.backend_buffer_free(buffer)
        for context in self.contexts:
            self.ggml.free(context)
