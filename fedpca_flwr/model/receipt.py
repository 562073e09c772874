"""Receipt of a model: the digests that each participating site received at the end of a run and signed.

A receipt says "I was shown this model in this run", and not that the model is right. It is part of the model's log, so
that it travels with the model. The manifest has one digest, or one value, for each thing that could be changed, so that
a change is named. Each site makes the manifest by itself, from its own configuration and from what it was shown; its
signature (Ed25519) is valid only for that.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fedpca_flwr.data.table import names_digest
from fedpca_flwr.maths.arrays import content_digest
from fedpca_flwr.model.model import PCAModel

PURPOSE = "fedpca receipt 1: I was shown this model in this run"
RECEIPT_KIND = "receipt"
"""Kind of the event in a site's journal that has the salt of its commitment."""
MODEL_FIELDS = ("components", "mean", "scale", "variances", "total variance", "rows", "squared error")
"""Parts of a model, each of which has its own digest in the manifest."""


class Manifest(BaseModel):
    """Manifest that the sites of a run sign.

    Parameters
    ----------
    purpose : str
        `PURPOSE`.
    run : str
        Flower's number of the run.
    members : str
        Digest of the list of the members' public keys.
    settings : dict
        Method, options and keys of the run that all parties share.
    phases : list of str
        Names of the questions that the run may ask, in order.
    columns : str
        Digest of the columns' names; empty without names.
    model : dict of str to str
        Digest of each of `MODEL_FIELDS`.
    parties : dict of str to dict
        By partition: ``name``, ``app``, ``nonce``, ``answers`` (commitment to the party's answers, with a salt that
        stays in its journal), and ``head`` (digest of the last event of its journal).
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    purpose: str = PURPOSE
    run: str
    members: str
    settings: dict[str, bool | int | float | str]
    phases: list[str]
    columns: str
    model: dict[str, str]
    parties: dict[str, dict[str, str]]

    def message(self) -> bytes:
        """Return the bytes that the parties sign: JSON with sorted keys."""
        return json.dumps(self.model_dump(), sort_keys=True).encode()


class Receipt(BaseModel):
    """Manifest and signatures, as a model's log holds them under ``receipt``.

    Parameters
    ----------
    manifest : Manifest
    signatures : dict of str to str
        Signature by partition, in hexadecimal digits.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    manifest: Manifest
    signatures: dict[str, str]


def model_digests(
    components: NDArray[np.float64],
    mean: NDArray[np.float64],
    scale: NDArray[np.float64],
    variances: NDArray[np.float64],
    numbers: NDArray[np.float64],
) -> dict[str, str]:
    """Compute the digest of each part of a model.

    Shapes: components (k, d), mean (d,), scale (d,), variances (k,), numbers (3,).
    """
    values = (components, mean, scale, variances, *numbers)
    arrays = (np.asarray(value, np.float64) for value in values)
    return {name: content_digest(name, [array]) for name, array in zip(MODEL_FIELDS, arrays, strict=True)}


def model_numbers(model: PCAModel) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the numbers of a model that its projection does not show, as `model_digests` takes them.

    Shapes: -> (k,), (3,).
    """
    squared = model.log["measured"].get("squared_error_per_row", -1.0)
    numbers = np.array([model.total_variance, model.n_samples_, squared], dtype=np.float64)
    variances, numbers = (np.where(np.isnan(values), -1.0, values) for values in (model.explained_variance_, numbers))
    return variances, numbers


def receipt_faults(model: PCAModel, receipt: Receipt, member_keys: Sequence[bytes], members: str) -> list[str]:
    """Compare a model with its receipt, and check the signatures."""
    manifest, log = receipt.manifest, model.log
    components, mean = model.loadings()
    scale = np.empty(0) if model.scale_ is None else model.scale_
    digests = model_digests(components, mean, scale, *model_numbers(model))
    faults = [
        f"the model's {name} is not what was signed"
        for name in MODEL_FIELDS
        if manifest.model.get(name) != digests[name]
    ]
    if manifest.purpose != PURPOSE:
        faults.append(f"the receipt's purpose is another one, expected '{PURPOSE}'")
    if manifest.members != members:
        faults.append("the receipt is of another list of members than the one given")
    if manifest.run != log.get("provenance", {}).get("run", manifest.run):
        faults.append(f"the receipt is of run {manifest.run}, and the model of run {log['provenance']['run']}")
    stated = {"method": log["method"], **log["options"]}
    changed = [key for key, value in manifest.settings.items() if key in stated and not _is_shown(value, stated[key])]
    faults += [f"the model's option '{key}' is not the one that was signed" for key in changed]
    names = {str(party["party"]): party["name"] or "" for party in log["parties"]}
    if names != {party: entry.get("name", "") for party, entry in manifest.parties.items()}:
        faults.append("the model names other parties than those that have signed")
    features = model.feature_names_in_
    if manifest.columns != log["columns"] or (
        features is not None and names_digest(list(features)) != manifest.columns
    ):
        faults.append("the names of the model's features are not those that were signed")
    for party in sorted({*manifest.parties, *receipt.signatures}, key=int):
        if not _is_signed(manifest.message(), receipt.signatures.get(party, ""), member_keys, party):
            faults.append(f"the signature of party {party} ({names.get(party, 'unknown')}) is missing or wrong")
    return faults


def _is_shown(signed: object, stated: object) -> bool:
    """Return whether a signed setting, of which a long text is a digest, is the one that a model states."""
    return str(signed).startswith("sha256:") or signed == (
        stated if isinstance(stated, bool | int | float) else str(stated)
    )


def _is_signed(message: bytes, signature: str, member_keys: Sequence[bytes], party: str) -> bool:
    """Return whether a signature in hexadecimal digits is the party's on the message."""
    try:
        key = dict(enumerate(member_keys))[int(party)]
        Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError, KeyError):
        return False
    return True


def commitment(salt: bytes, answers: Sequence[str]) -> str:
    """Compute a party's commitment to its answers."""
    return content_digest("answers", [np.frombuffer(salt + "".join(answers).encode(), np.uint8)])


def read_receipt(log: Mapping[str, Any]) -> Receipt | None:
    """Return the receipt in a model's log, or None if there is none."""
    return Receipt.model_validate(log["receipt"]) if "receipt" in log else None
