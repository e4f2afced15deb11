"""Whatever stands in a config.json, it is read or refused with a message; never a traceback."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_llama

from pytest_cannlm.errors import BadInputError, UnsupportedModelError
from pytest_cannlm.models.config import DecoderConfig, decoder_config
from pytest_cannlm.models.families import FAMILIES

BASE = json.loads((tiny_llama() / "config.json").read_text())
ROPE_KEYS = (
    "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "partial_rotary_factor",
    "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
)  # fmt: skip
KEYS = (
    *BASE, "head_dim", "layer_types", "max_window_layers", "num_experts", "partial_rotary_factor", "dtype",
    "quantization_config", "rope_parameters", "sliding_window", "text_config", "use_sliding_window",
    "original_max_position_embeddings",
)  # fmt: skip
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.floats(allow_nan=True)
    | st.sampled_from(["yarn", "default", "linear", "1e6", "", "full_attention", 10**400, 1e300, 5e-324])
)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.sampled_from(ROPE_KEYS), scalars, max_size=6)


@settings(max_examples=500)
@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(KEYS), values, max_size=5))
def test_a_configuration_is_read_or_refused(family, changes):
    data = BASE | {"model_type": family, "architectures": [FAMILIES[family].architecture]} | changes
    try:
        config = decoder_config(data, file=Path("config.json"))
    except (BadInputError, UnsupportedModelError):
        return
    assert isinstance(config, DecoderConfig)
    assert config.rope.inverse_frequencies().shape == (config.rope.rotary_dim // 2,)


@settings(max_examples=500)
@given(
    st.dictionaries(st.sampled_from(ROPE_KEYS), st.floats(0, 1e9) | scalars, max_size=8).map(
        lambda rope: {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512} | rope
    )
)
def test_any_yarn_has_frequencies_or_is_refused(rope):
    changes = {"rope_scaling": rope, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    try:
        config = decoder_config(BASE | changes, file=Path("config.json"))
    except (BadInputError, UnsupportedModelError):
        return
    assert config.rope.inverse_frequencies().size
