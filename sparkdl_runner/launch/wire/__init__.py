"""The messages between driver, agents and workers, and how they travel.

Messages, frames, sockets, and what becomes of a rank. Imported by all three processes; imports
none of them.
"""
