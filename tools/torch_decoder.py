"""One parametrised decoder in plain torch operations; a model family is a row of data.

Written from the published definitions of Llama, Mistral, Qwen2, Qwen3, Gemma 2, Gemma 3, Phi-3,
SmolLM3, Qwen3-MoE and Mixtral as an oracle for the C++ decoder: short, slow, any dtype (float64 in the golden files),
gradients by autograd. A sequence is run alone, without padding, so nothing can leak into another.

Shapes: T tokens, D hidden_size, H heads, G key/value heads, K head_dim, V vocab_size.
"""

import math
from types import SimpleNamespace

import torch

# What a family does when its config.json is silent (defaults) and what no key of it says.
#   norm_plus_one   RMSNorm multiplies by 1 + w
#   four_norms      the outputs of attention and of the MLP are normalised before they are added
#   embed_scale     embeddings are multiplied by sqrt(hidden_size)
#   fused           qkv_proj and gate_up_proj in place of separate matrices
#   experts         names of the block and of an expert's gate, up and down in a mixture of experts
_GEMMA = {"norm_plus_one": True, "four_norms": True, "embed_scale": True}
FAMILIES = {
    "llama": {"defaults": {"rms_norm_eps": 1e-6, "rope_theta": 1e4}},
    "mistral": {"defaults": {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 4096}},
    "qwen2": {"defaults": {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 4096}},
    "qwen3": {"qk_norm": True,
              "defaults": {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 4096,
                           "head_dim": 128}},
    "gemma2": {**_GEMMA,
               "defaults": {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 4096,
                            "head_dim": 256, "tie_word_embeddings": True,
                            "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0,
                            "final_logit_softcapping": 30.0}},
    "gemma3_text": {**_GEMMA, "qk_norm": True,
                    "defaults": {"rms_norm_eps": 1e-6, "rope_theta": 1e6,
                                 "rope_local_base_freq": 1e4, "sliding_window": 4096,
                                 "sliding_window_pattern": 6, "head_dim": 256,
                                 "tie_word_embeddings": True, "query_pre_attn_scalar": 256}},
    "phi3": {"fused": True, "defaults": {"rms_norm_eps": 1e-5, "rope_theta": 1e4}},
    "smollm3": {"defaults": {"rms_norm_eps": 1e-6, "rope_theta": 2e6, "tie_word_embeddings": True,
                             "no_rope_layer_interval": 4}},
    "qwen3_moe": {"qk_norm": True,
                  "experts": ("mlp", "gate_proj", "up_proj", "down_proj"),
                  "defaults": {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 4096,
                               "norm_topk_prob": False}},
    "mixtral": {"experts": ("block_sparse_moe", "w1", "w3", "w2"),
                "defaults": {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "norm_topk_prob": True}},
}


def read_spec(config):
    """Turns a config.json (dict) into the numbers that forward() needs."""
    family = FAMILIES[config["model_type"]]

    def get(key, fallback=None):
        return config[key] if key in config else family["defaults"].get(key, fallback)

    heads = config["num_attention_heads"]
    head_dim = get("head_dim") or config["hidden_size"] // heads
    return SimpleNamespace(
        model_type=config["model_type"],
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config.get("moe_intermediate_size", config["intermediate_size"]),
        experts=family.get("experts"),
        num_experts=config.get("num_experts", config.get("num_local_experts")),
        num_experts_per_tok=config.get("num_experts_per_tok"),
        norm_topk_prob=get("norm_topk_prob"),
        vocab=config["vocab_size"],
        heads=heads,
        kv_heads=get("num_key_value_heads") or heads,
        head_dim=head_dim,
        eps=get("rms_norm_eps"),
        tied=get("tie_word_embeddings", False),
        attn_scale=(get("query_pre_attn_scalar") or head_dim)**-0.5,
        attn_cap=get("attn_logit_softcapping"),
        final_cap=get("final_logit_softcapping"),
        rotary_dim=int(head_dim * get("partial_rotary_factor", 1.0)),
        rope_theta=get("rope_theta"),
        rope_local_theta=get("rope_local_base_freq"),
        rope_scaling=config.get("rope_scaling"),
        max_positions=config["max_position_embeddings"],
        original_max_positions=config.get("original_max_position_embeddings"),
        windows=[_window(config["model_type"], get, i) for i in range(config["num_hidden_layers"])],
        rotary=[_has_rotary(get, i) for i in range(config["num_hidden_layers"])],
        gelu="gemma" in config["model_type"],
        qk_norm=family.get("qk_norm", False),
        norm_plus_one=family.get("norm_plus_one", False),
        four_norms=family.get("four_norms", False),
        embed_scale=family.get("embed_scale", False),
        fused=family.get("fused", False),
    )


def _window(model_type, get, layer):
    """Number of keys that layer sees, itself included, or None for all."""
    if get("layer_types"):
        sliding = get("layer_types")[layer] == "sliding_attention"
    elif model_type in ("mistral", "mixtral", "phi3"):
        sliding = True
    elif model_type in ("qwen2", "qwen3", "qwen3_moe"):
        sliding = get("use_sliding_window", False) and layer >= get("max_window_layers", 28)
    elif model_type == "gemma2":
        sliding = layer % 2 == 0
    elif model_type == "gemma3_text":
        sliding = (layer + 1) % get("sliding_window_pattern") != 0
    else:
        sliding = False
    return get("sliding_window") if sliding else None


def _has_rotary(get, layer):
    """SmolLM3 leaves out the rotation where no_rope_layers holds 0, else in every 4th layer."""
    if get("no_rope_layers") is not None:
        return bool(get("no_rope_layers")[layer])
    interval = get("no_rope_layer_interval")
    return interval is None or (layer + 1) % interval != 0


def linear_shapes(spec):
    """{linear name within a layer: (out features, in features)}."""
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    d, f = spec.hidden, spec.intermediate
    if spec.fused:
        return {"self_attn.qkv_proj": (q + 2 * kv, d), "self_attn.o_proj": (d, q),
                "mlp.gate_up_proj": (2 * f, d), "mlp.down_proj": (d, f)}
    shapes = {"self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d),
              "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, q)}
    if spec.experts:
        block, gate, up, down = spec.experts
        for e in range(spec.num_experts):
            at = f"{block}.experts.{e}."
            shapes.update({at + gate: (f, d), at + up: (f, d), at + down: (d, f)})
        return shapes
    return {**shapes, "mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f)}


def linear_modules(spec):
    """Module paths of all linears of all layers, e.g. model.layers.0.self_attn.q_proj."""
    return [f"model.layers.{i}.{name}" for i in range(spec.layers) for name in linear_shapes(spec)]


def inverse_frequencies(theta, dim, scaling, spec, tokens):
    """Returns (inverse frequencies float64 [dim/2], factor on cos and sin)."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    inv = theta**-exponents
    kind = (scaling or {}).get("rope_type", (scaling or {}).get("type", "default"))
    if kind == "default":
        return inv, 1.0
    if kind == "linear":
        return inv / scaling["factor"], 1.0
    if kind == "llama3":
        factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = original * inv / (2 * math.pi)
        smooth = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - smooth) * inv / factor + smooth * inv, 1.0
    if kind == "yarn":
        factor = scaling["factor"]
        original = scaling.get("original_max_position_embeddings", spec.max_positions)

        def dimension(rotations):
            return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(dimension(scaling.get("beta_fast", 32))), 0)
        high = min(math.ceil(dimension(scaling.get("beta_slow", 1))), dim - 1)
        steps = torch.arange(dim // 2, dtype=torch.float64)
        ramp = ((steps - low) / max(high - low, 1e-3)).clamp(0, 1)
        attention = scaling.get("attention_factor") or 0.1 * math.log(factor) + 1
        return ramp * inv / factor + (1 - ramp) * inv, attention
    if kind == "longrope":
        original = spec.original_max_positions
        key = "long_factor" if tokens > original else "short_factor"
        stretch = spec.max_positions / original
        attention = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
        return inv / torch.tensor(scaling[key], dtype=torch.float64), attention
    raise ValueError(f"rope type {kind} is not known")


def _rotary_table(theta, scaling, spec, tokens, dtype):
    """cos and sin, each [T, 1, rotary_dim / 2]."""
    inv, factor = inverse_frequencies(theta, spec.rotary_dim, scaling, spec, tokens)
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] * inv
    return (angles.cos() * factor).to(dtype)[:, None], (angles.sin() * factor).to(dtype)[:, None]


def _rotate(x, table):
    """x [T, heads, K]: pairs (i, i + rotary_dim/2) are rotated, the rest passes."""
    cos, sin = table
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def _mask(tokens, window):
    """True where query i may not see key j: j > i, or j <= i - window."""
    i, j = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
    hidden = j > i
    return hidden if window is None else hidden | (j <= i - window)


def forward(spec, weights, ids, adapter=None, scale=0.0):
    """Logits [T, V] of one sequence.

    ids: int [T]. weights: {Hugging Face name: tensor}, all of one dtype. adapter: {module path: (A
    [r, in], B [out, r])}; a linear computes x W^T + bias + scale (x A^T) B^T.
    """
    tokens, adapter = len(ids), adapter or {}

    def linear(x, module):
        y = x @ weights[module + ".weight"].T
        if module + ".bias" in weights:
            y = y + weights[module + ".bias"]
        if module in adapter:
            a, b = adapter[module]
            y = y + scale * (x @ a.T) @ b.T
        return y

    def norm(x, module):
        w = weights[module + ".weight"]
        y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + spec.eps)
        return y * (1 + w if spec.norm_plus_one else w)

    def attention(x, i):
        at = f"model.layers.{i}.self_attn."
        h, g, k = spec.heads, spec.kv_heads, spec.head_dim
        if spec.fused:
            q, key, value = linear(x, at + "qkv_proj").split([h * k, g * k, g * k], dim=-1)
        else:
            q, key, value = (linear(x, at + name) for name in ("q_proj", "k_proj", "v_proj"))
        q, key, value = (t.reshape(tokens, -1, k) for t in (q, key, value))
        if spec.qk_norm:
            q, key = norm(q, at + "q_norm"), norm(key, at + "k_norm")
        if spec.rotary[i]:
            local = spec.rope_local_theta and spec.windows[i]
            table = local_table if local else global_table
            q, key = _rotate(q, table), _rotate(key, table)
        key, value = (t.repeat_interleave(h // g, dim=1) for t in (key, value))
        scores = torch.einsum("ihk,jhk->hij", q, key) * spec.attn_scale
        if spec.attn_cap:
            scores = spec.attn_cap * torch.tanh(scores / spec.attn_cap)
        scores = scores.masked_fill(_mask(tokens, spec.windows[i]), -math.inf)
        mixed = torch.einsum("hij,jhk->ihk", scores.softmax(-1), value)
        return linear(mixed.reshape(tokens, h * k), at + "o_proj")

    def mlp(x, i):
        at = f"model.layers.{i}.mlp."
        if spec.fused:
            gate, up = linear(x, at + "gate_up_proj").chunk(2, dim=-1)
        else:
            gate, up = linear(x, at + "gate_proj"), linear(x, at + "up_proj")
        if spec.gelu:
            cubic = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            act = 0.5 * gate * (1 + torch.tanh(cubic))
        else:
            act = gate * torch.sigmoid(gate)
        return linear(act * up, at + "down_proj")

    def experts(x, i):
        block, gate, up, down = spec.experts
        at = f"model.layers.{i}.{block}."
        p = (x @ weights[at + "gate.weight"].T).softmax(-1)
        p, chosen = p.topk(spec.num_experts_per_tok, dim=-1)  # both [T, k]
        if spec.norm_topk_prob:
            p = p / p.sum(-1, keepdim=True)
        rows = []
        for t in range(tokens):
            row = 0
            for weight, e in zip(p[t], chosen[t].tolist()):
                to = f"{at}experts.{e}."
                g = linear(x[t], to + gate)
                row = row + weight * linear(g * torch.sigmoid(g) * linear(x[t], to + up), to + down)
            rows.append(row)
        return torch.stack(rows)

    hidden = weights["model.embed_tokens.weight"][torch.as_tensor(ids, dtype=torch.long)]
    if spec.embed_scale:
        hidden = hidden * math.sqrt(spec.hidden)
    global_table = _rotary_table(spec.rope_theta, spec.rope_scaling, spec, tokens, hidden.dtype)
    if spec.rope_local_theta:
        local_table = _rotary_table(spec.rope_local_theta, None, spec, tokens, hidden.dtype)
    for i in range(spec.layers):
        at = f"model.layers.{i}."
        out = attention(norm(hidden, at + "input_layernorm"), i)
        if spec.four_norms:
            out = norm(out, at + "post_attention_layernorm")
        hidden = hidden + out
        before = "pre_feedforward_layernorm" if spec.four_norms else "post_attention_layernorm"
        out = (experts if spec.experts else mlp)(norm(hidden, at + before), i)
        if spec.four_norms:
            out = norm(out, at + "post_feedforward_layernorm")
        hidden = hidden + out
    head = "model.embed_tokens.weight" if spec.tied else "lm_head.weight"
    logits = norm(hidden, "model.norm") @ weights[head].T
    return spec.final_cap * torch.tanh(logits / spec.final_cap) if spec.final_cap else logits


def loss_sum(logits, labels):
    """Returns (sum of -log p of the targets, their number).

    Row t predicts labels[t + 1]; a label of -100 is no target; labels[0] never is one.
    """
    targets = torch.as_tensor(labels[1:], dtype=torch.long)
    chosen = targets != -100
    log_p = logits[:-1][chosen].log_softmax(-1)
    return -log_p.gather(1, targets[chosen][:, None]).sum(), int(chosen.sum())
