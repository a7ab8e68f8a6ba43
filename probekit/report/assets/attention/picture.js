// Export of the view: a figure for papers (SVG, PNG) and a table of values (TSV).

const MOST_RECTANGLES = 96; // tokens; with more, the cells are drawn as one image
const DRAWN_SIDE = 720;
const DRAWN_FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace";

function svgElement(name, attributes, text) {
  const made = document.createElementNS(root.querySelector("svg").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** The matrix with token labels, colour bar and title on a white background, as an SVG element. */
function drawing(shown, look, name) {
  const { size, tokens } = shown;
  const cell = Math.min(28, DRAWN_SIDE / size);
  const context = element("canvas").getContext("2d");
  context.font = `11px ${DRAWN_FONT}`;
  const labels = tokens.map((token) => fitted(context, token, 150));
  const margin = Math.ceil(Math.max(...labels.map((label) => context.measureText(label).width))) + 10;
  const side = cell * size;
  const total = { width: Math.max(margin + side + 8, margin + 330), height: margin + side + 96 };
  const top = margin + 26;
  const svg = svgElement("svg", {
    viewBox: `0 0 ${total.width} ${total.height}`, ...total,
    "font-family": DRAWN_FONT, "font-size": 11, fill: "#1c2430",
  });
  svg.append(
    svgElement("title", {}, name),
    svgElement("rect", { width: "100%", height: "100%", fill: "#ffffff" }),
    svgElement("text", { x: 8, y: 17, "font-size": 13, "font-weight": 600 }, name),
    ...drawnLabels(labels, cell, margin, top),
    drawnCells(shown, look, cell, margin, top),
    ...drawnBar(shown, look, margin, top + side + 16),
  );
  return svg;
}

function drawnLabels(labels, cell, left, top) {
  const step = Math.ceil(12 / cell);
  return labels.flatMap((label, i) => {
    if (i % step) return [];
    const middle = (i + 0.5) * cell;
    const common = { "dominant-baseline": "central" };
    const turned = `translate(${left + middle} ${top - 5}) rotate(-90)`;
    return [
      svgElement("text", { ...common, x: left - 5, y: top + middle, "text-anchor": "end" }, label),
      svgElement("text", { ...common, transform: turned }, label),
    ];
  });
}

function drawnCells(shown, look, cell, left, top) {
  const group = svgElement("g", { transform: `translate(${left} ${top})`, "shape-rendering": "crispEdges" });
  const side = cell * shown.size;
  group.append(svgElement("rect", { width: side, height: side, fill: "#e6eaee" }));
  if (shown.size > MOST_RECTANGLES) {
    const place = { width: side, height: side, style: "image-rendering: pixelated" };
    group.append(svgElement("image", { ...place, href: canvasOf(shown, shown.size, look).toDataURL() }));
    return group;
  }
  shown.values.forEach((value, at) => {
    const { row, column } = cellAt(at);
    const place = { x: column * cell, y: row * cell, width: cell, height: cell };
    if (!Number.isNaN(value)) group.append(svgElement("rect", { ...place, fill: rgb(look.colour(shown, value)) }));
  });
  return group;
}

function drawnBar(shown, look, left, top) {
  const [width, height] = [200, 10];
  const strips = look.bar(shown).filter((_, step) => step % 4 === 0);
  const wide = width / strips.length;
  return [
    ...strips.map((colour, i) =>
      svgElement("rect", { x: left + i * wide, y: top, width: wide + 0.5, height, fill: rgb(colour) }),
    ),
    svgElement("text", { x: left, y: top + 42, "font-size": 10 }, look.title(shown)),
    ...look.ticks(shown).map((tick) => {
      const x = left + width * look.place(shown, tick);
      return svgElement("text", { x, y: top + 24, "text-anchor": "middle", "font-size": 10 }, tickText(tick));
    }),
  ];
}

const tickText = (tick) => String(Number(tick.toPrecision(2))).replace("-", "−");

function asSvg(svg) {
  return new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" });
}

/** The drawing as PNG, at twice its size. */
async function asPng(svg) {
  const text = new XMLSerializer().serializeToString(svg);
  const image = element("img", { src: `data:image/svg+xml,${encodeURIComponent(text)}` });
  await image.decode();
  const size = { width: 2 * svg.getAttribute("width"), height: 2 * svg.getAttribute("height") };
  const canvas = element("canvas", size);
  canvas.getContext("2d").drawImage(image, 0, 0, size.width, size.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Tab-separated values: destinations in rows, sources in columns; masked cells are empty. */
function asTable(shown) {
  const places = shown.levels > 255 ? 6 : 4;
  const text = (value) => (Number.isNaN(value) ? "" : value.toFixed(places));
  const head = ["", ...shown.tokens.map((token, i) => `src[${i}] ${token}`)];
  const rows = shown.tokens.map((token, i) => {
    const values = shown.values.subarray(rowStart(i), rowStart(i + 1));
    return [`dest[${i}] ${token}`, ...Array.from(values, text), ...Array(shown.size - i - 1).fill("")];
  });
  return [head, ...rows].map((row) => row.join("\t")).join("\n");
}

/** Copies text to the clipboard, also in frames without clipboard permission (notebooks). */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { value: text });
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    if (!isCopied) throw new Error("The browser does not allow this page to copy to the clipboard.");
  }
}
