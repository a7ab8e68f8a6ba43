// The attention explorer: everything on the page is drawn from one state. Text from the data is
// inserted only as textContent or as pixels, never as HTML.

const root = document.getElementById("attention");
const find = (selector) => root.querySelector(selector);

const data = JSON.parse(await unpack(find("script")));
const prompts = data.prompts.map((facts) => new Prompt(facts, data.levels, data.thumbnail));
const scoreTitles = Object.fromEntries(data.scores);
const scoreNames = Object.keys(scoreTitles).filter((name) => prompts.every(({ scores }) => name in scores));
// Inside a notebook's frame the URL is not that of the page that the reader sees.
const hasAddress = window === window.parent;

const stateAt = (hash) => fromHash(hash, prompts, scoreNames, data.opening);
let state = stateAt(hasAddress ? location.hash : "");
let hover = null; // hovered item: { row, column }, { row }, { column } or { token }
let pinBefore = null; // the pin before the last click
let hovered = null; // the part of the page that the hovered item is in
let isShifted = false;
let look;
let drawn = ""; // settings that the grid was last drawn with

const views = [makeView(), makeView()];
const picks = [makePick(0), makePick(1)];
const grid = new HeadGrid(find(".grid"), openHead);

/** Appends a copy of the element in a template to another element, and returns it. */
function copied(template, parent) {
  parent.append(find(template).content.cloneNode(true));
  return parent.lastElementChild;
}

function makeView() {
  const box = copied("template.view", find(".views"));
  const handlers = {
    point: pointAt, pin: pinAt,
    zoom: (cells) => change({ zoom: 0, box: cells }),
    // The first click of a double click has changed the pin.
    reset: () => change({ zoom: 0, box: null, pin: pinBefore }),
  };
  const part = (selector) => box.querySelector(selector);
  const view = {
    box, part,
    matrix: new Matrix(part(".matrix"), handlers),
    lines: new Lines(part(".lines"), handlers),
    text: new TokenText(part(".tokens"), handlers),
  };
  part(".zoom").addEventListener("click", ({ target }) => {
    if (target.value) change({ box: null, zoom: Number(target.value) && view.matrix.magnified(Number(target.value)) });
  });
  part(".actions").addEventListener("click", ({ target }) => target.name && exportView(view, target.name));
  return view;
}

function makePick(number) {
  const box = copied("template.pick", find(".picks"));
  box.setAttribute("aria-label", number ? "Head to compare with" : "Head shown");
  box.querySelector(".letter").addEventListener("click", () => change({ active: number }));
  box.addEventListener("change", ({ target }) => {
    const place = { ...state.heads[number], [target.name]: Number(target.value) };
    change({ active: number, heads: state.heads.with(number, inRange(place, prompts)) });
  });
  return box;
}

/** Updates the state and redraws everything that depends on it. */
function change(update) {
  state = { ...state, ...update };
  if (state.view === "one") state.active = 0;
  refresh();
}

/** Opens a head of the grid: in the active view, or in both if the grid shows differences of two texts. */
function openHead(place) {
  const isOpened = (number) => number === state.active || gridPrompts().length > 1;
  change({ heads: state.heads.map((head, number) => (isOpened(number) ? { ...head, ...place } : head)) });
}

/** The prompt whose heads the grid shows; two if it shows the differences of their heads. */
function gridPrompts() {
  const [a, b] = state.heads.map(({ prompt }) => prompt);
  const shape = ({ size, layers, columns }) => [size, layers, columns].join(" ");
  const isDifference = state.view === "difference" && a !== b && shape(prompts[a]) === shape(prompts[b]);
  return isDifference ? [a, b] : [state.heads[state.active].prompt];
}

let turns = 0;
let saving;

async function refresh() {
  const turn = ++turns;
  root.setAttribute("aria-busy", "true");
  look = new Look(data.colours, state.scale, isDark());
  showControls();
  const { scale, rest, score, order, low, high } = state;
  const gridOf = gridPrompts();
  const settings = JSON.stringify([gridOf, scale, rest, score, order, low, high, isDark()]);
  const shown = await Promise.all(headsByView().map((places) => pictureOrRefusal(places)));
  const thumbnails = settings === drawn ? null : await thumbnailsOf(gridOf.map((number) => prompts[number]), rest);
  if (turn !== turns) return; // the state changed while this was decoded
  if (thumbnails) showGrid(gridOf, thumbnails);
  drawn = settings;
  views.forEach((view, number) => showView(view, shown[number]));
  mark();
  root.setAttribute("aria-busy", "false");
  clearTimeout(saving);
  // Delayed, because browsers limit how often a page may change its URL.
  if (hasAddress) saving = setTimeout(save, 200);
}

const save = () => history.replaceState(null, "", `#${asHash(state, prompts, location.hash)}`);

/** The heads of each view: one, or two where the second is subtracted. */
function headsByView() {
  const { view, heads } = state;
  if (view === "side") return [[heads[0]], [heads[1]]];
  return [view === "one" ? [heads[0]] : heads];
}

async function pictureOrRefusal(places) {
  const name = places.map(placeName).join(" minus ");
  const sizes = places.map(({ prompt }) => prompts[prompt].size);
  if (new Set(sizes).size > 1) {
    return { name, refusal: `These texts have ${sizes.join(" and ")} tokens; a difference needs texts of equal length. Use the side-by-side view instead.` };
  }
  return { name, places, ...(await picture(prompts, places, state.rest, state.stretch)) };
}

function placeName(place) {
  const several = state.view !== "one" && new Set(state.heads.map(({ prompt }) => prompt)).size > 1;
  return prompts[place.prompt].name(place) + (several ? `, prompt ${place.prompt + 1}` : "");
}

function showControls() {
  for (const name of ["view", "picture", "scale"]) find(`[name=${name}][value=${state[name]}]`).checked = true;
  for (const name of ["rest", "stretch"]) find(`[name=${name}]`).checked = state[name];
  for (const control of find(".sorting").querySelectorAll("[name]")) {
    if (control.value !== state[control.name]) control.value = state[control.name];
    control.parentElement.hidden = control.name !== "score" && !state.score;
  }
  root.dataset.view = state.view;
  picks.forEach(showPick);
}

function showPick(box, number) {
  const { prompt, layer, head } = state.heads[number];
  const { layers, columns } = prompts[prompt];
  const isCompared = state.view !== "one";
  const [letter, ...selects] = box.children;
  box.hidden = number > 0 && !isCompared;
  letter.hidden = !isCompared;
  letter.textContent = "AB"[number];
  letter.setAttribute("aria-pressed", state.active === number);
  const lists = [
    [prompts.map(({ text }, i) => `${i + 1}  ${text.slice(0, 300)}`), prompt],
    [layers.map((name) => `layer ${name}`), layer],
    [columns.map((name, i) => (prompts[prompt].isHead(i) ? `head ${name}` : name)), head],
  ];
  selects.forEach((select, i) => fill(select, ...lists[i]));
  selects[0].hidden = prompts.length === 1;
}

function fill(select, names, chosen) {
  if (names.join("\n") !== select.dataset.names) {
    select.replaceChildren(...names.map((name, value) => element("option", { value }, name)));
    select.dataset.names = names.join("\n");
  }
  select.value = chosen;
}

function showGrid([number, other], thumbnails) {
  const prompt = prompts[number];
  const { passed, all, text } = grid.show(prompt, thumbnails, look, state);
  const difference = other === undefined ? "" : ` Each thumbnail is prompt ${number + 1} minus prompt ${other + 1}.`;
  find(".arrangement").textContent = text + difference;
  find(".passed").textContent = state.score ? `${passed} of ${all} heads` : "";
  find(".heads .pooled").hidden = prompt.size <= data.thumbnail.side;
}

function showView(view, shown) {
  view.box.hidden = !shown;
  view.shown = shown && !shown.refusal ? shown : null;
  if (!shown) return;
  view.part(".name").textContent = shown.name;
  view.part(".refusal").textContent = shown.refusal ?? "";
  view.part(".refusal").hidden = !shown.refusal;
  view.part(".content").hidden = !view.shown;
  if (!view.shown) return;
  view.part(".facts").replaceChildren(...facts(shown));
  view.text.show(shown.tokens);
  view.part(".nearby").hidden = !view.text.isLong;
  showPictures(view, shown);
  view.part(".reason").textContent = reason(shown.places);
  showKey(view.part(".key"), shown);
}

const hasPicture = (name) => [name, "both"].includes(state.picture);

function showPictures({ part, matrix, lines }, shown) {
  const [isMatrix, isLines] = ["matrix", "lines"].map(hasPicture);
  part(".frame").hidden = part(".zoom").hidden = !isMatrix;
  part(".lines").hidden = part(".linestext").hidden = !isLines;
  matrix.show(shown, look, state.zoom, state.box);
  lines.show(shown, look);
  part(".pooled").hidden = !isMatrix || !matrix.isPooled;
  part(".linestext").textContent = linesText(shown, lines.isScrolled);
}

function showKey(key, shown) {
  const stops = look.bar(shown).filter((_, step) => step % 16 === 0);
  key.firstElementChild.style.background = `linear-gradient(to right, ${stops.map(rgb).join(", ")})`;
  const ticks = look.ticks(shown).map((value) => (
    element("span", { style: `left: ${100 * look.place(shown, value)}%` }, tickText(value))
  ));
  key.lastElementChild.replaceChildren(...ticks);
  key.setAttribute("aria-label", `Colour scale of the ${look.title(shown)} from ${tickText(look.ticks(shown)[0])} to ${tickText(shown.top)}`);
}

/** The row or column that colours the text: the pinned one, or else the hovered one. */
const shownLine = () => state.pin ?? lineOf(hover, isShifted);

function lineOf(at, shifted) {
  if (!at) return null;
  if (at.row === undefined && at.column !== undefined) return { axis: "column", index: at.column };
  const axis = shifted ? "column" : "row";
  return { axis, index: at.token ?? at[axis] ?? at.row };
}

/** The hovered cell, or the cell of the hovered token in the pinned row or column. */
function shownCell() {
  if (!hover) return null;
  if (hover.row !== undefined && hover.column !== undefined) return hover;
  const token = hover.token ?? hover.row ?? hover.column;
  return state.pin && cellOn(state.pin, token);
}

function mark() {
  const [line, cell] = [shownLine(), shownCell()];
  for (const view of views) {
    const isIn = (i) => i < view.shown?.size;
    if (view.shown) markView(view, line && isIn(line.index) ? line : null, cell && isIn(cell.row) ? cell : null);
  }
  const active = state.heads[state.active];
  const open = state.view === "one" ? [active] : state.heads.filter(({ prompt }) => prompt === active.prompt);
  grid.mark(open, active);
}

function markView({ shown, part, matrix, lines, text }, line, cell) {
  text.paint(shown, look, line, cell);
  matrix.mark({ line, cell: cell ?? (line ? null : namedCell(shown)) });
  lines.mark({ line, cell });
  const tokens = cell ? [cell.column, cell.row] : line ? [line.index] : [];
  // What is under the pointer never moves.
  for (const other of [text, lines]) if (other !== hovered) other.follow(tokens);
  const readout = cell ? cellText(shown, cell) : line ? lineText(shown, line) : [element("span", { className: "hint" }, HINT)];
  part(".readout").replaceChildren(...readout);
  part(".nearby").replaceChildren(...nearby(shown, line, cell));
  for (const name of [".matrix", ".lines"]) part(name).setAttribute("aria-label", `${shown.name}. ${part(".readout").textContent}`);
}

function pointAt(at, event, source) {
  hovered = at && source;
  if (JSON.stringify([at, event.shiftKey]) === JSON.stringify([hover, isShifted])) return;
  hover = at;
  isShifted = event.shiftKey;
  mark();
}

/** Pins the hovered row or column, or unpins it if it is already pinned. */
function pinAt(at, event) {
  pinBefore = state.pin;
  const line = lineOf(at, event.shiftKey);
  if (!line) return;
  const isSame = state.pin?.axis === line.axis && state.pin?.index === line.index;
  change({ pin: isSame ? null : line });
}

const SAVED_AS = { svg: asSvg, png: asPng };

/** Copies the values of a view or saves its picture, and reports the result in the status line. */
async function exportView(view, kind) {
  const status = view.part(".status");
  try {
    if (kind === "tsv") {
      await copy(asTable(view.shown));
      status.textContent = `Copied ${view.shown.size} rows and columns.`;
      return;
    }
    const paper = new Look(data.colours, state.scale, false);
    const { shown, lines } = view;
    const parts = hasPicture("matrix") ? [matrixPart(shown, paper)] : [];
    if (hasPicture("lines")) parts.push(linesPart(shown, paper, lines.marks.line, lines.visible));
    const picture = drawing(`${data.model} · ${shown.name}`, parts);
    const name = fileName(data.model, prompts, shown.places, kind);
    download(await SAVED_AS[kind](picture), name);
    status.textContent = `Saved ${name}.`;
  } catch (error) {
    status.textContent = error.message;
  }
}

find(".app").addEventListener("input", ({ target }) => {
  if (target.closest(".pick")) return; // has a listener of its own
  const update = { [target.name]: target.type === "checkbox" ? target.checked : target.value };
  if (target.name === "score") update.order = target.value ? "high" : "layer";
  change(update);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (state.zoom || state.box) change({ zoom: 0, box: null });
  else if (state.pin) change({ pin: null });
});
for (const type of ["keydown", "keyup"]) {
  document.addEventListener(type, ({ key }) => {
    if (key !== "Shift" || !hover) return;
    isShifted = type === "keydown";
    mark();
  });
}
addEventListener("hashchange", () => {
  if (!new URLSearchParams(location.hash.slice(1)).has("head")) return; // a link to a heading
  state = stateAt(location.hash);
  refresh();
});
// What the timer would write after the page is left.
addEventListener("pagehide", () => hasAddress && save());
document.addEventListener("themechange", refresh);
addEventListener("resize", refresh);

find("[name=score]").append(...scoreNames.map((value) => element("option", { value }, scoreTitles[value])));
find(".address").hidden = !hasAddress;
find(".app").hidden = false;
refresh();
