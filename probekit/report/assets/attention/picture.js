// Export of the view: a figure for papers (SVG, PNG) and a table of values (TSV).

const MOST_RECTANGLES = 96; // tokens; with more, the cells are drawn as one image
const DRAWN_SIDE = 720;
const DRAWN_FONT = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace";

function svgElement(name, attributes, ...children) {
  const made = document.createElementNS(root.querySelector("svg").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const TITLE_HEIGHT = 26;

/** Parts of a picture next to each other on a white background, with a title, as an SVG element. */
function drawing(name, parts) {
  const width = Math.max(parts.reduce((sum, part) => sum + part.width, 0), 8 * name.length + 16);
  const height = TITLE_HEIGHT + Math.max(...parts.map((part) => part.height));
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, "font-family": DRAWN_FONT, "font-size": 11, fill: "#1c2430",
  });
  svg.append(
    svgElement("title", {}, name),
    svgElement("rect", { width: "100%", height: "100%", fill: "#ffffff" }),
    svgElement("text", { x: 8, y: 17, "font-size": 13, "font-weight": 600 }, name),
  );
  let left = 0;
  for (const part of parts) {
    svg.append(svgElement("g", { transform: `translate(${left} ${TITLE_HEIGHT})` }, ...part.elements));
    left += part.width;
  }
  return svg;
}

/** Labels of tokens, truncated, and the width that the widest needs. */
function measuredLabels(tokens) {
  const context = element("canvas").getContext("2d");
  context.font = `11px ${DRAWN_FONT}`;
  const labels = tokens.map((token) => fitted(context, token, 150));
  return { labels, margin: Math.ceil(Math.max(...labels.map((label) => context.measureText(label).width))) + 10 };
}

/** The matrix with token labels and colour bar. */
function matrixPart(shown, look) {
  const cell = Math.min(28, DRAWN_SIDE / shown.size);
  const { labels, margin } = measuredLabels(shown.tokens);
  const side = cell * shown.size;
  const elements = [
    ...drawnLabels(labels, cell, margin, margin),
    drawnCells(shown, look, cell, margin, margin),
    ...drawnBar(shown, look, margin, margin + side + 16),
  ];
  return { elements, width: Math.max(margin + side + 8, margin + 330), height: margin + side + 70 };
}

const DRAWN_PITCH = 15;
const DRAWN_SPAN = 220; // from the queries to the keys

/** The lines of a row or column, or all, between the first and last of some tokens. */
function linesPart(shown, look, line, [first, last]) {
  const { labels, margin } = measuredLabels(shown.tokens);
  const y = (token) => DRAWN_PITCH * (token - first + 1.5);
  const [left, right] = [margin, margin + DRAWN_SPAN];
  const isIn = (token) => token >= first && token <= last;
  const lines = linesOf(shown, line, [first, last]).filter(({ row, column }) => isIn(row) && isIn(column));
  const elements = lines.map(({ row, column, value }) => {
    const [stroke, opacity] = strokeOf(shown, look, value);
    return svgElement("line", {
      x1: left, y1: y(row), x2: right, y2: y(column), stroke, "stroke-opacity": opacity.toFixed(4), "stroke-width": 1.5,
    });
  });
  const label = (x, at, anchor, text) =>
    svgElement("text", { x, y: at, "text-anchor": anchor, "dominant-baseline": "central" }, text);
  elements.push(label(left - 5, y(first - 1), "end", "query"), label(right + 5, y(first - 1), "start", "key"));
  for (let token = first; token <= last; token++) {
    elements.push(label(left - 5, y(token), "end", labels[token]), label(right + 5, y(token), "start", labels[token]));
  }
  return { elements, width: right + margin + 8, height: y(last) + DRAWN_PITCH };
}

function drawnLabels(labels, cell, left, top) {
  const step = Math.ceil(12 / cell);
  return labels.flatMap((label, i) => {
    if (i % step) return [];
    const middle = (i + 0.5) * cell;
    const turned = `translate(${left + middle} ${top - 5}) rotate(-90)`;
    return [
      svgElement("text", { "dominant-baseline": "central", x: left - 5, y: top + middle, "text-anchor": "end" }, label),
      svgElement("text", { "dominant-baseline": "central", transform: turned }, label),
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

const written = (svg) => new XMLSerializer().serializeToString(svg);
const asSvg = (svg) => new Blob([written(svg)], { type: "image/svg+xml" });

/** The drawing as PNG, at twice its size. */
async function asPng(svg) {
  const image = element("img", { src: `data:image/svg+xml,${encodeURIComponent(written(svg))}` });
  await image.decode();
  const canvas = element("canvas", { width: 2 * svg.getAttribute("width"), height: 2 * svg.getAttribute("height") });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

const LEAST_WORDS = 5;
const LONGEST_SLUG = 60; // characters, at which the words are cut

/** The first words of a text for a file name: five, or more until no other text begins alike. */
function slugOf(text, others) {
  const words = (it) => it.normalize("NFC").toLowerCase().match(/[\p{L}\p{M}\p{N}]+/gu) ?? [];
  const own = words(text);
  const begin = (list, count) => list.slice(0, count).join("-");
  const isShared = (count) => others.some((other) => begin(words(other), count) === begin(own, count));
  let count = LEAST_WORDS;
  while (count < own.length && isShared(count)) count++;
  return [...begin(own, count)].slice(0, LONGEST_SLUG).join("") || "text";
}

/** Name of a saved picture: the model, the beginning of each text, and its head. */
function fileName(model, prompts, places, kind) {
  const parts = places.map(({ prompt, ...place }, i) => {
    const [text, head] = [prompts[prompt].text, prompts[prompt].shortName(place).replace(" ", "-")];
    if (i && prompt === places[0].prompt) return head;
    return `${slugOf(text, prompts.map((other) => other.text).filter((other) => other !== text))}-${head}`;
  });
  return `${model.replace(/[^\w.-]+/g, "-")}-${parts.join("-minus-")}.${kind}`;
}

function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Tab-separated values: queries in rows, keys in columns; masked cells are empty. */
function asTable(shown) {
  const places = shown.levels > 255 ? 6 : 4;
  const text = (value) => (Number.isNaN(value) ? "" : value.toFixed(places));
  const head = ["", ...shown.tokens.map((token, i) => `key[${i}] ${token}`)];
  const rows = shown.tokens.map((token, i) => {
    const values = shown.values.subarray(rowStart(i), rowStart(i + 1));
    return [`query[${i}] ${token}`, ...Array.from(values, text), ...Array(shown.size - i - 1).fill("")];
  });
  return [head, ...rows].map((row) => row.join("\t")).join("\n");
}
