"""``msgproto bench`` has one module for each subject.

They are here and not in the rooms that they measure, because a benchmark belongs to the command
line: it prints and it starts processes.
"""
