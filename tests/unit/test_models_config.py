"""config.json in all its spellings becomes one DecoderConfig, or is refused by name."""

import json
from pathlib import Path

import pytest
from samples import samples_dir
from tiny import tiny_copy, tiny_llama

from pytest_cannlm.errors import BadInputError, UnsupportedModelError
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.config import decoder_config
from pytest_cannlm.models.families import FAMILIES
from pytest_cannlm.models.rope import Rope
from pytest_cannlm.models.tensors import expected_shapes, parameter_count

FILE = Path("model/config.json")
OLD = json.loads((tiny_llama() / "config.json").read_text())


def changed(*without, **values):
    return {key: value for key, value in (OLD | values).items() if key not in without}


def new_style():
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    return changed("rope_theta", "rope_scaling", "torch_dtype", rope_parameters=rope, dtype="bfloat16")


def test_reads_the_old_spelling():
    config = decoder_config(OLD, file=FILE)
    assert (config.layers, config.hidden_size, config.intermediate_size) == (2, 128, 256)
    assert (config.heads, config.kv_heads, config.head_dim, config.vocab_size) == (4, 2, 32, 512)
    assert (config.rope, config.rms_norm_eps, config.tie_word_embeddings) == (Rope(10000.0, 32), 1e-5, True)
    assert (config.bos_token_id, config.pad_token_id, config.eos_token_ids) == (1, 0, (2,))
    assert config.torch_dtype == "bfloat16"


def test_old_and_new_spelling_mean_the_same():
    assert decoder_config(new_style(), file=FILE) == decoder_config(OLD, file=FILE)


@pytest.mark.parametrize("scaling", [None, {"type": "default"}, {"rope_type": "default", "factor": 1.0}])
def test_absent_rope_scaling_in_all_its_forms(scaling):
    assert decoder_config(changed(rope_scaling=scaling), file=FILE).rope.theta == 10000.0


def test_a_number_written_as_text_keeps_its_value():
    assert decoder_config(changed(rope_theta="1e6"), file=FILE).rope.theta == 1_000_000.0


def test_rope_theta_has_no_default():
    with pytest.raises(BadInputError, match="no safe default") as caught:
        decoder_config(changed("rope_theta"), file=FILE)
    assert caught.value.field == "rope_theta"


def test_unknown_fields_are_kept_by_name():
    assert decoder_config(changed(brand_new="x"), file=FILE).unknown_fields == ("brand_new",)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "rope_theta / rope_parameters.rope_theta"),
        ({"dtype": "float16"}, "dtype / torch_dtype"),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "default"}},
            "rope_scaling.rope_type / rope_scaling.type",
        ),
    ],
)
def test_contradictions_are_refused(values, field):
    with pytest.raises(BadInputError, match="twice with different values") as caught:
        decoder_config(changed(**values), file=FILE)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": "glm4"}, "norms behind attention"),
        ({"model_type": "chatglm"}, "Hugging Face folder"),
        ({"model_type": "qwen3_moe"}, "mixture of experts"),
        ({"model_type": "qwen2_5_vl"}, "takes images"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"mlp_bias": True}, "MLP bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "made-up"}}, "made-up"),
        ({"rope_scaling": {"factor": 2.0}}, "RoPE factor"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "RoPE per kind of layer"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"sliding_window": 4096}, "sliding window"),
        ({"sliding_window": 4096, "use_sliding_window": True}, "sliding window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"quantization_config": {"quant_method": "gptq"}}, "already quantized"),
        ({"text_config": {"hidden_size": 64}}, "multimodal"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_name(values, word):
    with pytest.raises(UnsupportedModelError) as caught:
        decoder_config(changed(**values), file=FILE)
    assert word in str(caught.value)
    assert caught.value.file == str(FILE)


def test_a_sliding_window_that_is_switched_off_is_fine():
    assert decoder_config(changed(sliding_window=4096, use_sliding_window=False), file=FILE).layers == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", "many"),
        ("hidden_size", None),
        ("num_hidden_layers", True),
        ("num_hidden_layers", 2.5),
        ("num_key_value_heads", 3),
        ("num_attention_heads", 5),
        ("head_dim", 31),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", "nan"),
        ("rope_theta", True),
        ("rope_scaling", "linear"),
        ("tie_word_embeddings", "yes"),
        ("model_type", None),
        ("model_type", 7),
        ("bos_token_id", [1, 2]),
        ("torch_dtype", 16),
    ],
)
def test_nonsense_is_refused(field, value):
    with pytest.raises(BadInputError) as caught:
        decoder_config(changed(**{field: value}), file=FILE)
    assert caught.value.file == str(FILE)


# More than one end-of-text id.


def test_end_of_text_ids_are_the_union_of_all_sources():
    config = decoder_config(OLD, file=FILE, generation={"eos_token_id": [2, 0]}, tokenizer_eos=7)
    assert config.eos_token_ids == (0, 2, 7)
    assert config.eos_sources == (
        ("config.json", (2,)),
        ("generation_config.json", (2, 0)),
        ("tokenizer_config.json", (7,)),
    )


@pytest.mark.parametrize("value", [[5], [5, 6, 7], 5])
def test_one_source_is_enough(value):
    config = decoder_config(changed(eos_token_id=None), file=FILE, generation={"eos_token_id": value})
    assert config.eos_token_ids == (tuple(value) if isinstance(value, list) else (value,))


@pytest.mark.parametrize("value", ["<|im_end|>", "2", 512, -1, [2, None], 2.0, True])
def test_nonsense_end_of_text_ids_are_refused(value):
    with pytest.raises(BadInputError) as caught:
        decoder_config(changed(eos_token_id=value), file=FILE)
    assert caught.value.field == "eos_token_id"


def test_no_end_of_text_id_at_all_is_refused():
    with pytest.raises(BadInputError, match="would never stop"):
        decoder_config(changed("eos_token_id"), file=FILE)


def test_a_tokenizers_end_of_text_id_outside_the_vocabulary_is_refused():
    with pytest.raises(BadInputError, match="outside the vocabulary") as caught:
        decoder_config(OLD, file=FILE, tokenizer_eos=600)
    assert "tokenizer_config.json" in str(caught.value.file)


@pytest.mark.parametrize(("value", "expected"), [(-1, None), (None, None), (3, 3)])
def test_padding_token(value, expected):
    assert decoder_config(changed(pad_token_id=value), file=FILE).pad_token_id == expected


def test_the_begin_token_may_stand_in_the_generation_config():
    config = decoder_config(changed("bos_token_id"), file=FILE, generation={"bos_token_id": 1})
    assert config.bos_token_id == 1


# Families.


def of_family(family, **values):
    named = {"model_type": family, "architectures": [FAMILIES[family].architecture]}
    return decoder_config(changed("attention_bias") | named | values, file=FILE)


@pytest.mark.parametrize(
    ("family", "values", "qkv_bias", "output_bias", "qk_norm"),
    [
        ("llama", {}, False, False, False),
        ("llama", {"attention_bias": True}, True, True, False),
        ("qwen2", {}, True, False, False),
        ("qwen2", {"attention_bias": False}, True, False, False),
        ("qwen3", {}, False, False, True),
        ("qwen3", {"attention_bias": True}, True, True, True),
        ("glm", {}, True, False, False),
        ("glm", {"attention_bias": False}, False, False, False),
    ],
)
def test_what_sets_the_families_apart(family, values, qkv_bias, output_bias, qk_norm):
    config = of_family(family, **values)
    assert (config.qkv_bias, config.output_bias, config.qk_norm) == (qkv_bias, output_bias, qk_norm)
    shapes = expected_shapes(config)
    assert ("model.layers.1.self_attn.v_proj.bias" in shapes) is qkv_bias
    assert ("model.layers.1.self_attn.o_proj.bias" in shapes) is output_bias
    assert ("model.layers.1.self_attn.k_norm.weight" in shapes) is qk_norm


def test_an_attention_bias_is_true_or_false():
    with pytest.raises(BadInputError):
        of_family("qwen3", attention_bias="yes")


@pytest.mark.parametrize(("family", "head_dim"), [("llama", 32), ("qwen2", 32), ("qwen3", 128), ("glm", 128)])
def test_head_size_where_the_file_does_not_say(family, head_dim):
    assert of_family(family).head_dim == head_dim
    assert of_family(family, head_dim=64).head_dim == 64


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    "values",
    [
        {"sliding_window": 4096},
        {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 1},
        {"sliding_window": None, "use_sliding_window": True},
        {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 2},
    ],
)
def test_a_sliding_window_that_no_layer_uses_is_fine(family, values):
    assert of_family(family, **values).layers == 2


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("more", [{}, {"max_window_layers": 1}])
def test_a_sliding_window_in_use_is_refused(family, more):
    with pytest.raises(UnsupportedModelError, match="sliding window"):
        of_family(family, sliding_window=4096, use_sliding_window=True, **more)


def test_yarn_extends_the_positions():
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert of_family("qwen2", rope_scaling=yarn).max_position_embeddings == 8192
    assert of_family("qwen2", rope_scaling=yarn, max_position_embeddings=10000).max_position_embeddings == 10000


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("Qwen2.5-7B-Instruct", (28, 3584, 18944, 28, 4, 128), 7_615_616_512),
        ("Qwen3-8B", (36, 4096, 12288, 32, 8, 128), 8_190_735_360),
        ("Qwen3-4B-Thinking-2507", (36, 2560, 9728, 32, 8, 128), 4_022_468_096),
        ("Qwen3-0.6B-think-sft", (28, 1024, 3072, 16, 8, 128), 596_049_920),
    ],
)
def test_published_configurations(name, shape, parameters):
    folder = samples_dir()
    if folder is None:
        pytest.skip("needs the sample files")
    file = folder / "hf_configs" / name / "config.json"
    c = decoder_config(json.loads(file.read_text()), file=file)
    assert (c.layers, c.hidden_size, c.intermediate_size, c.heads, c.kv_heads, c.head_dim) == shape
    assert parameter_count(c) == parameters
    assert (c.bos_token_id, c.eos_token_ids) == (151643, (151645,))


def test_a_published_configuration_of_another_family_is_refused_by_name():
    folder = samples_dir()
    if folder is None:
        pytest.skip("needs the sample files")
    file = folder / "hf_configs" / "Qwen3.5-9B" / "config.json"
    with pytest.raises(UnsupportedModelError, match=r"qwen3_5.*takes images"):
        decoder_config(json.loads(file.read_text()), file=file)


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\x00"])
def test_a_damaged_config_is_told(tmp_path, text):
    folder = tiny_copy(tmp_path / "model")
    (folder / "config.json").write_text(text)
    with pytest.raises(BadInputError) as caught:
        open_checkpoint(folder)
    assert "config.json" in str(caught.value.file)
