"""Lint of a package folder: will the engine load it, and does it mean what it says?

``lint``      :func:`lint` applies every rule and collects findings, and what could not be checked
``rules``     the rules, one module per subject, each a function from facts to problems
``facts``     what the rules look at, read once and with limits
``schema``    the settings that the engine reads
``numbers``   samples of tensors
"""

from pytest_cannlm.lint.finding import Finding, LintReport, NotChecked
from pytest_cannlm.lint.lint import lint
from pytest_cannlm.lint.rules import RULES

__all__ = ["RULES", "Finding", "LintReport", "NotChecked", "lint"]
