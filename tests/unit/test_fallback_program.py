"""``python -m pytest_cannlm.fallback``: the default app, in this process and once as a program."""

import os
import subprocess
import sys

import pytest

from pytest_cannlm import fallback
from pytest_cannlm.cloud.endpoint import CloudEndpoint
from pytest_cannlm.fallback import main


@pytest.fixture
def cloud():
    endpoint = CloudEndpoint()
    yield endpoint
    endpoint.close()


def off_list(cloud, **more):
    return {"CANNLM_CHIP": "Kirin9020", "CANNLM_FALLBACK": "cloud", **cloud.environment(), **more}


def test_the_text_on_stdout_the_steps_on_stderr(cloud, capsys):
    assert main(["Hello"], off_list(cloud)) == 0
    out, err = capsys.readouterr()
    assert out == "This is the cloud's answer.\n"
    assert "fallback: the chip is Kirin9020 (CANNLM_CHIP)" in err
    assert f"answered by cloud: {cloud.model} at 127.0.0.1" in err
    assert str(cloud.api_key) not in err
    assert "Hello" not in err
    assert cloud.requests[0].texts == ("Hello",)


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"CANNLM_FALLBACK": ""}, 1, "not one that this model runs on"),
        ({"CANNLM_FALLBACK": "maybe"}, 2, "CANNLM_FALLBACK must be empty or cloud"),
        ({"OPENAI_API_KEY": "sk-wrong"}, 3, "Incorrect API key"),
        ({"OPENAI_API_KEY": ""}, 3, "no OPENAI_API_KEY"),
        ({"OPENAI_MODEL": "other"}, 3, "HTTP 404"),
        ({"CANNLM_CHIP": "KirinX90", "CANNLM_FALLBACK": ""}, 3, "no NPU is named"),
        ({"CANNLM_CHIP": "KirinX90", "CANNLM_NPU": "sim", "CANNLM_FALLBACK": ""}, 1, "no model package is named"),
    ],
)
def test_exit_statuses_are_those_of_cannlm(cloud, capsys, change, status, reason):
    assert main(["Hello"], off_list(cloud, **change)) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert reason in err
    assert "sk-wrong" not in err


def test_no_prompt_leaves_unless_it_is_allowed(cloud):
    main(["Hello"], off_list(cloud, CANNLM_FALLBACK=""))
    assert cloud.requests == ()


def test_on_the_list_without_a_device_it_falls_back_and_says_why(cloud, capsys):
    assert main(["Hello"], off_list(cloud, CANNLM_CHIP="KirinX90")) == 0
    assert "no NPU is named" in capsys.readouterr().err


def test_the_chip_of_a_device_that_is_named(cloud, capsys):
    environment = off_list(cloud, CANNLM_NPU="sim:kirin9020", CANNLM_PACKAGE="nowhere")
    del environment["CANNLM_CHIP"]
    assert main(["Hello"], environment) == 0
    assert "the chip is Kirin9020 (the device sim:kirin9020)" in capsys.readouterr().err


def test_the_package_answers_where_it_may(cloud, tiny_packages, capsys):
    package = tiny_packages()
    environment = off_list(cloud, CANNLM_NPU="sim", CANNLM_PACKAGE=str(package.package), CANNLM_CHIP="KirinX90")
    assert main(["Hello", "--max-new-tokens", "4"], environment) == 0
    assert "answered by npu: simulated KirinX90" in capsys.readouterr().err
    assert cloud.requests == ()


def test_a_package_that_the_gate_refuses_falls_back(cloud, tiny_packages, capsys):
    package = tiny_packages()
    environment = off_list(
        cloud, CANNLM_NPU="sim?cann=6.0.1.0", CANNLM_PACKAGE=str(package.package), CANNLM_CHIP="KirinX90"
    )
    assert main(["Hello"], environment) == 0
    err = capsys.readouterr().err
    assert "6.0.1.0" in err
    assert "answered by cloud" in err


def test_as_a_program(cloud):
    done = subprocess.run(
        [sys.executable, "-m", "pytest_cannlm.fallback", "Hello"],
        env={**os.environ, **off_list(cloud)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "This is the cloud's answer.\n")


def test_the_public_names():
    assert all(hasattr(fallback, name) for name in fallback.__all__)
