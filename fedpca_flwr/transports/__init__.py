"""How answers travel: in clear, masked (only the sum over all parties opens), or surviving (masked, with dropouts).

A transport turns a method's program of `Ask` and `Sum` into plain questions, and wraps the party's answers. No method
knows which it is under.

What a sum costs a party: in clear its values as they are; masked 8 bytes for each, times the `Phase.words` of the sum
(three or four where its limits are wide), and a round for the keys before the first; surviving the same, in five rounds
with keys, shares and what opens the sum. The layout is `fedpca_flwr.maths.fixed_point.Layout`; measured in
docs/secure-aggregation.md.
"""
