"""What data, tracking and checkpoints tell the launcher, without importing it or one another.

Each module is a place to register or to leave something; outside of a rank it does nothing.
Imported by everyone; imports nothing but ``world``.
"""
