"""Blind runs: stage, transport, rotation, tags, and the vault that rotates."""

from typing_extensions import override

from fedpca_flwr.protocol.card import MethodCard, Stage


class Blind(Stage):
    """Declaration of blind runs, whose server sees sums of rotated rows and whose parties have the model."""

    option_names = ("blind",)
    composes = True
    sums_only = True
    implementation = "fedpca_flwr.blind.stage:BlindStage"

    @classmethod
    @override
    def fits(cls, card: MethodCard) -> bool:
        """Return whether the method needs the pooled scatter alone."""
        return card.rotatable
