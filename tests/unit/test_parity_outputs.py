from pytest_cannlm.parity.outputs import OutputSpec, pair_outputs

LOGITS = OutputSpec("logits", (1, 4, 1000), "float32")
KEYS = [OutputSpec(f"present_{n}", (1, 4, 1000), "float32") for n in (0, 1)]
REFERENCE = [LOGITS, *KEYS]


def anonymous(*specs):
    return [OutputSpec(f"out_{n}", spec.shape, spec.dtype) for n, spec in enumerate(specs)]


def names(pairing):
    return [guard.name for guard in pairing.guards]


def test_order_does_not_matter_where_names_agree():
    pairing = pair_outputs(REFERENCE, [KEYS[1], LOGITS, KEYS[0]])
    assert pairing.pairs == (("logits", "logits"), ("present_0", "present_0"), ("present_1", "present_1"))
    assert pairing.guards == ()


def test_anonymous_outputs_of_one_shape_are_not_guessed_at():
    pairing = pair_outputs(REFERENCE, anonymous(KEYS[1], LOGITS, KEYS[0]))
    assert pairing.pairs == ()
    assert set(names(pairing)) == {"ambiguous_outputs", "no_comparisons"}


def test_a_declared_map_decides():
    declared = {"logits": "out_1", "present_0": "out_2", "present_1": "out_0"}
    pairing = pair_outputs(REFERENCE, anonymous(KEYS[1], LOGITS, KEYS[0]), declared=declared)
    assert dict(pairing.pairs) == declared
    assert pairing.guards == ()


def test_a_unique_shape_is_enough():
    small = OutputSpec("state", (1, 7), "float32")
    pairing = pair_outputs([LOGITS, small], anonymous(small, LOGITS))
    assert dict(pairing.pairs) == {"logits": "out_1", "state": "out_0"}


def test_missing_and_extra_outputs_fail_by_name():
    pairing = pair_outputs(REFERENCE, REFERENCE[:2])
    assert [(guard.name, "present_1" in guard.detail) for guard in pairing.guards] == [("missing_output", True)]
    pairing = pair_outputs(REFERENCE[:2], REFERENCE)
    assert [(guard.name, "present_1" in guard.detail) for guard in pairing.guards] == [("extra_output", True)]
    wrong = pair_outputs([LOGITS], [LOGITS], declared={"logits": "logit"})
    assert names(wrong) == ["missing_output", "extra_output", "no_comparisons"]


def test_another_float_width_is_noted_and_another_type_fails():
    half = OutputSpec("logits", LOGITS.shape, "float16")
    assert pair_outputs([LOGITS], [half]).notes == ("'logits': reference float32, device float16; compared in float64",)
    assert names(pair_outputs([LOGITS], [half])) == []
    assert names(pair_outputs([LOGITS], [OutputSpec("logits", LOGITS.shape, "int8")])) == ["dtype_differs"]


def test_shapes_of_a_pair_have_to_agree():
    assert names(pair_outputs([LOGITS], [OutputSpec("logits", (1, 4, 999), "float32")])) == ["shape_differs"]
