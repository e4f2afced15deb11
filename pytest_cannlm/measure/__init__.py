"""Figures and verdicts: what was measured or modelled, how sure that is, and whether it stays within a limit.

Nothing here knows pytest or a device: instants and bytes come in, frozen dataclasses go out. Standard library only.

``units``     sizes, percentages, how values are written
``figures``   Figure, Limit, Verdict
``stats``     distribution-free bounds, and the one gate: ``judge``
``plan``      how much is sampled, and when to stop
``latency``   what TTFT, TPOT and the rates of one generation are
``sampling``  figures of rounds of generations
``memory``    figures of a footprint
``judging``   the limits of a marker against figures
"""
