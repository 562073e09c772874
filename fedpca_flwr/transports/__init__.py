"""Transports of answers: clear, masked (only the sum over all parties opens), and surviving (masked, with dropouts).

A transport turns a method's program of `Round` and `SumRound` into plain questions, and wraps the party's answers.
docs/secure-aggregation.md has the bytes of every round; the layout is `fedpca_flwr.maths.secure.Layout`.
"""
