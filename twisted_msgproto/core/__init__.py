"""Pure building blocks shared by every protocol (floor 0).  They import the standard library
only.
"""
