"""Values and callbacks by which data, tracking and checkpoints reach the launcher.

So they import neither it nor one another.

Each module takes registrations or values, and does nothing outside of a rank.
Imported by everyone; imports nothing but ``world``.
"""
