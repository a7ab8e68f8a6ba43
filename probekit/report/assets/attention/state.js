// State of the explorer, and its encoding in the URL fragment.

// Allowed values of settings; the first one is the default.
const CHOICES = {
  view: ["one", "side", "difference"],
  picture: ["both", "matrix", "lines"],
  scale: ["sqrt", "linear", "log"],
  order: ["layer", "high", "low"],
};

const initialState = (opening) => ({
  ...Object.fromEntries(Object.entries(CHOICES).map(([name, [first]]) => [name, first])),
  heads: [opening, opening],
  active: 0, // index of the head that the grid changes
  rest: false, // without the first token
  stretch: false, // the colour scale ends at the largest weight shown
  zoom: 0, // pixels per cell; 0 fits the matrix or the box
  box: null, // { rows: [first, last], columns: [first, last] } to fit into the window
  score: "", // by which the heads are filtered and ordered
  low: "",
  high: "",
  pin: null, // { axis, index }
});

/** URL fragment of a state: the head, values that differ from the defaults, and what else the page has written there. */
function asHash(state, prompts, hash) {
  const head = ({ prompt, layer, head }) =>
    [prompt, prompts[prompt].layers[layer], prompts[prompt].columns[head]].join(".");
  const { view, picture, scale, zoom, box, score, order, low, high, pin } = state;
  const all = {
    head: head(state.heads[0]),
    other: view !== "one" && head(state.heads[1]),
    view, picture, scale,
    rest: state.rest && 1,
    stretch: state.stretch && 1,
    zoom,
    box: box && [box.rows, box.columns].map((ends) => ends.join("-")).join("."),
    score, order, low, high,
    pin: pin && `${pin.axis}.${pin.index}`,
  };
  const own = Object.entries(all).filter(([name, value]) => value && value !== CHOICES[name]?.[0]);
  const others = [...new URLSearchParams(hash.slice(1))].filter(([name, value]) => value && !(name in all));
  return new URLSearchParams([...own, ...others]).toString();
}

/** State from a URL fragment; missing or invalid values get their defaults. Without a head, several prompts are side by side. */
function fromHash(hash, prompts, scores, openingScore) {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  const state = initialState({ prompt: 0, layer: 0, head: 0, ...prompts[0].highest(openingScore) });
  if (prompts.length > 1 && !query.has("head")) state.view = "side";
  const among = (key, allowed, otherwise) => (allowed.includes(query.get(key)) ? query.get(key) : otherwise);
  state.heads = ["head", "other"].map((key) => placeOf(query.get(key), prompts) ?? state.heads[0]);
  if (!query.has("other")) state.heads[1] = neighbour(state.heads[0], prompts);
  for (const [name, allowed] of Object.entries(CHOICES)) state[name] = among(name, allowed, state[name]);
  state.rest = query.has("rest");
  state.stretch = query.has("stretch");
  state.zoom = MAGNIFICATIONS.find((cell) => cell === Number(query.get("zoom"))) ?? 0;
  state.box = state.zoom ? null : boxOf(query.get("box"), prompts[state.heads[0].prompt].size);
  state.score = among("score", scores, "");
  for (const key of ["low", "high"]) if (Number.isFinite(parseFloat(query.get(key)))) state[key] = query.get(key);
  const [axis, index] = (query.get("pin") ?? "").split(".");
  const isToken = Number(index) < prompts[state.heads[0].prompt].size && /^\d+$/.test(index);
  if (["row", "column"].includes(axis) && isToken) state.pin = { axis, index: Number(index) };
  return state;
}

function placeOf(text, prompts) {
  const [number, layerName, columnName] = (text ?? "").split(".");
  const prompt = /^\d+$/.test(number) && prompts[number];
  if (!prompt) return null;
  const layer = prompt.layers.findIndex((name) => String(name) === layerName);
  const head = prompt.columns.findIndex((name) => String(name) === columnName);
  return layer < 0 || head < 0 ? null : { prompt: Number(number), layer, head };
}

/** The box in a text such as "5-9.0-4", rows first. */
function boxOf(text, size) {
  const ends = /^(\d+)-(\d+)\.(\d+)-(\d+)$/.exec(text)?.slice(1).map(Number);
  if (!ends || ends[0] > ends[1] || ends[2] > ends[3] || Math.max(...ends) >= size) return null;
  return { rows: ends.slice(0, 2), columns: ends.slice(2) };
}

/** Default head to compare with: the same head of the next prompt, or the next head if there is one prompt. */
function neighbour({ prompt, layer, head }, prompts) {
  if (prompts.length > 1) return inRange({ prompt: (prompt + 1) % prompts.length, layer, head }, prompts);
  return { prompt, layer, head: (head + 1) % prompts[prompt].heads.length };
}

/** The layer and head, clamped to those that the prompt has. */
function inRange({ prompt, layer, head }, prompts) {
  const { layers, columns } = prompts[prompt];
  return { prompt, layer: Math.min(layer, layers.length - 1), head: Math.min(head, columns.length - 1) };
}
