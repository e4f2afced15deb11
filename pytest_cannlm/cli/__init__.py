"""The ``cannlm`` command: thin commands over the same rooms that the plugin uses.

``app``      the commands and their options
``answers``  what a command gives back, shown as text or as one JSON document; errors and exit codes
``doctor``   what this machine can do, and the command that fixes what it cannot
"""

from __future__ import annotations


def main() -> int:
    """Entry point of the ``cannlm`` command; returns its exit code."""
    from pytest_cannlm.cli.app import run

    return run()
