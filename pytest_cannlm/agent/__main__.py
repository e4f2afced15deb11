"""``python -m pytest_cannlm.agent``: start a supervisor and say, in one JSON line, where it serves."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress

from pytest_cannlm.agent.lifeline import watch_parent
from pytest_cannlm.agent.server import AgentServer
from pytest_cannlm.agent.supervisor import AgentConfig, Supervisor


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until asked to shut down, interrupted, or left alone by the parent."""
    options = _parser().parse_args(arguments)
    supervisor = Supervisor(
        AgentConfig(
            chip=options.chip,
            cann=options.cann,
            engine=options.engine,
            engine_options=json.loads(options.engine_options),
        )
    )
    server = AgentServer(supervisor, secret=secrets.token_urlsafe(32))
    watch_parent(server.stop, parent_pid=options.parent_pid)
    print(json.dumps({"port": server.port, "token": server.secret, "pid": os.getpid()}), flush=True)
    try:
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.1)
    finally:
        supervisor.close()
        server.server_close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pytest_cannlm.agent", description=__doc__)
    parser.add_argument("--chip", required=True, help="the chip of this device, for example KirinX90")
    parser.add_argument("--cann", required=True, help="the CANN version of this device, for example 6.1.1.0")
    parser.add_argument("--engine", required=True, help="simulated, or module:Class")
    parser.add_argument("--engine-options", default="{}", metavar="JSON", help="given to every load")
    parser.add_argument("--parent-pid", type=int, help="end when this process is gone")
    return parser


if __name__ == "__main__":
    main()
    # Threads still wait on pipes and sockets; leaving at once is what the operating system is there for.
    sys.stdout.flush()
    os._exit(0)
