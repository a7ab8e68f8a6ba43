// State of the explorer, and its encoding in the URL fragment.

const VIEWS = ["one", "side", "difference"];

const initialState = () => ({
  view: "one",
  heads: [{ prompt: 0, layer: 0, head: 0 }, { prompt: 0, layer: 0, head: 0 }],
  active: 0, // index of the head that the grid changes
  scale: "sqrt",
  rest: false, // without the first token
  stretch: false, // the colour scale ends at the largest weight shown
  zoom: 0, // pixels per cell; 0 fits the matrix
  sorting: { score: "", order: "layer", low: "", high: "" },
  pin: null, // { axis, index }
});

/** URL fragment of a state, without values that equal the defaults. */
function asHash(state, prompts) {
  const head = ({ prompt, layer, head }) =>
    [prompt, prompts[prompt].layers[layer], prompts[prompt].columns[head]].join(".");
  const { sorting, pin } = state;
  const isCompared = state.view !== "one";
  const all = {
    head: head(state.heads[0]),
    other: isCompared && head(state.heads[1]),
    view: isCompared && state.view,
    scale: state.scale !== "sqrt" && state.scale,
    rest: state.rest && 1,
    stretch: state.stretch && 1,
    zoom: state.zoom,
    score: sorting.score,
    order: sorting.order !== "layer" && sorting.order,
    low: sorting.low,
    high: sorting.high,
    pin: pin && `${pin.axis}.${pin.index}`,
  };
  return new URLSearchParams(Object.entries(all).filter(([, value]) => value)).toString();
}

/** State from a URL fragment; missing or invalid values get their defaults. */
function fromHash(hash, prompts, scores) {
  const query = new URLSearchParams(hash.replace(/^#/, ""));
  const state = initialState();
  const among = (key, allowed, otherwise) => (allowed.includes(query.get(key)) ? query.get(key) : otherwise);
  const number = (key) => (Number.isFinite(parseFloat(query.get(key))) ? query.get(key) : "");
  state.heads = ["head", "other"].map((key) => placeOf(query.get(key), prompts) ?? state.heads[0]);
  if (!query.has("other")) state.heads[1] = neighbour(state.heads[0], prompts);
  state.view = among("view", VIEWS, state.view);
  state.scale = among("scale", Object.keys(SCALES), state.scale);
  state.rest = query.has("rest");
  state.stretch = query.has("stretch");
  state.zoom = MAGNIFICATIONS.find((cell) => cell === Number(query.get("zoom"))) ?? 0;
  state.sorting = {
    score: among("score", scores, ""),
    order: among("order", ["layer", "high", "low"], "layer"),
    low: number("low"),
    high: number("high"),
  };
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
