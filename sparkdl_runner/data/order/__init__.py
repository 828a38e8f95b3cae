"""Who gets which row when: pure functions, and the state that a resume needs.

Imports none of the other packages.
"""
