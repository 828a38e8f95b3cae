"""``sparkdl-runner doctor``: what would keep a run from working here, and what to do about it.

It asks the launchers for what they would refuse, and looks at hosts itself. Imported by the command
alone.
"""
