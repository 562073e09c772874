"""A vault that rotates: moments of a party's rows about a common centre, in a feature space that a secret rotates.

The scatter about the centre follows from that about the rows' own mean, so the vault wraps another, and reads no row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedpca_flwr.blind.rotation import HaarRotation, symmetric_noise
from fedpca_flwr.maths.adjustment import Adjustment
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.moments import Head, Moments, pack, unpack_symmetric
from fedpca_flwr.protocol.journal import State
from fedpca_flwr.site.rows.vault import Vault

NAME = "rotated moments"  # in the state of the run, so that repeated answers equal the first


@dataclass(frozen=True)
class Motion:
    """Motion of the parties' rows before their rotation: centre, covariates, units, and the unit of all sums."""

    centre: Head  # count and mean of the rows of all parties
    units: Array  # (d,), divide the features
    total: float  # trace of the scatter of all parties' rows about the centre, in these units
    adjustment: Adjustment  # taken out of centred rows before they are divided
    explained: NDArray[np.bool_]  # (d,), features of which covariates leave nothing, and the covariates


def centred_scatter(vault: Vault, centre: Head) -> Array:
    """Return the scatter (d, d) of the vault's rows about a common centre, in the unit of the data."""
    moments = vault.moments()
    deviation = (moments.mean - centre.mean) + (moments.remainder - centre.remainder)
    scatter = unpack_symmetric(moments.scatter, vault.features)
    return np.asarray(scatter + moments.count * np.outer(deviation, deviation))


class RotatedVault(Vault):
    """Vault of the rotated rows' moments, as shares of all parties' variance; without a noise key it adds no noise."""

    def __init__(
        self, vault: Vault, motion: Motion, rotation_key: bytes, state: State, *, noise_key: bytes, noise: float
    ) -> None:
        """Keep the wrapped vault; its rows stay out of reach."""
        self._vault, self._motion, self._key, self._state = vault, motion, rotation_key, state
        self._noise_key, self._noise = noise_key, noise

    @property
    @override
    def count(self) -> int | float:
        return self._vault.count

    @property
    @override
    def features(self) -> int:
        return self._vault.features

    @override
    def moments(self) -> Moments:
        """Return the rows' count, a mean of zero, and the rotated scatter, formed once and stored for the run."""
        zeros = np.zeros(self.features)
        if NAME not in self._state:
            rotation = HaarRotation(self._key, self.features)
            scatter = pack(rotation.rotated(self._residual_scatter())) / self._motion.total
            if self._noise_key:
                scatter += self._noise * symmetric_noise(self._noise_key, self.features)
            self._state[NAME] = [scatter]
        (scatter,) = self._state[NAME]
        return Moments(self.count, zeros, zeros, scatter)

    @override
    def drop(self) -> None:
        self._vault.drop()
        self._state.drop(NAME)

    def _residual_scatter(self) -> Array:
        """Return the scatter (d, d) about the common centre that covariates leave, in common units."""
        motion = self._motion
        scatter = centred_scatter(self._vault, motion.centre)
        residual = motion.adjustment.residual_scatter(scatter, motion.explained)
        return np.asarray(residual / motion.units / motion.units[:, None])
