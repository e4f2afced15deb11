"""Doubles of the vendor's host tools, to test a build against that nobody has the tools for.

:func:`fake_ddk` and :func:`fake_mobile_station` lay out an installation whose ``omg``, ``atc`` and ``dopt`` can be
run: they read the model, say what the vendor's say, end as those end, and leave files of the same names and forms. What
they compile runs nowhere, and says so: its header and its weights carry ``CANNLM-DOUBLE``.
"""

from pytest_cannlm.testing.faults import FAULTS, Fault
from pytest_cannlm.testing.installations import fake_ddk, fake_mobile_station
from pytest_cannlm.testing.models import DOUBLE_MARK

__all__ = ["DOUBLE_MARK", "FAULTS", "Fault", "fake_ddk", "fake_mobile_station"]
