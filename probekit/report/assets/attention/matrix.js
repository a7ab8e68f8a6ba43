// The attention matrix of a head: rows are destinations, columns sources. Only the visible part is
// drawn, with the tokens along its edges, so that labels stay visible at any magnification.

const FONT = "12px ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace";
const LINE_HEIGHT = 14;
const LARGEST_CELL = 34;
const TALLEST = 760; // largest height of the matrix's viewport, in pixels
const MAGNIFICATIONS = [1, 2, 3, 4, 6, 8, 12, 16, 24, LARGEST_CELL];

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/** A token truncated to a width, inside bidi isolates so that it keeps its own direction. */
function fitted(context, token, width) {
  const characters = [...token];
  const text = () => (characters.length < [...token].length ? `${characters.join("")}…` : token);
  while (characters.length > 1 && context.measureText(text()).width > width) characters.pop();
  return `\u2068${text()}\u2069`;
}

class Matrix {
  /** `handlers.point` and `handlers.pin` are called with the cell or token hovered or clicked. */
  constructor(box, handlers) {
    this.box = box;
    this.extent = box.querySelector(".extent");
    this.canvas = box.querySelector("canvas");
    this.handlers = handlers;
    this.cursor = { row: 0, column: 0 };
    this.marks = {};
    box.addEventListener("scroll", () => this.draw());
    box.addEventListener("pointermove", (event) => handlers.point(this.at(event), event));
    box.addEventListener("pointerleave", (event) => handlers.point(null, event));
    box.addEventListener("click", (event) => handlers.pin(this.at(event), event));
    box.addEventListener("keydown", (event) => this.key(event));
  }

  show(shown, look, zoom) {
    Object.assign(this, { shown, look, zoom });
    this.cursor = this.inside(this.cursor);
    this.measure();
  }

  /** Outlines `marks.cell`, the hovered cell, and `marks.line`, the row or column shown in the text. */
  mark(marks) {
    this.marks = marks;
    this.draw();
  }

  measure() {
    const context = this.canvas.getContext("2d");
    context.font = FONT;
    const { tokens, size } = this.shown;
    const room = this.box.parentElement.clientWidth;
    const most = Math.min(150, room * 0.28);
    this.labels = tokens.map((token) => fitted(context, token, most));
    const widest = Math.max(...this.labels.map((label) => context.measureText(label).width));
    this.counter = context.measureText(String(size - 1)).width + 8; // column of the position numbers
    this.margin = Math.ceil(widest + this.counter) + 10;
    const fit = Math.min(LARGEST_CELL, (Math.min(room, TALLEST) - this.margin - 2) / size);
    this.fit = fit > 4 ? Math.floor(fit) : fit;
    this.cell = this.zoom || this.fit;
    const extent = Math.ceil(this.margin + this.cell * size) + 1;
    this.box.style.width = `${Math.min(room, extent)}px`;
    this.box.style.height = `${Math.min(extent, TALLEST)}px`;
    Object.assign(this.extent.style, { width: `${extent}px`, height: `${extent}px` });
    const side = Math.max(1, Math.min(size, Math.floor(this.cell * size * devicePixelRatio)));
    this.cells = canvasOf(this.shown, side, this.look);
    this.isPooled = side < size;
  }

  /** The next larger or smaller cell size; 0 fits the matrix into the window. */
  magnified(steps) {
    const others = MAGNIFICATIONS.filter((cell) => (steps > 0 ? cell > this.cell : cell < this.cell));
    const next = steps > 0 ? others[0] ?? this.zoom : others.at(-1) ?? 0;
    return next <= this.fit ? 0 : next;
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.box;
    const context = this.sharp(width, height);
    const { margin, cell, box, shown } = this;
    const [x, y] = [margin - box.scrollLeft, margin - box.scrollTop];
    const side = cell * shown.size;
    context.save();
    context.beginPath();
    context.rect(margin, margin, width - margin, height - margin);
    context.clip();
    context.fillStyle = this.style("--masked");
    context.fillRect(x, y, side, side);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.cells, x, y, side, side);
    this.drawMarks(context, x, y);
    context.restore();
    this.drawLabels(context, width, height);
    this.drawCorner(context);
  }

  /** The canvas's context, at the resolution of the screen. */
  sharp(width, height) {
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
    return context;
  }

  style(name) {
    return getComputedStyle(this.box).getPropertyValue(name).trim();
  }

  drawMarks(context, x, y) {
    const { cell, line } = this.marks;
    const thick = Math.max(this.cell, 2);
    context.strokeStyle = this.style("--ink");
    const long = this.cell * this.shown.size;
    if (line) {
      context.lineWidth = 1.5;
      const at = line.index * this.cell;
      if (line.axis === "row") context.strokeRect(x, y + at, (line.index + 1) * this.cell, thick);
      else context.strokeRect(x + at, y + at, thick, long - at);
    }
    if (cell) {
      context.lineWidth = 2;
      context.strokeRect(x + cell.column * this.cell, y + cell.row * this.cell, thick, thick);
    }
  }

  drawLabels(context, width, height) {
    const { margin, cell, box, labels, marks } = this;
    const step = Math.ceil(LINE_HEIGHT / cell); // labels that would overlap are skipped
    const sides = [
      { room: height, scrolled: box.scrollTop, marked: marks.cell?.row ?? this.lineOn("row"), turned: false },
      { room: width, scrolled: box.scrollLeft, marked: marks.cell?.column ?? this.lineOn("column"), turned: true },
    ];
    for (const { room, scrolled, marked, turned } of sides) {
      const first = Math.floor(scrolled / cell / step) * step;
      const last = Math.min(labels.length, Math.ceil((scrolled + room - margin) / cell));
      const near = (i) => i !== marked && Math.abs(i - marked) * cell < LINE_HEIGHT;
      for (let i = first; i < last; i += step) if (!near(i)) this.drawLabel(context, i, scrolled, turned, i === marked);
      if (marked % step) this.drawLabel(context, marked, scrolled, turned, true);
    }
  }

  lineOn(axis) {
    return this.marks.line?.axis === axis ? this.marks.line.index : undefined;
  }

  drawLabel(context, i, scrolled, turned, isMarked) {
    const middle = this.margin + (i + 0.5) * this.cell - scrolled;
    if (middle < this.margin) return;
    context.save();
    context.textBaseline = "middle";
    context.textAlign = turned ? "left" : "right";
    context.translate(...(turned ? [middle, this.margin - 6] : [this.margin - 6, middle]));
    if (turned) context.rotate(-Math.PI / 2); // reads upwards
    context.fillStyle = this.style(isMarked ? "--accent" : "--quiet");
    context.fillText(i, 0, 0);
    context.fillStyle = this.style(isMarked ? "--accent" : "--ink");
    context.fillText(this.labels[i], turned ? this.counter : -this.counter, 0);
    context.restore();
  }

  /** Draws the names of the axes in the corner, if there is room. */
  drawCorner(context) {
    if (this.margin < 84) return;
    context.fillStyle = this.style("--quiet");
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.fillText("dest ↓", 2, this.margin - 8);
    context.textAlign = "right";
    context.fillText("src →", this.margin - 8, 14);
  }

  /** The hovered cell, or the row or column whose token is hovered. */
  at(event) {
    const frame = this.box.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left - this.margin, event.clientY - frame.top - this.margin];
    const column = Math.floor((x + this.box.scrollLeft) / this.cell);
    const row = Math.floor((y + this.box.scrollTop) / this.cell);
    const isOn = (i) => i >= 0 && i < this.shown.size;
    if (x < 0 && y < 0) return null;
    if (x < 0) return isOn(row) ? { row } : null;
    if (y < 0) return isOn(column) ? { column } : null;
    return isOn(row) && column <= row ? { row, column } : null;
  }

  inside({ row, column }) {
    const inRow = clamp(row, 0, this.shown.size - 1);
    return { row: inRow, column: clamp(column, 0, inRow) };
  }

  key(event) {
    if (event.key in ARROWS) {
      const [down, right] = ARROWS[event.key];
      this.cursor = this.inside({ row: this.cursor.row + down, column: this.cursor.column + right });
      this.reveal(this.cursor);
      this.handlers.point(this.cursor, event);
    } else if (event.key === "Enter" || event.key === " ") {
      this.handlers.pin(this.cursor, event);
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Scrolls until the cell is visible. */
  reveal({ row, column }) {
    const { box, margin, cell } = this;
    const into = (at, scrolled, room) => clamp(scrolled, (at + 1) * cell + margin - room, at * cell);
    box.scrollTop = into(row, box.scrollTop, box.clientHeight);
    box.scrollLeft = into(column, box.scrollLeft, box.clientWidth);
  }
}
