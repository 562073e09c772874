"""Genotypes of people, and what is known of them by the formulas alone."""

import itertools

import numpy as np


def people(n: int = 90, d: int = 120, *, missing: float = 0.0, seed: int = 0):
    """Genotypes (n, d) of three populations, in the order in which they live."""
    rng = np.random.default_rng(seed)
    ancestral = rng.uniform(0.3, 0.7, d)
    populations = rng.beta(ancestral * 4, (1 - ancestral) * 4, size=(3, d))
    G = rng.binomial(2, np.repeat(populations, n // 3, axis=0)).astype(float)
    G[rng.random(G.shape) < missing] = np.nan
    return G


def standardised_by_hand(G):
    p = np.nanmean(G, axis=0) / 2
    variance = 2 * p * (1 - p)
    return np.nan_to_num((G - 2 * p) / np.sqrt(np.where(variance > 0, variance, 1)))


def linked_people(n=90, d=240, *, missing=0.05, seed=0):
    """Genotypes (n, d) whose variants go together with their neighbours; three of them do not vary."""
    rng = np.random.default_rng(seed)
    founders = rng.random((12, d)) < rng.uniform(0.05, 0.95, d)
    of = np.cumsum(rng.random((2 * n, d)) < 0.05, axis=1) + rng.integers(0, 12, (2 * n, 1))
    copies = np.take_along_axis(founders, of % 12, axis=0)
    G = copies[:n].astype(float) + copies[n:]
    G[:, [5, 9]] = 2, 1
    G[rng.random(G.shape) < missing] = np.nan
    G[:, d // 2] = np.nan
    return G


def squared_correlation(one, other):
    both = ~np.isnan(one) & ~np.isnan(other)
    (a, c), (_, b) = np.cov(one[both], other[both], bias=True)
    return c**2 / (a * b) if a * b > 0 else 0.0


def plinks_rule(G, begins, window, step, limit):
    """PLINK's rule, as its sources have it, pair after pair."""
    p = np.nanmean(np.where(np.isnan(G).all(axis=0), 0, G), axis=0) / 2
    major, out = np.maximum(p, 1 - p), ~(np.nanstd(np.where(np.isnan(G).all(axis=0), 0, G), axis=0) > 0)
    for begin, last in itertools.pairwise([*begins, G.shape[1]]):
        unchecked = {i: i + 1 for i in range(begin, last)}
        for start in range(begin, last, step):
            end, before = min(start + window, last), -1
            while before != out.sum():
                before = out.sum()
                for first in range(start, end):
                    for second in range(unchecked[first], end):
                        if out[first] or out[second]:
                            continue
                        unchecked[first] = second + 1
                        if squared_correlation(G[:, first], G[:, second]) > limit:
                            out[first if major[first] > major[second] * (1 + 1e-13) else second] = True
                            break
            if end == last:
                break
    return ~out
