// Measures the labels of lines and ticks in the first drawn figure: their number, and their faults.
(() => {
  const drawing = document.querySelector(".plot .drawing");
  const { layout, _fullLayout: full } = drawing;
  const page = drawing.getBoundingClientRect();
  const numbers = (text) => text.match(/-?\d+(\.\d+)?(e-?\d+)?/g).map(Number);
  const faults = [];

  /** Right ends of all drawn lines and upper edges of bands, by the panel they are in, in pixels of the window. */
  const ends = drawing.data.flatMap((trace, number) => {
    const y = full[(trace.yaxis ?? "y").replace("y", "yaxis")];
    const isGuide = trace.line?.width === 1.2 || trace.mode === "markers";
    if (isGuide || !trace.y?.length) return [];
    const last = trace.fill ? trace.y.length / 2 - 1 : trace.y.length - 1;
    const value = y.type === "log" ? Math.log10(trace.y[last]) : trace.y[last];
    const at = Math.min(Math.max(value, Math.min(...y.range)), Math.max(...y.range));
    const isNull = trace.legendgroup === "null";
    if (trace.fill && !isNull) return [];
    return [{ panel: trace.yaxis ?? "y", colour: trace.fill ? trace.fillcolor : trace.line.color, y: page.top + y._offset + y.l2p(at) }];
  });

  const labels = layout.annotations.flatMap((note, number) => {
    if (note.name !== "line label") return [];
    const group = drawing.querySelector(`.annotation[data-index="${number}"]`);
    const box = group.querySelector(".annotation-text-g").getBoundingClientRect();
    const shaft = group.querySelector(".annotation-arrow-g path");
    const leader = shaft?.getBoundingClientRect();
    const [, headY] = shaft ? numbers(shaft.getAttribute("d")).slice(-2) : [];
    return [{ note, box, leader, middle: (box.top + box.bottom) / 2, head: page.top + headY }];
  });

  for (const { note, box, leader, middle, head } of labels) {
    const own = ends.filter((end) => end.panel === note.yref && end.colour === note.arrowcolor);
    const distance = (y) => Math.min(...own.map((end) => Math.abs(end.y - y)));
    if (!leader || leader.width < 8) faults.push(`${note.text}: no leader`);
    if (!(distance(head) <= 2)) faults.push(`${note.text}: no line of its colour at its leader, but ${distance(head)} px away`);
    const isMoved = Math.abs(middle - head) > 3;
    const foreign = ends.filter((end) => end.panel === note.yref && end.colour !== note.arrowcolor);
    const nearest = Math.min(...foreign.map((end) => Math.abs(end.y - middle)));
    if (!isMoved && nearest < distance(middle)) faults.push(`${note.text}: nearer to a foreign line`);
    if (box.left < leader.right - 2) faults.push(`${note.text}: over its leader`);
    if (box.right > page.right + 1 || box.top < page.top - 1 || box.bottom > page.bottom + 1) faults.push(`${note.text}: cut off`);
  }
  for (const a of labels) {
    for (const b of labels) {
      const across = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      const along = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      if (a !== b && across > 2 && along > 0) faults.push(`${a.note.text}: overlap with ${b.note.text}`);
      if (a.note.yref === b.note.yref && a.head < b.head - 1 && a.middle > b.middle) faults.push(`${a.note.text}: leader crosses that of ${b.note.text}`);
    }
  }

  /** Lines of the labels of all layer axes: a label of several lines has one box for each. */
  const ticks = [...drawing.querySelectorAll("g[class^='x'][class$='tick'] text")].flatMap((text) => {
    const isSlanted = /rotate\((?!0[,)])/.test(text.getAttribute("transform"));
    const lines = text.querySelector("tspan.line") ? [...text.querySelectorAll("tspan.line")] : [text];
    return isSlanted ? [] : lines.filter((line) => line.textContent.trim()).map((line) => ({ name: text.textContent, text, box: line.getBoundingClientRect() }));
  });
  for (const [number, a] of ticks.entries()) {
    if (a.box.left < page.left - 1 || a.box.right > page.right + 1) faults.push(`${a.name}: tick cut off`);
    for (const b of ticks.slice(number + 1)) {
      const across = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      const along = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      if (a.text !== b.text && across > 2 && along > 0) faults.push(`${a.name}: ticks overlap with ${b.name}`);
    }
  }
  return { labels: labels.length, ticks: ticks.length, faults };
})()
