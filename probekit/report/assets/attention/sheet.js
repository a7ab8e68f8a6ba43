// A canvas in a box that scrolls: only the visible part is drawn, at the resolution of the screen.

const FONT = "12px ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace";
const LINE_HEIGHT = 14;
const HEIGHTS = [360, 760]; // smallest and largest room of a picture, in pixels

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** A token truncated to a width, inside bidi isolates so that it keeps its own direction. */
function fitted(context, token, width) {
  const characters = [...token];
  const text = () => (characters.length < [...token].length ? `${characters.join("")}…` : token);
  while (characters.length > 1 && context.measureText(text()).width > width) characters.pop();
  return `\u2068${text()}\u2069`;
}

/** Scroll offset, changed as little as possible, at which the stretch from `start` to `end` is visible in `room`. */
const scrolledTo = (offset, start, end, room) => clamp(offset, end - room, start);

/** A part of a view with cells or tokens that can be hovered, clicked or reached with keys. */
class Pointed {
  /** `handlers.point` and `handlers.pin` are called with what `at` returns for the event. */
  constructor(box, handlers) {
    Object.assign(this, { box, handlers });
    box.addEventListener("pointermove", (event) => handlers.point(this.at(event), event, this));
    box.addEventListener("pointerleave", (event) => handlers.point(null, event, this));
    box.addEventListener("click", (event) => handlers.pin(this.at(event), event));
    box.addEventListener("keydown", (event) => this.key(event));
  }
}

class Sheet extends Pointed {
  constructor(box, handlers) {
    super(box, handlers);
    this.extent = box.querySelector(".extent");
    this.canvas = box.querySelector("canvas");
    this.marks = {};
    box.addEventListener("scroll", () => this.draw());
  }

  /** Arrow keys move the cursor, Enter and the space bar pin what it is on. */
  key(event) {
    if (event.key in ARROWS) this.move(...ARROWS[event.key], event);
    else if (event.key === "Enter" || event.key === " ") this.enter(event);
    else return;
    event.preventDefault();
  }

  enter(event) {
    this.handlers.pin(this.cursor, event);
  }

  /** Highlights `marks.cell`, the hovered cell, and `marks.line`, the row or column shown in the text. */
  mark(marks) {
    this.marks = marks;
    this.draw();
  }

  /** Sets `labels`, truncated to `most` pixels, `counter`, the room for a position, and `margin`, that for both. */
  measureLabels(most) {
    const context = this.canvas.getContext("2d");
    context.font = FONT;
    const { tokens, size } = this.shown;
    this.labels = tokens.map((token) => fitted(context, token, most));
    const widest = Math.max(...this.labels.map((label) => context.measureText(label).width));
    this.counter = context.measureText(String(size - 1)).width + 8;
    this.margin = Math.ceil(widest + this.counter) + 10;
  }

  /** Clears the canvas, sets the resolution of the screen, and paints; does nothing if the box is hidden. */
  draw() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!width || !this.shown) return;
    const scale = devicePixelRatio || 1;
    const pixels = { width: Math.round(width * scale), height: Math.round(height * scale) };
    if (this.canvas.width !== pixels.width || this.canvas.height !== pixels.height) {
      Object.assign(this.canvas, pixels);
      Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    context.direction = "ltr";
    this.paint(context, width, height);
  }

  /** Writes a text that begins ("left") or ends ("right") at a point. */
  write(context, text, x, y, textAlign, fillStyle) {
    Object.assign(context, { textAlign, fillStyle, textBaseline: "middle" });
    context.fillText(text, x, y);
  }

  /** Room for the picture: what the first screen has below its text, or a whole screen further down. */
  get tallest() {
    const top = this.box.closest(".pictures").getBoundingClientRect().top + scrollY;
    return clamp(innerHeight - 16 - (top < innerHeight ? top : 0), ...HEIGHTS);
  }

  style(name) {
    return getComputedStyle(this.box).getPropertyValue(name).trim();
  }
}
