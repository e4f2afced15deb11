"""What engines, converters and devices say when something is wrong, in one sentence of cause and one next step.

What is known stands in ``causes.json``; what is not known is shown and never guessed. The room travels to the device
with the agent: standard library only, valid for Python 3.10.
"""

from pytest_cannlm.explain.codes import explain_code, meanings
from pytest_cannlm.explain.explanation import Explanation
from pytest_cannlm.explain.log import explain_text, likely_cause, lines_of

__all__ = ["Explanation", "explain_code", "explain_text", "likely_cause", "lines_of", "meanings"]
