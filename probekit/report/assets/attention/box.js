// Selection of a box of cells in the matrix, by dragging or with Shift and the arrow keys.

const LEAST_DRAG = 5; // pixels; a shorter drag is a click

class BoxSelection {
  /** `zoom` is called with the selected box, `reset` after a double click. */
  constructor(matrix, { zoom, reset }) {
    Object.assign(this, { matrix, zoom, corners: null });
    const { box } = matrix;
    box.addEventListener("pointerdown", (event) => this.start(event));
    box.addEventListener("pointermove", (event) => this.move(event));
    box.addEventListener("pointerup", () => this.end());
    box.addEventListener("pointercancel", () => this.clear());
    // Runs before the matrix's own listener: the click that ends a drag or a double click pins nothing.
    const isPart = (event) => this.wasDragged || event.detail > 1;
    box.addEventListener("click", (event) => isPart(event) && event.stopImmediatePropagation(), true);
    box.addEventListener("dblclick", reset);
  }

  /** First and last row and column of the selection; null without one. */
  get box() {
    if (!this.corners) return null;
    const [rows, columns] = ["row", "column"].map((axis) => this.corners.map((cell) => cell[axis]).sort((a, b) => a - b));
    return { rows, columns };
  }

  start(event) {
    this.wasDragged = false;
    // A finger scrolls.
    this.origin = event.button === 0 && event.pointerType !== "touch" && this.matrix.isInside(event) ? event : null;
  }

  move(event) {
    const { origin, matrix } = this;
    if (!origin || Math.hypot(event.clientX - origin.clientX, event.clientY - origin.clientY) < LEAST_DRAG) return;
    if (!this.wasDragged) matrix.box.setPointerCapture(event.pointerId);
    this.wasDragged = true;
    this.corners = [origin, event].map((at) => matrix.nearest(at));
    matrix.draw();
  }

  end() {
    if (this.origin && this.wasDragged) this.apply();
    this.origin = null;
  }

  /** Extends the selection from one cell to another. */
  extend(from, to) {
    this.corners = [this.corners?.[0] ?? from, to];
  }

  /** Zooms to the selection, unless all of it is masked. */
  apply() {
    const { box } = this;
    this.clear();
    if (box && box.columns[0] <= box.rows[1]) this.zoom(box);
  }

  clear() {
    this.corners = null;
    this.origin = null;
    this.matrix.draw();
  }
}
