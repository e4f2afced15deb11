"""From what a test asks for to a loaded engine, and from what it did to verdicts.

Nothing here knows pytest: the fixtures and the command line stand on the same objects.
"""
