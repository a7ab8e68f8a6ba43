// The attention matrix of a head: rows are queries, columns keys. Only the visible part is
// drawn, with the tokens along its edges, so that labels stay visible at any magnification.

const LARGEST_CELL = 34, READABLE_CELL = 14, VALUE_CELL = 26, LINES = 290; // pixels; LINES: least width, with the gap
const MAGNIFICATIONS = [1, 2, 3, 4, 6, 8, 12, 16, 24, LARGEST_CELL];
const SCROLLBAR = 16;

class Matrix extends Sheet {
  /** `handlers.zoom` is called with the box of cells to zoom to, `handlers.reset` to show all again. */
  constructor(box, handlers) {
    super(box, handlers);
    this.cursor = { row: 0, column: 0 };
    this.selection = new BoxSelection(this, handlers);
  }

  /** Prepares the matrix: cells of `zoom` pixels, or as large as those of a box can be, or fitted. */
  show(shown, look, zoom, box) {
    const region = box && Math.max(box.rows[1], box.columns[1]) < shown.size ? box : null;
    Object.assign(this, { shown, look, zoom });
    this.cursor = this.inside(this.cursor);
    const middle = this.centre();
    const { cell } = this;
    this.measure(region);
    if (region && JSON.stringify(region) !== JSON.stringify(this.region)) this.centreOn(middleOf(region));
    else if (cell !== this.cell && middle) this.centreOn(middle);
    this.region = region;
  }

  measure(region) {
    const room = this.box.closest(".pictures").clientWidth;
    this.room = this.tallest;
    this.measureLabels(Math.min(150, room * 0.28));
    const { size } = this.shown;
    // The lines are next to the matrix if they are shown and it is large enough then.
    const { hidden } = this.box.closest(".pictures").querySelector(".lines");
    const rest = room - LINES, isLarge = rest > 400 && rest - this.margin > READABLE_CELL * size;
    const width = isLarge && !hidden ? rest : room;
    const fit = Math.min(LARGEST_CELL, (Math.min(width, this.room) - this.margin - 2) / size);
    this.fit = fit > 4 ? Math.floor(fit) : fit;
    this.cell = this.zoom || (region ? this.cellOf(region, room) : this.fit);
    const extent = Math.ceil(this.margin + this.cell * size) + 1;
    this.box.style.width = `${Math.min(room, extent)}px`;
    this.box.style.height = `${Math.min(extent, this.room)}px`;
    Object.assign(this.extent.style, { width: `${extent}px`, height: `${extent}px` });
    const side = Math.max(1, Math.min(size, Math.floor(this.cell * size * devicePixelRatio)));
    this.cells = canvasOf(this.shown, side, this.look);
    this.isPooled = side < size;
  }

  /** Size of the cells with which a box fills the window. */
  cellOf({ rows, columns }, room) {
    const across = (room - this.margin - SCROLLBAR) / (columns[1] - columns[0] + 1);
    const down = (this.room - this.margin - SCROLLBAR) / (rows[1] - rows[0] + 1);
    return clamp(Math.min(across, down), this.fit, LARGEST_CELL);
  }

  /** Row and column in the middle of the window; null before the first drawing. */
  centre() {
    const { box, margin, cell } = this;
    if (!cell || !box.clientWidth) return null;
    return {
      row: (box.scrollTop + (box.clientHeight - margin) / 2) / cell,
      column: (box.scrollLeft + (box.clientWidth - margin) / 2) / cell,
    };
  }

  centreOn({ row, column }) {
    const { box, margin, cell } = this;
    box.scrollTop = row * cell - (box.clientHeight - margin) / 2;
    box.scrollLeft = column * cell - (box.clientWidth - margin) / 2;
  }

  /** The next larger or smaller cell size; 0 fits the matrix into the window. */
  magnified(steps) {
    const others = MAGNIFICATIONS.filter((cell) => (steps > 0 ? cell > this.cell : cell < this.cell));
    const next = steps > 0 ? others[0] ?? this.cell : others.at(-1) ?? 0;
    return next <= this.fit ? 0 : next;
  }

  paint(context, width, height) {
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

  drawMarks(context, x, y) {
    const { cell: side, marks: { cell, line }, selection } = this;
    const thick = Math.max(side, 2);
    const frame = (lineWidth, row, column, width, height) => {
      context.lineWidth = lineWidth;
      context.strokeRect(x + column * side, y + row * side, width, height);
    };
    context.strokeStyle = this.style("--frame");
    if (line?.axis === "row") frame(1.5, line.index, 0, (line.index + 1) * side, thick);
    if (line?.axis === "column") frame(1.5, line.index, line.index, thick, (this.shown.size - line.index) * side);
    if (cell) frame(2, cell.row, cell.column, thick, thick);
    const value = cell ? valueAt(this.shown, cell) : NaN;
    if (side >= VALUE_CELL && !Number.isNaN(value)) {
      const [ink, middle] = [inkOn(this.look.colour(this.shown, value)), y + (cell.row + 0.5) * side];
      this.write(context, value.toFixed(2).replace(/^(-?)0\./, "$1.").replace("-", "−"), x + (cell.column + 0.5) * side, middle, "center", ink);
    }
    if (!selection.box) return;
    const { rows, columns } = selection.box;
    const [height, width] = [rows, columns].map(([first, last]) => (last - first + 1) * side);
    context.setLineDash([5, 3]);
    frame(2, rows[0], columns[0], width, height);
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
    const [align, sign] = turned ? ["left", 1] : ["right", -1];
    context.save();
    context.translate(...(turned ? [middle, this.margin - 6] : [this.margin - 6, middle]));
    if (turned) context.rotate(-Math.PI / 2); // reads upwards
    this.write(context, i, 0, 0, align, this.style(isMarked ? "--ink" : "--quiet"));
    this.write(context, this.labels[i], sign * this.counter, 0, align, this.style("--ink"));
    context.restore();
  }

  /** Draws the names of the axes in the corner, if there is room. */
  drawCorner(context) {
    if (this.margin < 60) return;
    const quiet = this.style("--quiet");
    this.write(context, "query ↓", 2, this.margin - 11, "left", quiet);
    this.write(context, "key →", this.margin - 8, 11, "right", quiet);
  }

  /** Row and column under the pointer, which may be outside of the matrix. */
  under(event) {
    const frame = this.box.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left - this.margin, event.clientY - frame.top - this.margin];
    return {
      x, y,
      row: Math.floor((y + this.box.scrollTop) / this.cell),
      column: Math.floor((x + this.box.scrollLeft) / this.cell),
    };
  }

  /** The hovered cell, or the row or column whose token is hovered. */
  at(event) {
    const { x, y, row, column } = this.under(event);
    const place = { ...(y >= 0 && { row }), ...(x >= 0 && { column }) };
    const indices = Object.values(place);
    if (!indices.length || indices.some((i) => i < 0 || i >= this.shown.size)) return null;
    return indices.length === 2 && column > row ? null : place;
  }

  /** Whether the pointer is on the cells, not on labels or scroll bars. */
  isInside(event) {
    const { x, y } = this.under(event);
    const { clientWidth, clientHeight } = this.box;
    return x >= 0 && y >= 0 && x + this.margin < clientWidth && y + this.margin < clientHeight;
  }

  /** The cell nearest to the pointer, masked or not. */
  nearest(event) {
    const { row, column } = this.under(event);
    const last = this.shown.size - 1;
    return { row: clamp(row, 0, last), column: clamp(column, 0, last) };
  }

  inside({ row, column }) {
    const inRow = clamp(row, 0, this.shown.size - 1);
    return { row: inRow, column: clamp(column, 0, inRow) };
  }

  key(event) {
    if (event.key !== "Escape" || !this.selection.box) return super.key(event);
    this.selection.clear();
    event.stopPropagation();
  }

  enter(event) {
    if (this.selection.box) this.selection.apply();
    else super.enter(event);
  }

  /** Moves the cursor; with Shift, selects the cells between. */
  move(down, right, event) {
    const from = this.cursor;
    this.cursor = this.inside({ row: from.row + down, column: from.column + right });
    if (event.shiftKey) this.selection.extend(from, this.cursor);
    else this.selection.clear();
    this.reveal(this.cursor);
    this.handlers.point(this.cursor, event, this);
  }

  /** Scrolls until the cell is visible. */
  reveal({ row, column }) {
    const { box, margin, cell } = this;
    box.scrollTop = scrolledTo(box.scrollTop, row * cell, (row + 1) * cell + margin, box.clientHeight);
    box.scrollLeft = scrolledTo(box.scrollLeft, column * cell, (column + 1) * cell + margin, box.clientWidth);
  }
}

/** Row and column in the middle of a box. */
const middleOf = ({ rows, columns }) => ({ row: (rows[0] + rows[1] + 1) / 2, column: (columns[0] + columns[1] + 1) / 2 });
