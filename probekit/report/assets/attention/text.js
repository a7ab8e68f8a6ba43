// The text, with tokens coloured by the attention from or to one token.

class TokenText extends Pointed {
  constructor(box, handlers) {
    super(box, handlers);
    box.addEventListener("focusin", (event) => handlers.point(this.at(event), event, this));
  }

  at(event) {
    const token = event.target.closest(".token");
    return token && { token: Number(token.dataset.at) };
  }

  /** Shows tokens; does nothing if they are already shown. */
  show(tokens) {
    if (this.tokens === tokens) return;
    this.tokens = tokens;
    this.parts = tokens.map((token, i) => tokenButton(token, i));
    const lines = this.parts.map((part, i) => (tokens[i].endsWith("⏎") ? [part, element("br")] : [part]));
    // Lines may break between tokens and preferably not inside them.
    this.box.replaceChildren(...lines.flatMap((line) => [element("wbr"), ...line]));
  }

  /** Whether the box shows only a part of the text at a time. */
  get isLong() {
    return this.box.scrollHeight > this.box.clientHeight + 1;
  }

  /** Scrolls until the tokens and the lines around them are visible; the last token takes precedence. */
  follow(tokens) {
    const { box } = this;
    for (const token of tokens) {
      const { offsetTop: top, offsetHeight: height } = this.parts[token];
      box.scrollTop = scrolledTo(box.scrollTop, top - 2 * height, top + 3 * height, box.clientHeight);
    }
  }

  /** Colours the tokens by a row or column of the matrix, or not if there is none, and outlines those of a cell. */
  paint(shown, look, line, pair) {
    this.parts.forEach((part, token) => {
      const cell = line && cellOn(line, token);
      const value = cell ? valueAt(shown, cell) : NaN;
      const colour = Number.isNaN(value) ? null : look.colour(shown, value);
      part.style.background = colour ? rgb(colour) : "";
      part.style.color = colour ? inkOn(colour) : "";
      part.classList.toggle("chosen", line?.index === token);
      part.classList.toggle("paired", pair?.row === token || pair?.column === token);
      part.setAttribute("aria-pressed", line?.index === token);
    });
  }

  key(event) {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    const [down, right] = ARROWS[event.key];
    const now = this.parts.indexOf(event.target);
    const next = this.parts[clamp(now + down + right, 0, this.parts.length - 1)];
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}

function tokenButton(token, i) {
  const [, space, shown] = token.match(/^(␣*)(.*)$/su);
  const facts = { type: "button", className: "token", tabIndex: i ? -1 : 0 };
  const button = element("button", facts, element("i", {}, space), element("bdi", {}, shown));
  button.dataset.at = i;
  return button;
}

/** The cell of a token in a row or column; null if it is masked. */
function cellOn({ axis, index }, token) {
  const cell = axis === "row" ? { row: index, column: token } : { row: token, column: index };
  return cell.column <= cell.row ? cell : null;
}
