"""What transformers calls our layers' weights."""

# Of a block: our name → theirs. GPT-2's linear layers hold their weights as (in, out).
GPT2_BLOCK = {
    "attention_norm": "ln_1",
    "qkv": "attn.c_attn",
    "project": "attn.c_proj",
    "mlp_norm": "ln_2",
    "widen": "mlp.c_fc",
    "narrow": "mlp.c_proj",
}
GPT2_ENDS = {"token": "transformer.wte", "position": "transformer.wpe", "norm": "transformer.ln_f"}
LLAMA_BLOCK = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "project": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "widen": "mlp.up_proj",
    "narrow": "mlp.down_proj",
}
LLAMA_ENDS = {"token": "model.embed_tokens", "norm": "model.norm"}
