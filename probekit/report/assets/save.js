// Buttons that save a figure as SVG, and copy the numbers of a figure or table as CSV.

/** A label with tags and entities as a line of text. */
const plain = (label) => new DOMParser().parseFromString(String(label ?? "").replace(/(?!^)<br>/g, "; "), "text/html").body.textContent;

/** Rows as CSV: numbers without commas and with the minus sign of programs. */
const asCsv = (rows) => rows.map((row) => row.map((value) => {
  const text = String(value ?? "").replaceAll("\u2212", "-").replace(/(?<=\d),(?=\d{3}(?!\d))/g, "");
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}).join(",")).join("\n");

const rowsOfTable = (table) => (
  [...table.rows].map((row) => [...row.cells].map(({ innerText }) => innerText.trim().replace(/\s+/g, " ")))
);

/** Series, place, value and hover text of each point of a figure; bands and texts in cells have none. */
function rowsOfFigure({ data, layout }) {
  const label = (axis, value) => {
    const { tickvals, ticktext } = layout[axis.replace(/^./, "$&axis")] ?? {};
    return plain(ticktext?.[tickvals?.indexOf(value)] || value);
  };
  const points = data.filter(({ hovertext, hovertemplate }) => hovertext ?? hovertemplate).flatMap(({ name, x, y, z, hovertext, xaxis = "x", yaxis = "y" }) => {
    const hover = [hovertext ?? []].flat(2).map(plain);
    const cells = z?.flatMap((line, row) => [...line].map((value, column) => [label(xaxis, column), label(yaxis, row), value]));
    const isLevel = typeof hovertext === "string"; // one text for a whole horizontal line
    const points = isLevel ? [["", "", y[0]]] : cells ?? [...y].map((value, point) => [label(xaxis, x[point]), "", value]);
    return points.map((point, number) => [plain(name), ...point, hover[number]]);
  });
  return [["series", "x", "y", "value", "details"], ...points];
}

/** A line of buttons, given as their texts and what they do. */
function bar(actions) {
  const line = Object.assign(document.createElement("span"), { className: "saving" });
  for (const [text, act] of Object.entries(actions)) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: text });
    button.addEventListener("click", async () => {
      button.textContent = `${text}: ${await act().then(() => "done", () => "not allowed by the browser")}`;
    });
    line.append(button);
  }
  return line;
}

for (const plot of document.querySelectorAll(".plot")) {
  const drawing = plot.querySelector(".drawing");
  plot.querySelector("figcaption").append(bar({
    // As written, in the colours of a light page and for a wide window.
    "Save SVG": () => Plotly.downloadImage(structuredClone(drawing.written), {
      format: "svg", filename: document.title, width: Math.max(640, drawing.offsetWidth), height: drawing.offsetHeight,
    }),
    "Copy CSV": () => copy(asCsv(rowsOfFigure(drawing.written))),
  }));
}
for (const table of document.querySelectorAll("table.numbers")) {
  const frame = document.createElement("div");
  const outer = table.closest(".scroll") ?? table;
  outer.replaceWith(frame);
  frame.append(outer, bar({ "Copy CSV": () => copy(asCsv(rowsOfTable(table))) }));
}
