"""The offline-model container, ``.om`` and ``.omc``: reading, writing, and our simulated Kirin models.

``core`` reads (and is what travels to a device), ``writer`` and ``modeldef`` write, ``kirin`` knows simulated models
and relabelling; these need the standard library only. ``inspect`` describes a file for people and needs protobuf.
"""
