"""Configurations of published models, as far as sizes go, written by hand from what is known of them."""

from typing import Any, Final

LLAMA_8B: Final[dict[str, Any]] = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
}
LLAMA_8B_4BIT: Final[dict[str, Any]] = {**LLAMA_8B, "quantization": {"group_size": 64, "bits": 4}}

QWEN25_7B: Final[dict[str, Any]] = {
    "model_type": "qwen2",
    "torch_dtype": "bfloat16",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "intermediate_size": 18_944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "vocab_size": 152_064,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": False,
}

# Every fourth of 48 layers attends; the others keep a state.
QWEN3_NEXT_80B: Final[dict[str, Any]] = {
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "intermediate_size": 5120,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 512,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000_000.0,
    "partial_rotary_factor": 0.25,
    "vocab_size": 151_936,
    "max_position_embeddings": 262_144,
    "tie_word_embeddings": False,
}

# 64 layers of which 16 attend, each with 4 KiB a token: the hybrid that is quoted with 64 KiB a token.
HYBRID_64_LAYERS: Final[dict[str, Any]] = {
    **QWEN3_NEXT_80B,
    "num_hidden_layers": 64,
    "num_key_value_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}

GEMMA3_27B: Final[dict[str, Any]] = {
    "model_type": "gemma3_text",
    "torch_dtype": "bfloat16",
    "hidden_size": 5376,
    "num_hidden_layers": 62,
    "intermediate_size": 21_504,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "query_pre_attn_scalar": 168,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "rms_norm_eps": 1e-6,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
}

DEEPSEEK_V3: Final[dict[str, Any]] = {
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "intermediate_size": 18_432,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "vocab_size": 129_280,
    "max_position_embeddings": 163_840,
}

# Windows of 128 in every second layer; experts in four bits with a scale for each 32 numbers.
GPT_OSS_20B: Final[dict[str, Any]] = {
    "model_type": "gpt_oss",
    "torch_dtype": "bfloat16",
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000,
    "vocab_size": 201_088,
    "max_position_embeddings": 131_072,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    },
}
