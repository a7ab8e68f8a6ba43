// Colours of values: a scale maps a value to a point on the colour bar.

const DECADES = 4; // range of the logarithmic scale below its maximum

const SCALES = {
  linear: { name: "linear", share: (x) => x, ticks: [0, 0.25, 0.5, 0.75, 1] },
  sqrt: { name: "square-root", share: Math.sqrt, ticks: [0, 0.01, 0.1, 0.25, 0.5, 1] },
  log: { name: "logarithmic", share: (x) => Math.max(0, 1 + Math.log10(x) / DECADES), ticks: [1e-4, 1e-3, 0.01, 0.1, 1] },
};

const STEPS = 256; // even, so that a difference of 0 gets the middle colour

const isDark = () => document.documentElement.dataset.theme === "dark";

/** STEPS + 1 colours, interpolated between the stops of a scale. */
function gradient(stops) {
  return Array.from({ length: STEPS + 1 }, (_, step) => {
    const place = (step / STEPS) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    return stops[low].map((from, i) => Math.round(from + (place - low) * (stops[low + 1][i] - from)));
  });
}

/** Colouring of values: a scale, and colours for a light or dark page. */
class Look {
  constructor(colours, scale, dark) {
    const theme = dark ? "dark" : "light";
    this.scale = SCALES[scale];
    this.weights = gradient(colours.weights[theme]);
    this.differences = gradient(colours.differences[theme]);
  }

  /** Title of the colour bar. */
  title(shown) {
    const rest = shown.rest ? ", without the first token, rows renormalised" : "";
    return `${shown.signed ? "difference of attention weights" : "attention weight"} (${this.scale.name} scale${rest})`;
  }

  bar(shown) {
    return shown.signed ? this.differences : this.weights;
  }

  /** Position of a value on the colour bar, from 0 to 1; a difference of 0 is at 0.5. */
  place(shown, value) {
    const share = this.scale.share(Math.min(1, Math.abs(value) / shown.top));
    return shown.signed ? 0.5 + (Math.sign(value) * share) / 2 : share;
  }

  colour(shown, value) {
    return this.bar(shown)[Math.round(STEPS * this.place(shown, value))];
  }

  /** Tick values of the colour bar. */
  ticks(shown) {
    const values = this.scale.ticks.map((tick) => tick * shown.top);
    if (!shown.signed) return values;
    return [-shown.top, -shown.top / 4, 0, shown.top / 4, shown.top];
  }
}

const rgb = (colour) => `rgb(${colour.join(", ")})`;

/** Black or white, whichever has more contrast with the colour (WCAG relative luminance). */
function inkOn(colour) {
  const [r, g, b] = colour.map((part) => {
    const x = part / 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

/** Canvas of side x side pixels. Several values in a pixel are max-pooled by absolute value; masked
 *  cells are transparent. */
function canvasOf(shown, side, look) {
  const { size, values } = shown;
  const pooled = new Float32Array(side * side).fill(NaN);
  for (let row = 0, at = 0; row < size; row++) {
    const start = Math.floor((row * side) / size) * side;
    for (let column = 0; column <= row; column++, at++) {
      const pixel = start + Math.floor((column * side) / size);
      const isLarger = Math.abs(values[at]) > Math.abs(pooled[pixel]);
      if (isLarger || Number.isNaN(pooled[pixel])) pooled[pixel] = values[at];
    }
  }
  const image = new ImageData(side, side);
  const colours = new Uint32Array(look.bar(shown).map(([r, g, b]) => (0xff000000 | (b << 16) | (g << 8) | r) >>> 0));
  const pixels = new Uint32Array(image.data.buffer);
  pooled.forEach((value, pixel) => {
    if (!Number.isNaN(value)) pixels[pixel] = colours[Math.round(STEPS * look.place(shown, value))];
  });
  const canvas = element("canvas", { width: side, height: side });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
