"""config.json of one tiny random model per family, spelled as the families' own files are.

The sizes are small, and the numbers are chosen so that a decoder that ignores a key, or takes a
default for it, gets different logits: windows are shorter than the sequences, softcaps bend, rope
scalings act on short texts, head_dim is not hidden_size / heads where a family allows it.
"""

_COMMON = {
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 32,
    "initializer_range": 0.02, "intermediate_size": 64, "max_position_embeddings": 128,
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True,
    "vocab_size": 288,
}

_QWEN2 = {
    **_COMMON, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": True,
    "sliding_window": 8, "use_sliding_window": False, "max_window_layers": 2,
}

_QWEN2_BIASES = ("q_proj", "k_proj", "v_proj")

# name: (config, linears that have a bias)
FAMILY_MODELS = {
    "llama3-tiny": ({
        **_COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "head_dim": 16,
        "num_key_value_heads": 1, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0, "tie_word_embeddings": True,
        "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                         "original_max_position_embeddings": 64, "rope_type": "llama3"},
    }, ()),
    "mistral-tiny": ({
        **_COMMON, "architectures": ["MistralForCausalLM"], "model_type": "mistral",
        "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 8, "tie_word_embeddings": False,
    }, ()),
    "qwen2-tiny": (_QWEN2, _QWEN2_BIASES),
    "qwen2-yarn-tiny": ({
        **_QWEN2, "tie_word_embeddings": False, "use_sliding_window": True, "max_window_layers": 1,
        "rope_theta": 10000.0, "max_position_embeddings": 256,
        "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 64, "type": "yarn"},
    }, _QWEN2_BIASES),
    "qwen3-tiny": ({
        **_COMMON, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
        "attention_bias": False, "head_dim": 16, "hidden_act": "silu", "max_window_layers": 2,
        "rms_norm_eps": 0.001, "rope_scaling": None, "rope_theta": 1000000.0,
        "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False,
    }, ()),
    "gemma2-tiny": ({
        **_COMMON, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2",
        "attention_bias": False, "attn_logit_softcapping": 1.5, "cache_implementation": "hybrid",
        "final_logit_softcapping": 4.0, "head_dim": 16, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "num_hidden_layers": 3, "pad_token_id": 0,
        "query_pre_attn_scalar": 24, "rms_norm_eps": 0.001, "rope_theta": 10000.0,
        "sliding_window": 8,
    }, ()),
    "gemma3-tiny": ({
        **_COMMON, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
        "attention_bias": False, "attn_logit_softcapping": None, "cache_implementation": "hybrid",
        "final_logit_softcapping": None, "head_dim": 24, "hidden_activation": "gelu_pytorch_tanh",
        "num_attention_heads": 2, "num_hidden_layers": 6, "num_key_value_heads": 1,
        "pad_token_id": 0, "query_pre_attn_scalar": 24, "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rope_theta": 1000000.0, "sliding_window": 8, "sliding_window_pattern": 6,
    }, ()),
    "phi3-tiny": ({
        **_COMMON, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
        "attention_bias": False, "embd_pdrop": 0.0, "hidden_act": "silu",
        "num_attention_heads": 2, "num_key_value_heads": 1,
        "original_max_position_embeddings": 32, "pad_token_id": 2, "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "rope_scaling": {"long_factor": [1.5, 2.0, 3.0, 4.5, 6.0, 8.0],
                         "short_factor": [1.0, 1.1, 1.25, 1.5, 2.0, 2.75], "type": "longrope"},
        "sliding_window": 16, "tie_word_embeddings": False,
    }, ()),
    "smollm3-tiny": ({
        **_COMMON, "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3",
        "attention_bias": False, "hidden_act": "silu", "layer_types": ["full_attention"] * 4,
        "max_window_layers": 4, "mlp_bias": False, "no_rope_layer_interval": 4,
        "no_rope_layers": [1, 1, 1, 0], "num_hidden_layers": 4, "pad_token_id": 2,
        "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 5000000.0, "sliding_window": None, "tie_word_embeddings": True,
        "use_sliding_window": False,
    }, ()),
    "qwen3moe-tiny": ({
        **_COMMON, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 16, "hidden_act": "silu",
        "mlp_only_layers": [], "moe_intermediate_size": 24, "norm_topk_prob": True,
        "num_experts": 6, "num_experts_per_tok": 3, "output_router_logits": False,
        "rms_norm_eps": 1e-03, "rope_scaling": None, "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
        "use_sliding_window": False, "max_window_layers": 2,
    }, ()),
    "mixtral-tiny": ({
        **_COMMON, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
        "hidden_act": "silu", "intermediate_size": 32, "num_experts_per_tok": 2,
        "num_local_experts": 4, "output_router_logits": False, "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None,
        "tie_word_embeddings": False,
    }, ()),
}
