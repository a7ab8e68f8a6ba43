// Draws attention patterns: a grid of all heads, and one of them large. Token text reaches the page
// only as textContent or as pixels of a canvas, so it is never read as HTML.

const root = document.getElementById("attention");
const find = (selector) => root.querySelector(selector);
const { levels, colours, prompts } = JSON.parse(find("script").textContent);

const THUMBNAIL = 48; // pixels along a side at most: a longer prompt shows the maximum of each patch
const CELL = { smallest: 3, largest: 34 };
const FONT = "12px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
const LINE_HEIGHT = 14;
const TOP = LINE_HEIGHT / 2; // a label may be taller than its row

const stops = colours.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));

const state = { prompt: 0, layer: 0, head: 0, destination: 0, source: 0 };
let counts; // of 1/levels: head by head, the lower triangle row by row

const prompt = () => prompts[state.prompt];
const size = () => prompt().tokens.length;
const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

function decode(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Uint16Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true));
}

function headStart(layer, head) {
  const triangle = (size() * (size() + 1)) / 2;
  return (layer * prompt().heads.length + head) * triangle;
}

const rowStart = (destination) => (destination * (destination + 1)) / 2;

function weight(layer, head, destination, source) {
  return counts[headStart(layer, head) + rowStart(destination) + source] / levels;
}

/** The colour of a share of the scale, between the two nearest stops. */
function colour(share) {
  const place = clamp(share, 0, 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return stops[low].map((from, i) => from + (place - low) * (stops[low + 1][i] - from));
}

/** The head's weights as an image; pixels above the diagonal stay transparent. */
function image(layer, head, side, top) {
  const largest = new Float32Array(side * side).fill(-1);
  for (let destination = 0; destination < size(); destination++) {
    const row = Math.floor((destination * side) / size());
    for (let source = 0; source <= destination; source++) {
      const pixel = row * side + Math.floor((source * side) / size());
      largest[pixel] = Math.max(largest[pixel], weight(layer, head, destination, source));
    }
  }
  const pixels = new ImageData(side, side);
  largest.forEach((value, pixel) => {
    if (value >= 0) pixels.data.set([...colour(value / top), 255], 4 * pixel);
  });
  return pixels;
}

function element(name, properties) {
  return Object.assign(document.createElement(name), properties);
}

function drawGrid() {
  const { layers, heads } = prompt();
  const grid = find(".grid");
  grid.style.gridTemplateColumns = `max-content repeat(${heads.length}, minmax(20px, 84px))`;
  grid.replaceChildren(element("span"), ...heads.map((head) => element("span", { textContent: `H${head}` })));
  layers.forEach((name, layer) => {
    grid.append(element("span", { textContent: `L${name}` }));
    heads.forEach((_, head) => grid.append(thumbnail(layer, head)));
  });
}

function thumbnail(layer, head) {
  const side = Math.min(size(), THUMBNAIL);
  const canvas = element("canvas", { width: side, height: side });
  canvas.style.background = "var(--masked)";
  canvas.getContext("2d").putImageData(image(layer, head, side, 1), 0, 0);
  const button = element("button", { type: "button", title: headName(layer, head) });
  button.setAttribute("aria-label", headName(layer, head));
  button.dataset.place = `${layer} ${head}`;
  button.append(canvas);
  button.addEventListener("click", () => openHead(layer, head));
  return button;
}

const headName = (layer, head) => `Layer ${prompt().layers[layer]}, head ${prompt().heads[head]}`;

function openHead(layer, head) {
  Object.assign(state, { layer, head });
  for (const button of root.querySelectorAll(".grid button")) {
    const open = button.dataset.place === `${layer} ${head}`;
    button.setAttribute("aria-pressed", open);
    button.tabIndex = open ? 0 : -1;
  }
  find(".name").textContent = headName(layer, head);
  drawHead();
}

/** What the large view needs to know of its own measures. */
function geometry() {
  const context = find(".head canvas").getContext("2d");
  context.font = FONT;
  const room = find(".head .scroll").clientWidth;
  const labels = prompt().tokens.map((token, i) => label(context, token, i, room * 0.28));
  const margin = Math.ceil(Math.max(...labels.map((label) => context.measureText(label).width))) + 8;
  const left = margin + LINE_HEIGHT + 4; // the axis title stands beside the labels
  const cell = clamp(Math.floor((room - left) / size()), CELL.smallest, CELL.largest);
  return { labels, margin, left, cell, width: left + cell * size(), height: TOP + cell * size() + left };
}

/** A token with its position, cut by whole characters until it fits. */
function label(context, token, position, width) {
  // The marks around the token keep its direction of writing from reaching the position.
  const text = (shown) => `\u2068${shown}\u2069 ${position}`;
  const characters = [...token];
  const whole = () => characters.join("") + (characters.length < [...token].length ? "…" : "");
  while (characters.length > 1 && context.measureText(text(whole())).width > width) characters.pop();
  return text(whole());
}

function drawHead() {
  const { labels, margin, left, cell, width, height } = geometry();
  const canvas = find(".head canvas");
  const context = sharp(canvas, width, height);
  const side = cell * size();
  const top = find("[name=stretch]").checked ? largestWeight() : 1;
  context.fillStyle = style("--masked");
  context.fillRect(left, 0, side, side);
  const cells = element("canvas", { width: size(), height: size() });
  cells.getContext("2d").putImageData(image(state.layer, state.head, size(), top), 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(cells, left, 0, side, side);
  drawLabels(context, labels, left, cell);
  drawAxisTitles(context, margin, left, side);
  drawCursor(context, left, cell);
  find(".top").textContent = top === 1 ? "1" : top.toFixed(4);
  showReadout();
}

/** The canvas's context, with as many pixels as the screen has. */
function sharp(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  Object.assign(canvas, { width: width * scale, height: height * scale });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.translate(0, TOP);
  context.font = FONT;
  context.direction = "ltr";
  return context;
}

function largestWeight() {
  const start = headStart(state.layer, state.head);
  return counts.subarray(start, start + rowStart(size())).reduce((a, b) => Math.max(a, b)) / levels;
}

function drawLabels(context, labels, left, cell) {
  const step = Math.ceil(LINE_HEIGHT / cell); // labels that would overlap are left out
  context.fillStyle = style("--ink");
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let i = 0; i < labels.length; i += step) {
    const middle = (i + 0.5) * cell;
    context.fillText(labels[i], left - 6, middle);
    upright(context, left + middle, cell * labels.length + 6, () => context.fillText(labels[i], 0, 0));
  }
}

function drawAxisTitles(context, margin, left, side) {
  context.fillStyle = style("--quiet");
  context.textAlign = "center";
  context.fillText("source (looked at)", left + side / 2, side + margin + LINE_HEIGHT / 2);
  upright(context, LINE_HEIGHT / 2, side / 2, () => context.fillText("destination (attends)", 0, 0));
}

/** Draws something turned by a quarter, reading upwards. */
function upright(context, x, y, drawing) {
  context.save();
  context.translate(x, y);
  context.rotate(-Math.PI / 2);
  drawing();
  context.restore();
}

function drawCursor(context, left, cell) {
  context.strokeStyle = style("--ink");
  context.lineWidth = 2;
  context.strokeRect(left + state.source * cell, state.destination * cell, cell, cell);
}

function showReadout() {
  const { layer, head, destination, source } = state;
  const token = (i) => element("bdi", { textContent: prompt().tokens[i] });
  const value = weight(layer, head, destination, source).toFixed(4);
  const readout = find(".readout");
  readout.replaceChildren(
    `dest[${destination}] `, token(destination), ` → src[${source}] `, token(source), " ",
    element("strong", { textContent: value }),
  );
  find(".head canvas").setAttribute("aria-label", `${headName(layer, head)}: ${readout.textContent}`);
}

function moveTo(destination, source) {
  state.destination = clamp(destination, 0, size() - 1);
  state.source = clamp(source, 0, state.destination);
  drawHead();
}

function showPrompt(number) {
  Object.assign(state, { prompt: number, destination: 0, source: 0 });
  counts = decode(prompt().weights);
  drawGrid();
  openHead(Math.min(state.layer, prompt().layers.length - 1), Math.min(state.head, prompt().heads.length - 1));
}

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function onArrow(target, move) {
  target.addEventListener("keydown", (event) => {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    move(...ARROWS[event.key]);
  });
}

onArrow(find(".grid"), (down, right) => {
  const layer = clamp(state.layer + down, 0, prompt().layers.length - 1);
  const head = clamp(state.head + right, 0, prompt().heads.length - 1);
  openHead(layer, head);
  find("[aria-pressed=true]").focus();
});
onArrow(find(".head canvas"), (down, right) => moveTo(state.destination + down, state.source + right));

find(".head canvas").addEventListener("pointermove", (event) => {
  const { left, cell } = geometry();
  const [source, destination] = [event.offsetX - left, event.offsetY - TOP].map((at) => Math.floor(at / cell));
  if (source >= 0 && source <= destination && destination < size()) moveTo(destination, source);
});

const choice = find("[name=prompt]");
choice.append(...prompts.map(({ text }, value) => element("option", { textContent: text, value })));
choice.addEventListener("change", () => showPrompt(Number(choice.value)));
find("[name=stretch]").addEventListener("change", drawHead);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawHead);
addEventListener("resize", drawHead);

const css = stops.map((stop) => `rgb(${stop})`).join(", ");
find(".bar").style.background = `linear-gradient(to right, ${css})`;
showPrompt(0);
