"""What was found, one file for each subject, from what was observed; nothing is looked at here.

Imported by the examination.
"""
