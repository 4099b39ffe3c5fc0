"""What ``msgproto bench`` measures beside the protocols; each module is one subject.

They stand here and not in the rooms that they measure, because a benchmark is a thing of the
command line (it prints, it starts processes) and those rooms know nothing of it.
"""
