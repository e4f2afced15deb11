"""Will the NPU take this graph? Every node of an ONNX model against what is known of the converters.

The rules are data: ``operators.json`` for operators, ``rules.json`` for everything else. Each says where it comes from
and how sure that is. What no rule knows is called unknown. Weights are never read.
"""

from pytest_cannlm.affinity.examine import examine, examine_model
from pytest_cannlm.affinity.report import AffinityReport, Finding, OperatorVerdict

__all__ = ["AffinityReport", "Finding", "OperatorVerdict", "examine", "examine_model"]
