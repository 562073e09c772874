"""How answers travel: in clear, masked (only the sum over all parties opens), or surviving (masked, with dropouts).

A transport turns a method's program of `Ask` and `Sum` into plain questions, and wraps the party's answers. No method
knows which it is under.
"""
