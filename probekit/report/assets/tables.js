// Sorts a table by the column whose heading is clicked.

/** The number that a cell shows, or that of its attribute data-sort, or NaN. parseFloat does not
 *  accept the minus sign U+2212. "<0.001" sorts before "0.001". */
function number(cell) {
  const [, below, shown] = /^(<?)(.*)$/s.exec((cell.dataset.sort ?? cell.textContent).trim().replaceAll("\u2212", "-").replaceAll(",", ""));
  return parseFloat(shown) - (below ? 1e-9 : 0);
}

function sort(table, column, descending) {
  const body = table.tBodies[0];
  const direction = descending ? -1 : 1;
  const compare = (a, b) => {
    const [left, right] = [a.cells[column], b.cells[column]];
    const difference = number(left) - number(right);
    if (!Number.isNaN(difference)) return direction * difference;
    // Cells without a number come last in both directions.
    const absent = Number.isNaN(number(left)) - Number.isNaN(number(right));
    return absent || direction * left.textContent.localeCompare(right.textContent);
  };
  const sorted = [...body.rows].sort(compare);
  // A row that is moved would lose the focus.
  if (sorted.some((row, number) => row !== body.rows[number])) body.append(...sorted);
}

/** Sorts a table again, after its rows have changed, by the column that it was sorted by. */
function resort(table) {
  const column = [...table.tHead.rows[0].cells].findIndex((head) => head.ariaSort);
  if (column >= 0) sort(table, column, table.tHead.rows[0].cells[column].ariaSort === "descending");
}

for (const table of document.querySelectorAll(".sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button")?.addEventListener("click", () => {
      const descending = head.ariaSort !== "descending";
      for (const other of heads) other.ariaSort = null;
      head.ariaSort = descending ? "descending" : "ascending";
      sort(table, column, descending);
    });
  });
}
