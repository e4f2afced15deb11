"""Which package fits which device: chips, versions, and the gate that decides before anything is loaded.

Standard library only, valid for Python 3.10: this travels to the device together with ``container``.
"""
