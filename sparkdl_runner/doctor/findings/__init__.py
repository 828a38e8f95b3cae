"""The checks: one file for each subject, one function for each check (see ``checks``).

They judge what was seen, and look at nothing themselves. Imported by the examination.
"""
