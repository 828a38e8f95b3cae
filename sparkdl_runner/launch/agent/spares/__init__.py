"""Workers that are started after a call, for the next.

Imported by the agent and by the local launcher.
"""
