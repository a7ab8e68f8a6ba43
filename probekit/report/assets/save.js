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

const TYPES = { f4: Float32Array, f8: Float64Array, i1: Int8Array, u1: Uint8Array, i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array };

/** Numbers of a trace as rows, also those that plotly.py writes as base 64. */
function rowsOf(values) {
  if (!values?.bdata) return values;
  const bytes = Uint8Array.from(atob(values.bdata), (character) => character.charCodeAt(0));
  const numbers = [...new TYPES[values.dtype](bytes.buffer)];
  if (!values.shape) return numbers;
  const [height, width] = values.shape.split(",").map(Number);
  return Array.from({ length: height }, (_, row) => numbers.slice(row * width, (row + 1) * width));
}

/** Series, place, value and hover text of each point of a figure; bands and texts in cells have none. */
function rowsOfFigure({ data, layout }) {
  const label = (axis, value) => {
    const { tickvals, ticktext } = layout[axis.replace(/^./, "$&axis")] ?? {};
    return plain(ticktext?.[tickvals?.indexOf(value)] || value);
  };
  const points = data.filter(({ hovertext, hovertemplate }) => hovertext ?? hovertemplate).flatMap(({ name, x0 = 0, hovertext, xaxis = "x", yaxis = "y", ...trace }) => {
    const [x, y, z] = [trace.x, trace.y, trace.z].map(rowsOf);
    const hover = [hovertext ?? []].flat(2).map(plain);
    const cells = z?.flatMap((line, row) => [...line].map((value, column) => [label(xaxis, column), label(yaxis, row), value]));
    const isLevel = typeof hovertext === "string"; // one text for a whole horizontal line
    const points = isLevel ? [["", "", y[0]]] : cells ?? [...y].map((value, point) => [label(xaxis, x?.[point] ?? x0 + point), "", value]);
    return points.map((point, number) => [plain(name), ...point, hover[number]]);
  });
  return [["series", "x", "y", "value", "details"], ...points];
}

/** A line of buttons, given as their texts and what they do. */
function bar(actions) {
  const line = element("span", { className: "saving" });
  for (const [text, act] of Object.entries(actions)) {
    const button = element("button", { type: "button", textContent: text });
    button.addEventListener("click", async () => {
      button.textContent = `${text}: ${await act().then(() => "done", () => "not allowed by the browser")}`;
    });
    line.append(button);
  }
  return line;
}

/** The run and the heading of a figure as a file name. */
function fileName(plot) {
  const heading = plot.querySelector("h2, h3") ?? plot.closest("details")?.querySelector("summary") ?? plot.closest("section")?.querySelector("h2");
  const run = document.querySelector(".eyebrow bdi:nth-of-type(2)") ?? document.querySelector("title");
  return [run, heading].map((one) => one?.textContent ?? "").join(" ").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 80);
}

for (const plot of document.querySelectorAll(".plot")) {
  const drawing = plot.querySelector(".drawing");
  plot.querySelector("figcaption").append(bar({
    // As written, in the colours of a light page and for a wide window.
    "Save SVG": () => Plotly.downloadImage(structuredClone(plot.shown.figure), {
      format: "svg", filename: fileName(plot), width: Math.max(640, drawing.offsetWidth), height: drawing.offsetHeight,
    }),
    "Copy CSV": async () => copy(asCsv(rowsOfFigure(plot.shown.figure))),
  }));
}
for (const table of document.querySelectorAll("table.numbers")) {
  const outer = table.closest(".scroll") ?? table;
  const frame = element("div");
  outer.replaceWith(frame);
  frame.append(outer, bar({ "Copy CSV": () => copy(asCsv(rowsOfTable(table))) }));
}
