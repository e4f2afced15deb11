"""pytest-cannlm: test language models on Huawei's Kirin X90 NPU with ordinary pytest tests."""

__version__ = "0.1.0"
