"""Outputs of a device against the ONNX reference: metrics, guards, profiles of limits, and their verdicts.

Nothing here knows pytest or a device. Only ``metrics``, ``scan``, ``aggregate`` and ``accumulate`` need numpy, so that
a marker can be checked without it.

``names``       every metric by its public name: unit, direction, where to look
``metrics``     their definitions on arrays
``guards``      what makes a comparison meaningless, checked before any metric
``accumulate``  a comparison that streams windows of logits
``tokens``      prompt ids and greedily decoded ids, compared as tokens
``profiles``    limits per scheme and model size, from a data file
``judging``     a comparison held against limits
``text``        the text that is compared on, and its windows
"""
