"""Scores that Harmony corrected, of a run with ``clustering='harmony'``."""

import numpy as np
from numpy.typing import ArrayLike

from fedpca_flwr.analyses.inputs import takes_model
from fedpca_flwr.errors import ConfigError, ContractError, value_text
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.harmony import Steps
from fedpca_flwr.model.model import PCAModel


@takes_model
def harmonised(model: PCAModel, X: ArrayLike, party: str | int) -> Array:
    """Correct the scores of a party's rows by Harmony, towards the other parties' scores (Korsunsky et al. 2019).

    Parameters
    ----------
    model : PCAModel
        Model of ``run("p-cov", parties, clusters=20, clustering="harmony")``.
    X : array-like of shape (n, d)
        Rows of that party. They need not be rows of the run.
    party : str or int
        Name of the party in the run, or its number from 0.

    Returns
    -------
    ndarray of shape (n, k)

    Raises
    ------
    ConfigError, ContractError
        If the party was not in the run, or the run did not use Harmony.
    """
    entry = model.log.get("harmony")
    if entry is None:
        advice = "ask for it in its run, say by run('p-cov', parties, clusters=20, clustering='harmony')"
        raise ContractError(f"the model knows nothing of Harmony: {advice}")
    names = {info["name"]: info.get("party") for info in model.log["parties"] if info.get("name")}
    batch = names.get(party, party)
    if isinstance(batch, bool) or not isinstance(batch, int) or not 0 <= batch < len(model.log["parties"]):
        numbers = f"a number from 0 to {len(model.log['parties']) - 1}"
        expected = f"one of: {', '.join(map(repr, names))}" if names else numbers
        raise ConfigError(f"'party' is {value_text(party)}, expected {expected}")
    steps = Steps(*(np.array(entry[name], np.float64) for name in ("centres", "penalties", "moves")))
    return steps.correct(model.transform(X), batch)
