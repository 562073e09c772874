"""What a block iteration says of its certificate, in numbers, and where it is not what was wanted, in words."""

from __future__ import annotations

from fedpca_flwr.maths.angle_bounds import parts_text
from fedpca_flwr.maths.certificate import certified
from fedpca_flwr.maths.iteration import BlockIteration


def measured(found: BlockIteration) -> dict[str, float]:
    """The certificate in numbers, by the names of `fedpca_flwr.measurements`."""
    degrees, stand_out = found.certificate, found.standing_out
    if degrees < 90 and not stand_out:
        return {"certified_angle_degrees": degrees, "certified_components": found.determined}
    first, degrees = found.cuts[-1] if found.cuts else (0, 90.0)
    told = {"standing_out_components": stand_out} if stand_out else {}
    return {"certified_angle_degrees": degrees, "certified_components": first, **told}


def shortfall_notes(found: BlockIteration, allowed: str) -> list[str]:
    """Nothing where it is; ``allowed`` names what else ends the iteration."""
    if found.enough:
        return []
    if found.standing_out:
        first, k = found.standing_out, found.k
        rest = f"component {k} lies" if first + 1 == k else f"components {first + 1} to {k} lie"
        return [f"{first} of {k} components certified: {parts_text(found.cuts)}; {rest} in the noise"]
    reason = allowed
    if found.limited:
        relative = found.ritz.error / float(found.ritz.values[0])
        reason = f"reaching the products' precision, {relative:.1g} of the largest variance,"
    elif not found.known.room and found.accelerated:
        reason = "asking for all directions"
    angle = "no bound on the angle" if found.certificate >= 90 else f"an angle of {_certificate_text(found)}"
    notes = [f"stopped after {reason} with {angle}; wanted {found.tolerance:.2g} degrees"]
    if found.certificate >= 90 and found.cuts:
        notes.append(f"{found.cuts[-1][0]} of {found.k} components certified: {parts_text(found.cuts)}")
    return notes


def _certificate_text(found: BlockIteration) -> str:
    first = None if found.determined == found.k else found.determined
    return certified(found.certificate, first=first)
