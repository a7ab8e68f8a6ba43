// Lines from token to token: queries on the left, keys on the right; the opacity of a line is its weight.

const FAINTEST = 0.01; // smallest opacity that is drawn
const HEAD_ROOM = 24; // pixels above the tokens, with the names of the columns
const PITCH = { least: 12, most: 18, scrolled: 14 }; // pixels from one token to the next

/** The smallest weight with a line, with the two digits that the page shows. */
const leastDrawn = (shown) => Number((FAINTEST * shown.top).toPrecision(2));

/** Cells with a line: those of a row or column, or else all with a query between two tokens. */
function linesOf(shown, line, [first, last]) {
  const least = leastDrawn(shown);
  const found = [];
  const add = (cell) => {
    const value = cell && valueAt(shown, cell);
    // The rounded value decides, because it is the one that the page shows.
    if (Math.abs(value) > least / 2 && Math.abs(asNumber(digits(value, shown))) >= least) found.push({ ...cell, value });
  };
  if (line) shown.tokens.forEach((_, token) => add(cellOn(line, token)));
  else for (let row = first; row <= last; row++) for (let column = 0; column <= row; column++) add({ row, column });
  return found;
}

/** Colour and opacity of a line; differences have the colour of their sign. */
function strokeOf(shown, look, value) {
  return [rgb(look.bar(shown)[value < 0 ? 0 : STEPS]), Math.min(1, Math.abs(value) / shown.top)];
}

class Lines extends Sheet {
  constructor(box, handlers) {
    super(box, handlers);
    this.cursor = { row: 0 };
  }

  show(shown, look) {
    Object.assign(this, { shown, look });
    const { size } = shown;
    this.room = this.tallest;
    const pitch = Math.floor((this.room - HEAD_ROOM) / size);
    this.pitch = pitch < PITCH.least ? PITCH.scrolled : Math.min(pitch, PITCH.most);
    const extent = HEAD_ROOM + size * this.pitch + 2;
    this.box.style.height = `${Math.min(extent, this.room)}px`;
    this.extent.style.height = `${extent}px`;
    this.measureLabels(Math.min(150, this.box.clientWidth * 0.28));
  }

  /** First and last visible token. */
  get visible() {
    const { box, pitch, shown } = this;
    const last = Math.ceil((box.scrollTop + box.clientHeight - HEAD_ROOM) / pitch) - 1;
    return [Math.floor(box.scrollTop / pitch), Math.min(shown.size - 1, last)];
  }

  get isScrolled() {
    return this.pitch * this.shown.size + HEAD_ROOM > this.room;
  }

  /** Scrolls until the tokens are visible; the last one takes precedence. */
  follow(tokens) {
    const { box, pitch } = this;
    for (const token of tokens) {
      box.scrollTop = scrolledTo(box.scrollTop, token * pitch, (token + 1) * pitch + HEAD_ROOM, box.clientHeight);
    }
  }

  paint(context, width, height) {
    context.save();
    context.beginPath();
    context.rect(0, HEAD_ROOM, width, height - HEAD_ROOM);
    context.clip();
    const lines = linesOf(this.shown, this.marks.line, this.visible);
    this.drawLines(context, width, lines);
    for (let token = this.visible[0]; token <= this.visible[1]; token++) {
      for (const axis of ["row", "column"]) this.drawToken(context, token, axis, lines);
    }
    context.restore();
    const quiet = this.style("--quiet");
    this.write(context, "query", this.margin - 6, HEAD_ROOM / 2, "right", quiet);
    this.write(context, "key", width - this.margin + 6, HEAD_ROOM / 2, "left", quiet);
  }

  middle(token) {
    return HEAD_ROOM + (token + 0.5) * this.pitch - this.box.scrollTop;
  }

  drawLines(context, width, lines) {
    const { shown, look, marks } = this;
    for (const { row, column, value } of lines) {
      [context.strokeStyle, context.globalAlpha] = strokeOf(shown, look, value);
      context.lineWidth = marks.cell?.row === row && marks.cell.column === column ? 4 : 1.5;
      context.beginPath();
      context.moveTo(this.margin, this.middle(row));
      context.lineTo(width - this.margin, this.middle(column));
      context.stroke();
    }
    context.globalAlpha = 1;
  }

  /** Draws a token of one column; a token that an isolated line reaches has the colour of its weight. */
  drawToken(context, token, axis, lines) {
    const { line } = this.marks;
    const isLeft = axis === "row";
    const y = this.middle(token);
    const [near, sign] = isLeft ? [this.margin, -1] : [this.box.clientWidth - this.margin, 1];
    const isChosen = line?.axis === axis && line.index === token;
    const reached = line && line.axis !== axis && lines.find((one) => one[axis] === token);
    const colour = reached ? this.look.colour(this.shown, reached.value) : null;
    context.fillStyle = colour ? rgb(colour) : "transparent";
    context.fillRect(isLeft ? 0 : near, y - this.pitch / 2, this.margin, this.pitch);
    const align = isLeft ? "right" : "left";
    const ink = (name) => (colour ? inkOn(colour) : this.style(isChosen ? "--ink" : name));
    this.write(context, token, near + sign * 6, y, align, ink("--quiet"));
    this.write(context, this.labels[token], near + sign * (6 + this.counter), y, align, ink("--ink"));
    if (!isChosen) return;
    context.strokeStyle = this.style("--frame");
    context.lineWidth = 1.5;
    context.strokeRect(isLeft ? 1 : near, y - this.pitch / 2, this.margin - 1, this.pitch);
  }

  /** The hovered token: a query on the left half, a key on the right. */
  at(event) {
    const frame = this.box.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top - HEAD_ROOM];
    const token = Math.floor((y + this.box.scrollTop) / this.pitch);
    if (y < 0 || token < 0 || token >= this.shown.size) return null;
    return x < this.box.clientWidth / 2 ? { row: token } : { column: token };
  }

  move(down, right, event) {
    const [[axis, token]] = Object.entries(this.cursor);
    const next = clamp(token + down, 0, this.shown.size - 1);
    this.cursor = { [right ? (right > 0 ? "column" : "row") : axis]: next };
    this.follow([next]);
    this.handlers.point(this.cursor, event, this);
  }
}
