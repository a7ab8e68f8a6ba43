// Grid of all heads: one row for each layer, or sorted by a score.

class HeadGrid {
  constructor(box, open) {
    Object.assign(this, { box, open });
    box.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) open(this.places.get(button));
    });
    box.addEventListener("keydown", (event) => this.key(event));
  }

  /** Draws the heads that pass the filter; returns the number of these and of all heads, and how they are arranged. */
  show(prompt, thumbnail, look, state) {
    this.places = new Map();
    const all = prompt.layers.flatMap((_, layer) => prompt.columns.map((__, head) => ({ layer, head })));
    const value = (place) => prompt.score(state.score, place);
    const passes = (place) => isWithin(value(place), state);
    const heads = all.filter(({ head }) => prompt.isHead(head));
    const passed = heads.filter(passes);
    const button = (place) => this.button(prompt, place, canvasOf(thumbnail(place), thumbnail(place).size, look), state);
    this.isRanked = Boolean(state.score) && state.order !== "layer";
    this.box.classList.toggle("ranked", this.isRanked);
    if (this.isRanked) {
      const sign = state.order === "high" ? -1 : 1;
      const rank = (place) => (Number.isNaN(value(place)) ? Infinity : sign * value(place));
      passed.sort((a, b) => rank(a) - rank(b) || 0); // stable for ties and for heads without a score
      this.box.style.gridTemplateColumns = "";
      this.box.replaceChildren(...passed.map(button));
    } else {
      this.box.style.gridTemplateColumns = `max-content repeat(${prompt.columns.length}, minmax(26px, 72px))`;
      const names = prompt.columns.map((name, head) => (prompt.isHead(head) ? `H${name}` : name));
      this.box.replaceChildren(...["", ...names].map((name) => element("span", {}, name)));
      for (const place of all) {
        if (!place.head) this.box.append(element("span", {}, `L${prompt.layers[place.layer]}`));
        const made = button(place);
        made.classList.toggle("out", prompt.isHead(place.head) && !passes(place));
        this.box.append(made);
      }
    }
    return { passed: passed.length, all: heads.length, text: arrangement(prompt, this.isRanked, state) };
  }

  button(prompt, place, canvas, { score }) {
    const title = prompt.name(place);
    const button = element("button", { type: "button", title, tabIndex: -1, ariaLabel: title }, canvas);
    if (this.isRanked) button.append(element("b", {}, prompt.shortName(place)));
    if (score && prompt.isHead(place.head)) {
      const value = scoreText(prompt.score(score, place));
      button.append(element("small", {}, value));
      button.ariaLabel += `, ${score.replace("_", " ")} ${value}`;
    }
    this.places.set(button, place);
    return button;
  }

  /** Marks the open heads; the active one, or else the first, can be reached with the tab key. */
  mark(open, active) {
    const buttons = [...this.places.keys()];
    const isAt = (button, place) => samePlace(this.places.get(button), place);
    const current = buttons.find((button) => isAt(button, active)) ?? buttons[0];
    for (const button of buttons) {
      button.setAttribute("aria-pressed", open.some((place) => isAt(button, place)));
      button.tabIndex = button === current ? 0 : -1;
    }
  }

  key(event) {
    const place = this.places.get(event.target);
    if (!place || !(event.key in ARROWS)) return;
    event.preventDefault();
    const [down, right] = ARROWS[event.key];
    const buttons = [...this.places.keys()];
    const columns = getComputedStyle(this.box).gridTemplateColumns.split(" ").length;
    const width = this.isRanked ? columns : columns - 1; // heads in a row, without the name of the layer
    const now = buttons.indexOf(event.target);
    const next = buttons[now + right + down * width];
    const isInRow = Math.floor(now / width) === Math.floor((now + right) / width);
    if (!next || !(isInRow || this.isRanked)) return;
    this.open(this.places.get(next));
    next.focus();
  }
}

const samePlace = (a, b) => a.layer === b.layer && a.head === b.head;

const scoreText = (value) => (Number.isNaN(value) ? "–" : value.toFixed(2).replace("-", "−"));

/** Whether a score, rounded as it is shown, is within the bounds of the filter; an empty bound is ignored. */
function isWithin(value, { score, low, high }) {
  if (!score) return true;
  const shown = asNumber(scoreText(value));
  return (low === "" || shown >= Number(low)) && (high === "" || shown <= Number(high));
}

/** How the heads are arranged, as a sentence; empty for a single head. */
function arrangement(prompt, isRanked, { score, order }) {
  if (isRanked) return `Heads by ${scoreTitles[score]}, ${order === "high" ? "highest" : "lowest"} first.`;
  const down = prompt.layers.length > 1 && "layers downwards";
  const across = prompt.columns.length > 1 && "heads across";
  const text = [down, across].filter(Boolean).join(", ");
  return text && `${text[0].toUpperCase()}${text.slice(1)}.`;
}
