// Text shown with a matrix: facts of a head, a cell, a row or a column.

const HINT = "Hover over a token to see what it attends to; hold Shift to see what attends to it.";
const bold = (text) => element("strong", {}, text);
const quoted = (shown, i) => element("bdi", {}, shown.tokens[i]);

function cellText(shown, { row, column }) {
  const parts = [`query[${row}] `, quoted(shown, row), ` → key[${column}] `, quoted(shown, column), " "];
  parts.push(bold(digits(valueAt(shown, { row, column }), shown)));
  if (shown.parts) {
    const [a, b] = shown.parts.map((values) => digits(values[rowStart(row) + column], { ...shown, signed: false }));
    parts.push(` (${a} − ${b})`);
  }
  return parts;
}

const MOST_LISTED = 3;

/** The largest values of a row or column. */
function lineText(shown, line) {
  const [own, others, arrow] = line.axis === "row" ? ["query", "key", "→"] : ["key", "query", "←"];
  const cells = shown.tokens.map((_, token) => [token, cellOn(line, token)]).filter(([, cell]) => cell);
  const values = cells.map(([token, cell]) => [token, valueAt(shown, cell)]).filter(([, value]) => !Number.isNaN(value));
  // The first token attends only to itself, in every head.
  const chosen = values.filter(([token]) => line.axis === "row" || rowStart(token) >= shown.least);
  const sorted = (chosen.length ? chosen : values).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  const listed = sorted.slice(0, MOST_LISTED).flatMap(([token, value], i) => [
    i ? ", " : "", `${others}[${token}] `, quoted(shown, token), " ", bold(digits(value, shown)),
  ]);
  return [`${own}[${line.index}] `, quoted(shown, line.index), ` ${arrow} `, ...listed];
}

const NEIGHBOURS = 12; // tokens on either side

/** A token with those around it: what is before it, itself, and what is after it. */
function neighbourhood(shown, name, token) {
  const joined = (from, to) => element("bdi", {}, ...shown.tokens.slice(Math.max(0, from), to));
  const parts = [joined(token - NEIGHBOURS, token), quoted(shown, token), joined(token + 1, token + 1 + NEIGHBOURS)];
  return [element("span", {}, `${name}[${token}]`), ...parts];
}

/** The neighbourhoods of a cell, or of the token of a row or column. */
function nearby(shown, line, cell) {
  const tokens = cell ? { query: cell.row, key: cell.column } : line ? { [line.axis === "row" ? "query" : "key"]: line.index } : {};
  return Object.entries(tokens).flatMap(([name, token]) => neighbourhood(shown, name, token));
}

/** Why the page opens on this head; empty for other heads. */
function reason([place, other]) {
  const prompt = prompts[place.prompt];
  const opening = prompt.highest(data.opening);
  if (other || place.prompt || !opening || !samePlace(place, opening)) return "";
  const count = prompt.layers.length * prompt.heads.length;
  const value = scoreText(prompt.score(data.opening, place));
  const most = data.opening === "induction"
    ? `this one has the highest induction score (${value})`
    : `this one has the weights that most exceed their means by distance and by key (“beyond average” ${value})`;
  return `Opened here: of ${count} heads, ${most}.`;
}

/** The cell that the answer of the page names, in pictures of that head and texts of that length. */
function namedCell({ places: [place, other], size }) {
  const [layer, head, row, column] = data.named;
  return !other && samePlace(place, { layer, head }) && size === prompts[0].size ? { row, column } : null;
}

/** What the lines show. */
function linesText(shown, isScrolled) {
  const [value, sign] = shown.signed ? ["size of the difference", ", their colour its sign"] : ["weight", ""];
  const full = shown.top === 1 ? "" : `, relative to ${tickText(shown.top)}`;
  const plural = shown.signed ? "Differences" : "Weights";
  const queries = isScrolled ? "the visible queries" : "queries";
  return `Lines run from ${queries} (left) to keys (right); their opacity is the ${value}${full}${sign}. ${plural} below ${leastDrawn(shown)} have no line.`;
}

/** Largest weight of a head, apart from that of the first token on itself, and its scores. */
function facts(shown) {
  const pairs = [];
  if (shown.largest !== undefined) {
    const { row, column } = cellAt(shown.largest);
    pairs.push(["largest", `${digits(shown.values[shown.largest], shown)} at query[${row}] → key[${column}]`]);
  }
  const [place] = shown.places;
  const prompt = prompts[place.prompt];
  if (!shown.signed && prompt.isHead(place.head)) {
    for (const name of scoreNames) pairs.push([scoreTitles[name], scoreText(prompt.score(name, place))]);
  }
  return pairs.map(([name, text]) => element("span", {}, `${name} `, element("b", {}, text)));
}
