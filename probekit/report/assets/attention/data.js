// Decoding of the weights packed by report/attention/page.py: lower triangles, row by row.

const rowStart = (row) => (row * (row + 1)) / 2;

/** Codes of weights, from deflated and base64-encoded text. */
async function unpacked(text, levels) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const buffer = await inflated(bytes).arrayBuffer();
  return levels > 255 ? new Uint16Array(buffer) : new Uint8Array(buffer);
}

const weightsOf = (codes, levels) => new Float32Array(codes).map((code) => (code / levels) ** 2);

/** Weights without those on the first token, rows renormalised to sum to 1; NaN is not drawn. */
function withoutFirst(values, size) {
  for (let row = 0; row < size; row++) {
    const others = values.subarray(rowStart(row) + 1, rowStart(row + 1));
    const sum = others.reduce((before, value) => before + value, 0) || 1;
    others.set(others.map((value) => value / sum));
    values[rowStart(row)] = NaN;
  }
  return values;
}

const MERGES = {
  mean: (all) => all[0].map((_, at) => all.reduce((sum, values) => sum + values[at], 0) / all.length),
  max: (all) => all[0].map((_, at) => Math.max(...all.map((values) => values[at]))),
};

/** A text and the attention of all its heads, which are decoded on first use. */
class Prompt {
  constructor(facts, levels, thumbnail) {
    const { thumbnails: small, ...others } = facts;
    Object.assign(this, others, { small, levels, thumbnail });
    this.size = this.tokens.length;
    this.columns = [...this.heads, ...(this.heads.length > 1 ? Object.keys(MERGES) : [])];
    Object.assign(this, { decoded: new Map(), smallDecoded: [] });
  }

  isHead(column) {
    return column < this.heads.length;
  }

  /** Short name such as "L4H11" or "L4 mean". */
  shortName({ layer, head }) {
    return `L${this.layers[layer]}${this.isHead(head) ? "H" : " "}${this.columns[head]}`;
  }

  name({ layer, head }) {
    const which = this.isHead(head) ? `head ${this.columns[head]}` : `${this.columns[head]} of its heads`;
    return `Layer ${this.layers[layer]}, ${which}`;
  }

  score(name, { layer, head }) {
    return this.scores[name]?.[layer][head] ?? NaN;
  }

  /** The head with the largest score; null if there are not two heads with a score. */
  highest(name) {
    const heads = this.layers.flatMap((_, layer) => this.heads.map((__, head) => ({ layer, head })));
    const scored = heads.filter((place) => !Number.isNaN(this.score(name, place)));
    if (scored.length < 2) return null;
    return scored.reduce((best, place) => (this.score(name, place) > this.score(name, best) ? place : best));
  }

  codes(layer, head) {
    const key = `${layer} ${head}`;
    if (!this.decoded.has(key)) this.decoded.set(key, unpacked(this.weights[layer][head], this.levels));
    return this.decoded.get(key);
  }

  /** Weights of a head, or the mean or maximum over the heads of a layer. */
  async values({ layer, head }, rest) {
    const one = async (number) => {
      const values = weightsOf(await this.codes(layer, number), this.levels);
      return rest ? withoutFirst(values, this.size) : values;
    };
    if (this.isHead(head)) return one(head);
    return MERGES[this.columns[head]](await Promise.all(this.heads.map((_, number) => one(number))));
  }

  /** Function that returns the thumbnail of a layer and head in the grid. */
  async thumbnails(rest) {
    const { levels, side: most } = this.thumbnail;
    const side = Math.min(this.size, most);
    const codes = (this.smallDecoded[Number(rest)] ??= unpacked(this.small[Number(rest)], levels));
    const weights = weightsOf(await codes, levels);
    const length = rowStart(side);
    return ({ layer, head }) => {
      const start = (layer * this.columns.length + head) * length;
      return { size: side, values: weights.subarray(start, start + length), top: 1, signed: false };
    };
  }
}

/** Function that returns the thumbnail of a layer and head: the difference of two texts, or that of one text. */
async function thumbnailsOf([prompt, other], rest) {
  const [own, subtracted] = await Promise.all([prompt, other].map((one) => one?.thumbnails(rest)));
  if (!other) return own;
  return (place) => {
    const [shown, { values }] = [own(place), subtracted(place)];
    return { ...shown, values: shown.values.map((value, at) => value - values[at]), signed: true };
  };
}

/** The matrix to draw: the weights of one head, or the difference of two heads. */
async function picture(prompts, [place, other], rest, stretch) {
  const prompt = prompts[place.prompt];
  const values = await prompt.values(place, rest);
  const { size, levels, tokens } = prompt;
  const shown = { values, size, levels, tokens, signed: Boolean(other), rest };
  if (other) {
    const subtracted = prompts[other.prompt];
    shown.parts = [Float32Array.from(values), await subtracted.values(other, rest)];
    shown.parts[1].forEach((value, at) => (values[at] -= value));
    const others = subtracted.tokens;
    shown.tokens = tokens.map((token, i) => (token === others[i] ? token : `${token} | ${others[i]}`));
  }
  // In the first row with a weight, all of it is on the only token that is left.
  shown.least = rowStart(rest ? 2 : 1);
  shown.largest = largest(values, shown.least);
  shown.top = stretch ? Math.abs(values[shown.largest]) || 1 : 1;
  return shown;
}

/** Index, from `start` on, of the value with the largest magnitude; undefined if there is none. */
function largest(values, start) {
  let best;
  for (let at = start; at < values.length; at++) {
    const isLarger = best === undefined || Math.abs(values[at]) > Math.abs(values[best]);
    if (isLarger && !Number.isNaN(values[at])) best = at;
  }
  return best;
}

/** Row and column of an index into the lower triangle. */
function cellAt(index) {
  const row = Math.floor((Math.sqrt(8 * index + 1) - 1) / 2);
  return { row, column: index - rowStart(row) };
}

const valueAt = (shown, { row, column }) => shown.values[rowStart(row) + column];

/** A value as text, with only the digits that quantisation preserves. */
function digits(value, shown) {
  if (Number.isNaN(value)) return "–";
  const error = (Math.sqrt(Math.abs(value)) + 0.25 / shown.levels) / shown.levels;
  const most = shown.signed || shown.rest ? 3 : 4; // derived values are less exact
  const places = Math.min(most, Math.max(2, Math.ceil(-Math.log10(error))));
  return value.toFixed(places).replace("-", "−");
}

/** The number that a text shows; NaN for a dash. */
const asNumber = (text) => Number(text.replace("−", "-"));
