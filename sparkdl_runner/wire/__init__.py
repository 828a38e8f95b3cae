"""What driver, agents and workers say to one another, and how it travels.

Messages, frames, sockets, and what becomes of a rank. Imported by all three processes; imports
none of them.
"""
