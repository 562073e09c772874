"""A hunt for wrong results: drawn data, options and transports, each run held against an oracle of its own.

    python -m fedpca_flwr.simulations.hunt --minutes 10 --seed 7

Every draw is a pure function of the seed and its number (`draw`). It runs on the loopback engine (`running`), and what
comes back, a model or an error, is judged (`checks`, `refusals`) by linear algebra that shares no code with ours
(`oracle`). A finding is one line that ends with the command that repeats it.
"""
