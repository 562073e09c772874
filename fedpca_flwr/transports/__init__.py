"""How answers travel: in clear, masked (only the sum over all parties opens), or surviving (masked, with dropouts).

A transport turns a method's program of `Ask` and `Sum` into plain questions, and wraps the party's answers. No method
knows which it is under.

What a sum costs a party: in clear its values as they are; masked a word of 8 bytes that counts the parties, and the
`words` of its question for each value (three or four where its limits are wide), after a round for the keys; surviving
the same, in five rounds with keys, shares and what opens the sum. The layout is `fedpca_flwr.maths.secure.Layout`;
docs/secure-aggregation.md has the bytes of every round.
"""
