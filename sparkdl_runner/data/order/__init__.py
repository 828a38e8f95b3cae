"""Who gets which row when: pure functions, and the state that a resume needs.

Imports nothing of the other rooms.
"""
