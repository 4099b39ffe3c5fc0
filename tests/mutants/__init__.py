"""Mutation tests and coverage: do the quick tests of a room notice when its code is wrong?

``./run mutants ROOM`` plants one small error after the other, a *mutant*, in a scratch copy of the
project, and runs the quick tests that execute the changed line.  ``./run covered ROOM`` lists the
lines and branches of a room that its quick tests leave out.  The results are in
``docs/mutants.md``.
"""
