"""Where data, tracking and checkpoints meet the launcher without knowing it, nor one another.

Each module is a place to register or to leave something; outside of a rank it does nothing.
Imported by everyone; imports nothing but ``world``.
"""
