"""Memory of well-known models in 4 bits, worked out from their shapes."""

from ._core import bits_per_weight

_VOCAB = 32000
# name, hidden size, intermediate size, layers, features of k_proj and v_proj
_LLAMAS = (
    ("7B", 4096, 11008, 32, 4096),
    ("13B", 5120, 13824, 40, 5120),
    ("33B", 6656, 17920, 60, 6656),
    ("65B", 8192, 22016, 80, 8192),
    ("70B", 8192, 28672, 80, 1024),
)


def memory_table(block_size=64, double_quant=True):
    """memory_table(block_size: int = 64, double_quant: bool = True) -> list[dict]

    LLaMA 7B, 13B, 33B, 65B and Llama 2 70B with 4-bit linears, embeddings and head in 16 bits,
    norms in 32: a list of dicts, sizes in bytes.
    """
    bits = bits_per_weight(block_size, "double_bnb" if double_quant else "float32")
    rows = []
    for name, hidden, intermediate, layers, kv_features in _LLAMAS:
        linears = layers * (2 * hidden * hidden + 2 * hidden * kv_features
                            + 3 * hidden * intermediate)
        tables = 2 * _VOCAB * hidden  # embeddings and head
        norms = (2 * layers + 1) * hidden
        parameters = linears + tables + norms
        linear_bytes = bits / 8 * linears
        total_bytes = linear_bytes + float(2 * tables + 4 * norms)
        rows.append({
            "model": name, "parameters": parameters, "linear_parameters": linears,
            "fp16_bytes": 2.0 * parameters, "fp32_bytes": 4.0 * parameters,
            "linear_bytes": linear_bytes, "total_bytes": total_bytes,
            "ratio": 2.0 * parameters / total_bytes})
    return rows
