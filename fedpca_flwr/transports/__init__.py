"""Transports of answers: clear, masked (only the sum over all parties opens), and surviving (masked, with dropouts).

A transport turns a method's program of `Round` and `SumRound` into plain questions, and wraps the party's answers.

Bytes of a sum for a party: in clear its values as they are; masked a word of 8 bytes that counts the parties, and the
`words` of the question for each value (three or four if the limits are wide), after a round for the keys; surviving the
same, in five rounds with keys, shares and what opens the sum. The layout is `fedpca_flwr.maths.secure.Layout`;
docs/secure-aggregation.md has the bytes of every round.
"""
