"""The last round: what the parties' own rows say of a model."""

import numpy as np

from fedpca_flwr.errors import ContractError
from fedpca_flwr.model.model import PCAModel


def require_fit(model: PCAModel, measured: float, predicted: float, allowed: float) -> None:
    """Note the mean squared error that the parties have ``measured``, if it is the ``predicted`` one; a `ContractError`
    where they differ by more than is ``allowed``."""
    difference = abs(measured - predicted)
    if not (np.isfinite(difference) and difference <= allowed):  # one is NaN where a party has sent such numbers
        raise ContractError(
            f"the parties' own rows do not fit the model: their mean squared error is {measured:.9g}, but the "
            f"eigenvalues say {predicted:.9g}; did a party's data change during the run?"
        )
    model.log["measured"] |= {"squared_error_per_row": measured, "predicted_squared_error_per_row": predicted}
