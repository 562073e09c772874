"""Tables in Markdown, complete or line by line as results come, and in LaTeX."""

from collections.abc import Iterable, Sequence

from fedpca_flwr.errors import printable_text


def table(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Write a table in Markdown, without a newline at the end; cells as in `row`."""
    return "\n".join([head(heads), *map(row, rows)])


def head(heads: Sequence[str]) -> str:
    """Write the header line and the separator line of a table in Markdown."""
    return f"{row(heads)}\n{row(['---'] * len(heads))}"


def row(cells: Iterable[object]) -> str:
    """Write a single line of cells of a table in Markdown, with "?" for characters that are not printable."""
    return f"| {' | '.join(printable_text(str(cell)) for cell in cells)} |"


LATEX = str.maketrans({sign: f"\\{sign}" for sign in "&%$#_{}"} | {"±": r"$\pm$", "~": "-", "^": "-", "\\": "/"})
LATEX |= str.maketrans({"[": r"\textsuperscript{", "]": "}"})  # marks of notes


def latex_table(heads: Sequence[str], rows: Iterable[Sequence[object]], notes: Sequence[str]) -> str:
    """Write a table in LaTeX (package booktabs), texts to the left, numbers to the right, and lines of notes below."""
    lines = [[printable_text(str(cell)).translate(LATEX) for cell in cells] for cells in (heads, *rows)]
    has_numbers = [any(cell[:1].isdigit() for cell in column) for column in zip(*lines[1:], strict=True)]
    columns = "".join("r" if numbers else "l" for numbers in has_numbers)
    head, *body = (f"{' & '.join(line)} \\\\" for line in lines)
    inside = [r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    below = [rf"\par{{\footnotesize {printable_text(note).translate(LATEX)}\par}}" for note in notes]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *inside, r"\end{tabular}", *below])
