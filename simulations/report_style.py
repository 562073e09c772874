"""How a comparison's page looks, and what its buttons and boxes do: no other file, no network."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; }
th, td { padding: 0.35rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
tbody tr:hover { background: var(--soft); }
th { vertical-align: bottom; }
td:first-child, th:first-child { position: sticky; left: 0; background: Canvas; min-width: 7rem; }
td.text, th.text { text-align: left; }
td.note { text-align: left; padding-bottom: 0.8rem; min-width: 0; position: static; }
td.note div { position: sticky; left: 0.6rem; max-width: min(66rem, 88vw); }
table.runs { margin-top: 1.5rem; }
figure { margin: 1.5rem 0; } figcaption { font-size: 0.9rem; }
svg { max-width: 100%; min-width: 34rem; height: auto; } svg text { fill: CanvasText !important; }
pre { background: var(--soft); padding: 0.8rem; overflow-x: auto; }
.wide { overflow-x: auto; }
.lead { background: var(--soft); padding: 0.8rem 1rem; border-radius: 0.4rem; }
fieldset { border: 1px solid var(--line); border-radius: 0.4rem; } label { margin-right: 1.2rem; white-space: nowrap; }
[hidden] { display: none; }
"""

SCRIPT = """
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, body = head.closest("table").tBodies[0];
    const column = [...head.parentElement.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = row => row.children[column].dataset.value;
    const order = (a, b) => {
      if (a === "" || b === "") return (a === "") - (b === "");
      const compared = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return down ? -compared : compared;
    };
    const runs = [...body.rows].filter(row => !row.classList.contains("more"));
    const sorted = runs.sort((a, b) => order(value(a), value(b)));
    body.append(...sorted.flatMap(row => [row, ...body.querySelectorAll(`[data-of="${CSS.escape(row.id)}"]`)]));
  });
}
const boxes = [...document.querySelectorAll("fieldset input")];
function filter() {
  for (const row of document.querySelectorAll("tr[data-is]")) {
    const is = row.dataset.is.split(" ");
    row.hidden = boxes.some(box => box.checked && !is.includes(box.value));
  }
}
for (const box of boxes) box.addEventListener("change", filter);
"""
