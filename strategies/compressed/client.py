"""A party of the compressed method: an encoding of its own scatter, and what that gets wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpca_flwr.errors import ConfigError, ContractError
from fedpca_flwr.maths.arrays import Array
from fedpca_flwr.maths.codec import Coded
from fedpca_flwr.maths.eigen import spectral_norm
from fedpca_flwr.maths.moments import Moments, pack, unpack
from fedpca_flwr.maths.products import head_and_diagonal
from fedpca_flwr.maths.refine import CORRECTION_BITS, MOST_BITS, corrected
from fedpca_flwr.protocol.payload import Fields
from fedpca_flwr.protocol.phase import SERVER
from fedpca_flwr.statistics.moment_fields import head_fields
from fedpca_flwr.statistics.rows_client import RowsClient

from .codec import (
    codec_of,
    decoded_block,
    encoded_block,
    orthonormal_block,
    unit_of,
)
from .script import CompressedOptions


class CompressedClient(RowsClient):
    """Returns an encoding of its own scatter, and what that gets wrong."""

    options: CompressedOptions

    def statistics(self, phase: str, asked: Fields) -> Any:
        if phase == "project":
            return super().statistics(phase, asked)
        if phase == "scale":
            head, diagonal = head_and_diagonal(self.data)
            return {**head_fields(head, diagonal), "trace": np.array([diagonal.sum()])}
        if phase == "correction":
            return self._correction(self._block(asked))
        moments = Moments.of(self.data)
        d = moments.n_features
        diagonal = moments.diagonal()
        unit = unit_of(float(diagonal.sum()))
        scatter = moments.scatter / unit
        codec = codec_of(self.options, d, float(asked["step"]) / unit, self.site.config.seed)
        try:
            coded = codec.encode(scatter, d)
        except ValueError as error:
            raise ConfigError(f"run-config: 'step' is {self.options.step}: {error}") from None
        missing = scatter - codec.decode(coded, d)
        if self.options.most_corrections:
            self.site.state["missing"] = [missing, unit]
        wrong = unit * spectral_norm(unpack(missing, d))
        return {
            "code": coded.code,
            "scales": coded.scales,
            **head_fields(moments.head, diagonal),
            "trace": np.array([diagonal.sum()]),
            "wrong": np.array([wrong, wrong]),
        }

    def _block(self, asked: Fields) -> Array:
        """The block (d, b) that is asked about."""
        coded, d = Coded(asked["scales"], asked["code"]), self.data.shape[1]
        most, bits = self.options.block(d), int(asked["bits"])
        if coded.scales.size > most or bits > MOST_BITS:
            raise ContractError(
                f"{SERVER}: asked about a block of {coded.scales.size} columns in {bits} bits, expected at most {most} "
                f"columns and {MOST_BITS} bits"
            )
        try:
            return orthonormal_block(coded, bits, (d, coded.scales.size))
        except ValueError as error:
            raise ContractError(f"{SERVER}: its block does not decode: {error}") from None

    def _correction(self, V: Array) -> Fields:
        """What this party's approximation still gets wrong about the block ``V`` (d, b), rounded; and after it."""
        packed, unit = self.site.state["missing"]
        lower = unpack(packed, len(V))
        missing = lower + np.tril(lower, -1).T
        coded = encoded_block(missing @ V, CORRECTION_BITS)
        missing = corrected(missing, V, -decoded_block(coded, CORRECTION_BITS, V.shape))
        self.site.state["missing"] = [pack(missing), unit]
        wrong = float(unit) * np.array([spectral_norm(missing), np.linalg.norm(missing @ V, 2)])
        return {"code": coded.code, "scales": coded.scales, "wrong": wrong}
