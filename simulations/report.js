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
