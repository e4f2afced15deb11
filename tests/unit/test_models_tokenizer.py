"""Text to ids and back, special tokens, BOS, chat templates, and the file form that the engine reads."""

import gzip
import json

import pytest
from samples import samples_dir
from tiny import tiny_copy, tiny_gguf, tiny_llama

from pytest_cannlm.errors import BadInputError, UnsupportedModelError, UsageError
from pytest_cannlm.models.checkpoint import open_checkpoint
from pytest_cannlm.models.tokenizer import Tokenizer, TokenizerSpec

TEXTS = [
    "",
    " leading space",
    "trailing newline\n",
    "emoji 🤯 and 👩\u200d💻",
    "line\r\nbreaks\r\n",
    "12345 digits",
    "naïve café",
    "typed <|im_end|> by a user",
]


@pytest.fixture(scope="module")
def spec():
    return open_checkpoint(tiny_llama()).tokenizer()


@pytest.fixture(scope="module")
def tokenizer(spec):
    return Tokenizer(spec)


def data_of(spec):
    return json.loads(spec.json_text)


def rewritten(spec, change):
    """The tokenizer with a changed tokenizer.json."""
    data = data_of(spec)
    change(data)
    return TokenizerSpec(json.dumps(data), spec.chat_template, spec.bos_token, spec.eos_token, spec.add_bos)


def with_bos(spec, template="{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"):
    return Tokenizer(TokenizerSpec(spec.json_text, template, spec.bos_token, spec.eos_token, add_bos=True))


# Encoding.


@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_survives_the_way_there_and_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


def test_special_token_texts_become_tokens_only_when_asked(tokenizer):
    assert tokenizer.encode("a<|im_end|>")[-1] == tokenizer.special_tokens["<|im_end|>"]
    typed = tokenizer.encode("a<|im_end|>", special=False)
    assert not set(typed) & set(tokenizer.special_tokens.values())


def test_special_tokens_are_left_out_of_decoded_text(tokenizer):
    assert tokenizer.decode(tokenizer.encode("<|im_start|>user<|im_end|>")) == "user"


def test_facts(tokenizer):
    assert tokenizer.vocab_size == 512
    assert tokenizer.special_tokens == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert tokenizer.bos_token_id == 1


def test_token_texts_are_for_display(tokenizer):
    [france] = tokenizer.encode(" France")
    assert tokenizer.token_text(france) == " France"
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert tokenizer.token_text(tokenizer.encode("🤯")[0]) == "\ufffd"


@pytest.mark.parametrize("token", [512, 100_000, -1])
def test_an_id_without_a_token_has_no_text(tokenizer, token):
    assert tokenizer.token_text(token) is None
    assert tokenizer.decode([token]) == ""


def test_truncation_and_padding_in_the_file_do_not_touch_prompts(spec):
    def change(data):
        data["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        data["padding"] = {
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<|endoftext|>",
        }

    cut = rewritten(spec, change)
    text = "The capital of France is Paris and the sun rises in the east."
    assert Tokenizer(cut).encode(text) == Tokenizer(spec).encode(text)
    assert json.loads(cut.engine_json())["truncation"] is None


# BOS: once, wherever it comes from.


def test_bos_is_put_in_front_where_the_model_wants_it(spec):
    assert with_bos(spec).encode("hello") == [1, *Tokenizer(spec).encode("hello")]


def test_bos_is_never_doubled(spec):
    tokenizer = with_bos(spec)
    rendered = tokenizer.render_chat([{"role": "user", "content": "hello"}])
    assert rendered == "<|im_start|>hello"
    assert tokenizer.encode(rendered) == tokenizer.encode("hello")
    assert tokenizer.encode(rendered).count(1) == 1


def test_a_bos_that_the_tokenizer_lacks_is_refused(spec):
    with pytest.raises(BadInputError, match="<s>"):
        Tokenizer.from_json(spec.json_text, bos_token="<s>", add_bos=True)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(("named", "expected"), [(True, True), (False, False), (None, True)])
def test_whether_bos_is_added_is_read_from_config_then_from_the_post_processor(tmp_path, named, expected, nested):
    folder = tiny_copy(tmp_path / "model")
    data = json.loads((folder / "tokenizer.json").read_text())
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    data["post_processor"] = {"type": "Sequence", "processors": [template]} if nested else template
    (folder / "tokenizer.json").write_text(json.dumps(data))
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"add_bos_token": named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert open_checkpoint(folder).tokenizer().add_bos is expected


# Where a folder keeps things.


def test_special_tokens_may_be_objects_or_stand_in_the_map(tmp_path):
    folder = tiny_copy(tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": config.pop("bos_token")}))
    config["eos_token"] = {"__type": "AddedToken", "content": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    spec = open_checkpoint(folder).tokenizer()
    assert (spec.bos_token, spec.eos_token) == ("<|im_start|>", "<|endoftext|>")
    assert open_checkpoint(folder).config.eos_sources[-1] == ("tokenizer_config.json", (0,))


def test_an_end_of_text_token_that_the_tokenizer_lacks_is_refused(tmp_path):
    folder = tiny_copy(tmp_path / "model")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    with pytest.raises(BadInputError, match="</s>"):
        open_checkpoint(folder)


@pytest.mark.parametrize("place", ["chat_template.jinja", "chat_template.json", "list", "none"])
def test_where_the_chat_template_is_looked_for(tmp_path, place):
    folder = tiny_copy(tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    if place == "chat_template.jinja":
        (folder / place).write_text("mine")
    elif place == "chat_template.json":
        (folder / place).write_text(json.dumps({"chat_template": "mine"}))
    elif place == "list":
        entries = [{"name": "tool_use", "template": "other"}, {"name": "default", "template": "mine"}]
        config["chat_template"] = entries
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert open_checkpoint(folder).tokenizer().chat_template == (None if place == "none" else "mine")


def test_a_folder_without_tokenizer_says_so(tmp_path):
    folder = tiny_copy(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadInputError, match=r"no tokenizer\.json"):
        open_checkpoint(folder).tokenizer()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": {"type": "BPE"}}', '{"model": {"type": "Magic"}}'])
def test_a_damaged_tokenizer_is_told(text):
    with pytest.raises(BadInputError, match=r"tokenizer\.json"):
        Tokenizer.from_json(text)


# Chat templates.


def test_the_models_own_template(tokenizer):
    text = tokenizer.render_chat([{"role": "user", "content": " Hi \n"}])
    assert text == "<|im_start|>user\n Hi \n<|im_end|>\n<|im_start|>assistant\n"
    closed = tokenizer.render_chat([{"role": "user", "content": "Hi"}], add_generation_prompt=False)
    assert closed == "<|im_start|>user\nHi<|im_end|>\n"


def rendered(spec, template, messages=({"role": "user", "content": "Hi"},)):
    tokenizer = Tokenizer(TokenizerSpec(spec.json_text, template, spec.bos_token, spec.eos_token, spec.add_bos))
    return tokenizer.render_chat(messages)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi"}]'),
        ("{{ {'a': 'é'} | tojson }}", '{"a": "é"}'),
        ("{{ eos_token }}", "<|im_end|>"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ strftime_now('%Y')[:2] }}", "20"),
        ("{% if tools %}tools{% else %}none{% endif %}", "none"),
    ],
)
def test_the_environment_is_the_one_that_templates_expect(spec, template, expected):
    assert rendered(spec, template) == expected


def test_a_template_can_refuse_messages(spec):
    with pytest.raises(UsageError, match="roles must alternate"):
        rendered(spec, "{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{{ undefined.attribute }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content.missing() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_broken_or_hostile_template_is_an_error(spec, template):
    with pytest.raises(BadInputError) as caught:
        rendered(spec, template)
    assert caught.value.field == "chat_template"


@pytest.mark.parametrize("messages", [[], ["Hi"], [{"role": "user"}], [{"role": "user", "content": None}]])
def test_malformed_messages(tokenizer, messages):
    with pytest.raises(UsageError):
        tokenizer.render_chat(messages)


def test_a_model_without_template_says_what_to_do(spec):
    with pytest.raises(UsageError, match="Give the finished prompt"):
        Tokenizer.from_json(spec.json_text).render_chat([{"role": "user", "content": "Hi"}])


# Streaming.


def test_a_character_over_several_tokens_comes_out_whole(tokenizer):
    stream = tokenizer.stream()
    pieces = [stream.feed(token) for token in tokenizer.encode("a🤯b")]
    assert pieces == ["a", "", "", "", "🤯", "b"]
    assert stream.finish() == ""


def test_an_unfinished_character_is_shown_at_the_end(tokenizer):
    stream = tokenizer.stream()
    assert [stream.feed(token) for token in tokenizer.encode("🤯")[:3]] == ["", "", ""]
    assert stream.finish() == "\ufffd"


def test_special_tokens_do_not_show_while_streaming(tokenizer):
    stream = tokenizer.stream()
    assert [stream.feed(token) for token in tokenizer.encode("a<|im_end|>")] == ["a", ""]


def byte_fallback():
    """A tokenizer.json in the manner of Llama 2: pieces with a space mark, bytes as pieces of their own."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁Hello", "▁world", "!"]
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "vocab": {piece: number for number, piece in enumerate(pieces)},
            "merges": [],
        },
    }


def test_byte_fallback_pieces():
    tokenizer = Tokenizer.from_json(json.dumps(byte_fallback()))
    emoji = [3 + byte for byte in "🤯".encode()]
    ids = [259, 260, *emoji, 261]
    stream = tokenizer.stream()
    assert [stream.feed(token) for token in ids] == ["Hello", " world", "", "", "", "🤯", "!"]
    assert tokenizer.decode(ids) == "Hello world🤯!"


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##", "cleanup": True}])
def test_other_decoders_are_refused_by_name(decoder):
    with pytest.raises(UnsupportedModelError, match=decoder["type"] if decoder else "none"):
        Tokenizer.from_json(json.dumps(byte_fallback() | {"decoder": decoder}))


# The form that the engine reads.


def test_merges_become_texts_and_ids_stay(spec):
    assert isinstance(data_of(spec)["model"]["merges"][0], list)
    text = spec.engine_json()
    merges = json.loads(text)["model"]["merges"]
    assert merges
    assert all(isinstance(merge, str) and merge.count(" ") == 1 for merge in merges)
    assert "ignore_merges" not in json.loads(text)["model"]
    for sample in TEXTS:
        assert Tokenizer.from_json(text).encode(sample) == Tokenizer(spec).encode(sample)


def test_a_file_that_the_engine_reads_already_stays_as_it_is(spec):
    text = spec.engine_json()
    assert TokenizerSpec(text, None, None, None, add_bos=False).engine_json() is text


def test_ignore_merges_is_dropped_where_it_changes_nothing(spec):
    changed = rewritten(spec, lambda data: data["model"].update(ignore_merges=True))
    assert "ignore_merges" not in json.loads(changed.engine_json())["model"]


def test_ignore_merges_that_changes_ids_is_refused(spec):
    def change(data):
        data["model"]["ignore_merges"] = True
        data["model"]["vocab"]["qqq"] = 512

    with pytest.raises(UnsupportedModelError, match="qqq"):
        rewritten(spec, change).engine_json()


def test_a_merge_that_cannot_be_a_text_is_refused(spec):
    def change(data):
        data["model"]["vocab"] |= {"x y": 512, "x yz": 513}
        data["model"]["merges"].append(["x y", "z"])

    with pytest.raises(UnsupportedModelError, match="merge"):
        rewritten(spec, change).engine_json()


@pytest.mark.parametrize("name", ["qwen3", "deepseek_v4"])
def test_real_tokenizers_keep_their_ids(name):
    folder = samples_dir()
    if folder is None:
        pytest.skip("needs the sample files")
    original = gzip.decompress((folder / "tokenizers" / f"{name}.tokenizer.json.gz").read_bytes()).decode()
    before = Tokenizer.from_json(original)
    after = Tokenizer.from_json(before.spec.engine_json())
    assert all(isinstance(merge, str) for merge in json.loads(before.spec.engine_json())["model"]["merges"])
    for text in TEXTS:
        assert after.encode(text) == before.encode(text)
        assert before.decode(before.encode(text, special=False)) == text


# From a GGUF vocabulary.


def test_a_gguf_vocabulary_gives_the_ids_of_the_folder(tmp_path, tokenizer):
    spec = open_checkpoint(tiny_gguf(tmp_path / "model.gguf")).tokenizer()
    ours = Tokenizer(spec)
    assert (spec.bos_token, spec.eos_token, spec.add_bos) == ("<|im_start|>", "<|im_end|>", False)
    assert spec.chat_template == tokenizer.spec.chat_template
    assert ours.special_tokens == tokenizer.special_tokens
    for text in TEXTS:
        assert ours.encode(text) == tokenizer.encode(text)
        assert ours.encode(text, special=False) == tokenizer.encode(text, special=False)


PRE_TOKENIZERS = {
    "smollm": ["ab", " ", "1", "2", "'s", " x"],
    "gpt-2": ["ab", " 12", "'s", " x"],
    "default": ["ab", " 12", "'s", " x"],
    "llama-bpe": ["ab", " ", "12", "'s", " x"],
    "qwen2": ["ab", " ", "1", "2", "'s", " x"],
}


@pytest.mark.parametrize(("pre", "words"), PRE_TOKENIZERS.items())
def test_pre_tokenizers_split_as_their_models_do(tmp_path, pre, words):
    from tokenizers import Tokenizer as Library

    file = tiny_gguf(tmp_path / "model.gguf", metadata={"tokenizer.ggml.pre": pre})
    library = Library.from_str(open_checkpoint(file).tokenizer().json_text)
    split = library.pre_tokenizer.pre_tokenize_str("ab 12's x")
    assert [word.replace("Ġ", " ") for word, _ in split] == words


def test_llama_bpe_adds_bos_unless_the_file_says_otherwise(tmp_path):
    silent = {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": None}
    assert open_checkpoint(tiny_gguf(tmp_path / "a.gguf", metadata=silent)).tokenizer().add_bos
    says_no = silent | {"tokenizer.ggml.add_bos_token": False}
    assert not open_checkpoint(tiny_gguf(tmp_path / "b.gguf", metadata=says_no)).tokenizer().add_bos


@pytest.mark.parametrize(
    ("metadata", "word"),
    [
        ({"tokenizer.ggml.model": "llama"}, "llama"),
        ({"tokenizer.ggml.model": None}, "none"),
        ({"tokenizer.ggml.pre": "deepseek-llm"}, "deepseek-llm"),
        ({"tokenizer.ggml.pre": None}, "does not say how words are split"),
    ],
)
def test_other_vocabularies_are_refused_by_name(tmp_path, metadata, word):
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "model.gguf", metadata=metadata))
    with pytest.raises(UnsupportedModelError, match=word):
        checkpoint.tokenizer()


@pytest.mark.parametrize(
    "metadata",
    [
        {"tokenizer.ggml.merges": None},
        {"tokenizer.ggml.token_type": [1, 2, 3]},
        {"tokenizer.ggml.tokens": ["a"] * 512},
    ],
)
def test_an_inconsistent_vocabulary_is_told(tmp_path, metadata):
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "model.gguf", metadata=metadata))
    with pytest.raises(BadInputError, match="vocabulary"):
        checkpoint.tokenizer()
