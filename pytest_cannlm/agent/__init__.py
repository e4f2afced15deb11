"""The program beside the engine: a supervisor that serves the harness and a worker process that holds the engine.

The same files run on the host and on the device's own Python (3.10 and newer). They use the standard library only and,
of this project, nothing but ``errors``, ``compat`` and the core of ``container``.
"""
