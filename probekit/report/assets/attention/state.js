// What the reader has chosen, and the same as the part of an address behind #.

const VIEWS = ["one", "side", "difference"];

const initialState = () => ({
  view: "one",
  heads: [{ prompt: 0, layer: 0, head: 0 }, { prompt: 0, layer: 0, head: 0 }],
  active: 0, // which of the two the grid opens
  scale: "sqrt",
  rest: false, // without the first token
  stretch: false, // colours end at the largest weight shown
  zoom: 0, // pixels of a cell; 0 shows all
  sorting: { score: "", order: "layer", low: "", high: "" },
  pin: null, // { axis, index }
});

/** Short text of a state; what is as it was at the beginning is left out. */
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

/** The state that such a text stands for; what it does not say, or says wrongly, is as at first. */
function fromHash(hash, prompts, scores) {
  const asked = new URLSearchParams(hash.replace(/^#/, ""));
  const state = initialState();
  const among = (key, allowed, otherwise) => (allowed.includes(asked.get(key)) ? asked.get(key) : otherwise);
  const number = (key) => (Number.isFinite(parseFloat(asked.get(key))) ? asked.get(key) : "");
  state.heads = ["head", "other"].map((key) => placeOf(asked.get(key), prompts) ?? state.heads[0]);
  if (!asked.has("other")) state.heads[1] = neighbour(state.heads[0], prompts);
  state.view = among("view", VIEWS, state.view);
  state.scale = among("scale", Object.keys(SCALES), state.scale);
  state.rest = asked.has("rest");
  state.stretch = asked.has("stretch");
  state.zoom = MAGNIFICATIONS.find((cell) => cell === Number(asked.get("zoom"))) ?? 0;
  state.sorting = {
    score: among("score", scores, ""),
    order: among("order", ["layer", "high", "low"], "layer"),
    low: number("low"),
    high: number("high"),
  };
  const [axis, index] = (asked.get("pin") ?? "").split(".");
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

/** What to compare with at first: the same head of the next prompt, or else the next head. */
function neighbour({ prompt, layer, head }, prompts) {
  if (prompts.length > 1) return inRange({ prompt: (prompt + 1) % prompts.length, layer, head }, prompts);
  return { prompt, layer, head: (head + 1) % prompts[prompt].heads.length };
}

/** The place itself, or the nearest one that the prompt has. */
function inRange({ prompt, layer, head }, prompts) {
  const { layers, columns } = prompts[prompt];
  return { prompt, layer: Math.min(layer, layers.length - 1), head: Math.min(head, columns.length - 1) };
}
