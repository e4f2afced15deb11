"""A Llama decoder in plain NumPy, written from its definition: the yardstick where torch is not installed."""

import numpy as np


def logits(checkpoint, ids):
    """Float32 logits ``[positions, vocabulary]`` of all positions at once."""
    config = checkpoint.config
    x = np.stack([checkpoint.read("model.embed_tokens.weight", slice(token, token + 1))[0] for token in ids])
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."

        def linear(name, value, prefix=prefix):
            return value @ checkpoint.read(f"{prefix}{name}_proj.weight").T

        normed = rms_norm(x, checkpoint.read(prefix + "input_layernorm.weight"), config)
        q, k, v = (linear(f"self_attn.{name}", normed) for name in "qkv")
        x = x + linear("self_attn.o", attention(q, k, v, config))
        normed = rms_norm(x, checkpoint.read(prefix + "post_attention_layernorm.weight"), config)
        gate = linear("mlp.gate", normed)
        x = x + linear("mlp.down", gate / (1 + np.exp(-gate)) * linear("mlp.up", normed))
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return rms_norm(x, checkpoint.read("model.norm.weight"), config) @ checkpoint.read(head).T


def rms_norm(x, weight, config):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(config.rms_norm_eps)) * weight


def attention(q, k, v, config):
    positions = len(q)
    q, k = (rotate(heads(part, config), config) for part in (q, k))
    k, v = (np.repeat(part, config.heads // config.kv_heads, axis=0) for part in (k, heads(v, config)))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(np.float32(config.head_dim))
    scores = np.where(np.tri(positions, dtype=bool), scores, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = weights / weights.sum(axis=-1, keepdims=True) @ v
    return mixed.swapaxes(0, 1).reshape(positions, -1)


def heads(x, config):
    return x.reshape(len(x), -1, config.head_dim).swapaxes(0, 1)


def rotate(x, config):
    """Rotary embedding, first half of a head paired with the second."""
    frequencies = config.rope.theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    angles = np.arange(x.shape[1])[:, None] * frequencies
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
