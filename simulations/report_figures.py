"""The figures of a comparison's page: drawn once for a set of runs, and kept beside them."""

import hashlib
import html
import json
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree

from fedpca_flwr.errors import ConfigError, FedPCAError
from fedpca_flwr.figures import markdown
from fedpca_flwr.state.files import written_whole

from .records import Record, identity

XLINK = "http://www.w3.org/1999/xlink"

SHAPES = {"path", "text", "tspan", "use", "image", "rect", "circle", "line", "polyline", "polygon"}
SHOWING = SHAPES | {"all", "figure", "div", "figcaption", "p", "svg", "defs", "style", "g", "clipPath", "pattern"}
"""Elements of a drawing (``all`` stands around them)."""

LIBRARY = Path(markdown.__file__).parent
DRAWING = (Path(__file__).with_name("report_drawing.py"), LIBRARY / "plots.py", LIBRARY / "analysis_plots.py")
"""What draws: figures that were made by another text of these are drawn anew."""


def figures(folder: Path, records: Sequence[Record]) -> list[str]:
    """The figures of runs of one setting, as HTML; where their data or models are gone, a line that says so instead."""
    good = [record for record in records if "error" not in record]
    if not good:
        return []

    def draw(salt: str) -> tuple[list[str], bool]:
        from . import report_drawing  # here: nobody who has the figures waits for matplotlib

        drawn = report_drawing.svg(report_drawing.of_runs(good), salt)
        try:
            return [*drawn, *report_drawing.svg(report_drawing.of_models(folder, good), salt)], True
        except FedPCAError as error:
            return [*drawn, f"<p>No more figures: {html.escape(str(error))}</p>"], False

    return _kept(folder, "runs", good, draw)


def figures_of_pool(folder: Path, records: Sequence[Record]) -> list[str]:
    """The figures of the data set of these runs; none where it is gone or has too many features."""

    def draw(salt: str) -> tuple[list[str], bool]:
        from . import report_drawing

        try:
            return report_drawing.svg(report_drawing.of_pool(records[0]), salt), True
        except FedPCAError:
            return [], False

    return _kept(folder, "pool", records, draw)


def _kept(
    folder: Path, what: str, records: Sequence[Record], draw: Callable[[str], tuple[list[str], bool]]
) -> list[str]:
    """Figures that are there, else drawn and, where they are whole, kept; each set's inner names are its own."""
    kept = folder / "figures" / f"{_digest(what, records)}.json"
    there = _read(kept)
    if there is not None:
        return there
    drawn, whole = draw(kept.stem)
    if whole:
        with written_whole(kept) as stream:
            stream.write(json.dumps(drawn).encode())
    return drawn


def _read(kept: Path) -> list[str] | None:
    """Figures that were kept; none where there are none, or what is there was not drawn here: it may be anyone's."""
    try:
        there = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return there if isinstance(there, list) and all(map(is_drawing, there)) else None


def is_drawing(text: object) -> bool:
    """Whether a text is markup that shows something, and neither runs, loads nor links anything."""
    try:
        root = ElementTree.fromstring(f'<all xmlns:xlink="{XLINK}">{text}</all>')
    except ElementTree.ParseError:
        return False
    return isinstance(text, str) and all(
        element.tag in SHOWING and all(map(_shows, element.attrib, element.attrib.values())) for element in root.iter()
    )


def _shows(name: str, value: str) -> bool:
    """Whether an attribute of an element shows something."""
    link = name.removeprefix(f"{{{XLINK}}}") in {"href", "src"}
    return value.startswith(("#", "data:image/png;base64,")) if link else not name.lower().startswith("on")


def _digest(what: str, records: Sequence[Record]) -> str:
    """Of the runs, when they were made, and what draws them."""
    try:
        library = version("matplotlib")
    except PackageNotFoundError:
        raise ConfigError("figures need matplotlib: pip install '.[plots]' in the repository") from None
    sha = hashlib.sha256(f"{what} {library}".encode())
    for file in DRAWING:
        sha.update(file.read_bytes())
    for record in records:
        sha.update(f"\n{identity(record)} {record.get('date')} {record.get('versions')}".encode())
    return sha.hexdigest()[:16]
