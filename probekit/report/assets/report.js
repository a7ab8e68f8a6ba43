// Draws each figure of the page with Plotly, in the colours of the page.

const CONFIG = {
  responsive: true,
  displaylogo: false,
  // The default button would upload the figure to Plotly's cloud.
  showSendToCloud: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};

// Figures are drawn by the library that the page contains compressed.
const library = element("script", { textContent: await unpack(document.querySelector("#plotly script")) });
document.head.append(library);

for (const link of document.querySelectorAll("a.save")) {
  unpack(link.nextElementSibling).then((text) => {
    link.setAttribute("href", URL.createObjectURL(new Blob([text], { type: "text/csv" })));
  });
}

for (const source of document.querySelectorAll(".modules script")) {
  document.head.append(element("script", { type: "module", textContent: await unpack(source) }));
}

/** Sets the colours of a layout to those of the page's style. */
function paint(layout) {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const [ink, grid, line] = [value("--ink"), value("--grid"), value("--line")];
  layout.font = { ...layout.font, color: ink };
  layout.modebar = { ...layout.modebar, color: value("--quiet") };
  for (const name of Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name))) {
    Object.assign(layout[name], { gridcolor: grid, linecolor: line, tickcolor: line });
  }
  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  // Texts that name lines have the colour of the line, mixed with the ink (see `label_colour` in style.py).
  for (const { arrowcolor, font } of layout.annotations ?? []) {
    if (!arrowcolor || !font?.color) continue;
    const mixed = channels(arrowcolor).map((own, at) => Math.round(0.6 * own + 0.4 * channels(ink)[at]));
    font.color = `rgb(${mixed})`;
  }
}

// Elements that Plotly makes clickable with a pointer only; keys are added here.
const PRESSED = ".modebar-btn, .legendtoggle";

/** Makes the buttons of a figure accessible; repeated after each plot, because Plotly recreates them. */
function name(drawing) {
  for (const button of drawing.querySelectorAll(PRESSED)) {
    const entry = button.parentElement.querySelector(".legendtext");
    button.setAttribute("role", "button");
    button.setAttribute("tabindex", "0");
    button.setAttribute("aria-label", button.dataset.title ?? `Show or hide ${entry?.textContent}`);
  }
}

function press(event) {
  const button = event.target.closest(PRESSED);
  if (!button || !["Enter", " "].includes(event.key)) return;
  event.preventDefault();
  for (const kind of ["mousedown", "mouseup", "click"]) {
    button.dispatchEvent(new MouseEvent(kind, { bubbles: true }));
  }
}

const NARROW = matchMedia("(max-width: 40rem)");
const GAP = 64; // pixels between stacked panels, for labels of ticks and a title
const LINE = 18; // pixels of the second line of a title
const TOP = 32; // pixels above plots without a margin of their own

/** Puts the panels of a layout into one column, and makes the drawing higher. */
function stack(drawing, layout) {
  const axes = Object.keys(layout).filter((name) => /^xaxis\d*$/.test(name));
  if (!layout.meta?.stacks || axes.length < 2) return;
  const { meta } = layout;
  const isLong = layout.annotations?.some((note) => note.name === "panel title" && note.text.includes("<br>"));
  const gap = GAP + (isLong ? LINE : 0);
  const around = (layout.margin?.t ?? TOP) + 64; // and the labels of the last panel
  const [low, high] = layout.yaxis.domain ?? [0, 1];
  const panel = (drawing.offsetHeight - around) * (high - low);
  const whole = axes.length * (panel + gap) - gap;
  drawing.style.height = `${whole + around}px`;
  drawing.style.minWidth = `calc(6rem + var(--least, 0rem) / ${axes.length})`;
  axes.forEach((name, number) => {
    const [x, y] = [layout[name], layout[name.replace("x", "y")]];
    const top = 1 - number * (panel + gap) / whole;
    Object.assign(x, { domain: [0, 1], showticklabels: true, ticktext: meta.ticktext?.[name] ?? x.ticktext });
    if (number < axes.length - 1) x.title = { ...x.title, text: "" };
    Object.assign(y, { domain: [Math.max(0, top - panel / whole), top], showticklabels: true });
  });
}

/** Leaves out the colour bar of maps whose cells contain the values; a single map also has smaller texts and needs less room. */
function dropScale(drawing, data) {
  const texts = data.filter(({ mode }) => mode === "text");
  const maps = data.filter(({ type, colorbar, showscale }) => type === "heatmap" && colorbar?.orientation !== "h" && showscale !== false);
  if (!texts.length) return;
  for (const map of maps) map.showscale = false;
  if (maps.length !== 1 || texts.length !== 1) return;
  texts[0].textfont = { ...texts[0].textfont, size: 10 };
  drawing.style.minWidth = "calc(var(--least, 0rem) - 5rem)";
}

const DIGIT = 8; // pixels of a digit of a tick label, and of the space after it

/** Leaves out numbers below an axis that would run into the one before them. */
function thin(drawing, layout) {
  const { l = 80, r = 80 } = layout.margin ?? {};
  for (const [name, axis] of Object.entries(layout)) {
    if (!/^xaxis\d*$/.test(name) || axis.tickangle || !axis.range || !Array.isArray(axis.ticktext)) continue;
    const [start, end] = axis.domain ?? [0, 1];
    const unit = (drawing.offsetWidth - l - r) * (end - start) / Math.abs(axis.range[1] - axis.range[0]);
    const numbers = axis.ticktext.filter((text) => /^\d+$/.test(text));
    const width = DIGIT * Math.max(...numbers.map(({ length }) => length));
    let free = -Infinity;
    axis.ticktext = axis.ticktext.map((text, number) => {
      if (!numbers.includes(text)) return text;
      const middle = Math.abs(axis.tickvals[number] - axis.range[0]) * unit;
      if (middle < free) return "";
      free = middle + width + DIGIT;
      return text;
    });
  }
}

const rgb = (colour) => (colour.match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);

/** The relative luminance (WCAG) of a colour scale at a share of its length. */
function luminance(scale, share) {
  const above = Math.max(1, scale.findIndex(([at]) => at >= share));
  const [[start, low], [end, high]] = [scale[above - 1], scale[above]];
  const [from, to] = [rgb(low), rgb(high)];
  const linear = from.map((part, at) => {
    const value = (part + (to[at] - part) * (share - start) / (end - start)) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

const MIDDLE = 0.179; // luminance with the same contrast to black and white

// Signed values on dark pages: equally light at both ends, dark in the middle; as in the attention page.
const SIGNED = ["220,214,247", "169,159,214", "111,98,168", "59,51,96", "32,38,46", "85,48,31", "150,86,47", "217,141,86", "255,210,176"];

/** Gives maps scales whose middle or low end is dark, like the page, and writes cells in the ink that fits. */
function darken(data, layout) {
  if (layout.plot_bgcolor?.startsWith("#")) layout.plot_bgcolor = "#3b434e"; // cells without a value
  for (const map of data.filter(({ type, colorscale }) => type === "heatmap" && colorscale?.[0]?.[1]?.startsWith("rgb"))) {
    const { colorscale, zmin, zmax, z, xaxis } = map;
    const [low, middle, high] = [0, 0.5, 1].map((share) => luminance(colorscale, share));
    if (high > 0.1 || Math.max(low, middle) < 0.7) continue;
    const isSigned = low < 0.7;
    map.colorscale = isSigned ? SIGNED.map((part, at) => [at / 8, `rgb(${part})`]) : colorscale.map(([at, colour]) => [1 - at, colour]).reverse();
    for (const { mode, x, y, xaxis: own, textfont } of data) {
      if (mode !== "text" || own !== xaxis || !Array.isArray(textfont?.color)) continue;
      textfont.color = x.map((column, cell) => {
        const value = z[y[cell]][column];
        if (value === null) return "#ffffff";
        const share = Math.min(1, Math.max(0, (value - zmin) / (zmax - zmin)));
        return luminance(map.colorscale, share) > MIDDLE ? "#000000" : "#ffffff";
      });
    }
  }
}

/** Reads the figure of a plot once. */
const loaded = (plot) => (plot.loading ??= unpack(plot.querySelector("script")).then((text) => {
  plot.shown = { figure: JSON.parse(text), style: plot.querySelector(".drawing").getAttribute("style") ?? "" };
}));

/** The drawing, traces and layout of a figure, in the colours and for the width of the window. */
function prepared(plot) {
  const { data, layout } = structuredClone(plot.shown.figure);
  const drawing = plot.querySelector(".drawing");
  drawing.setAttribute("style", plot.shown.style);
  if (plot.view) {
    data.forEach((trace, number) => Object.assign(trace, plot.view.traces[number]));
    layout.plot_bgcolor = plot.view.ground;
  }
  if (NARROW.matches) {
    dropScale(drawing, data);
    stack(drawing, layout);
  }
  thin(drawing, layout);
  if (document.documentElement.dataset.theme === "dark") darken(data, layout);
  paint(layout);
  layout.uirevision = drawing.ariaLabel; // the reader's zoom lasts until another figure is shown
  return [drawing, data, layout];
}

const drawn = new Set();

async function draw(plot) {
  await loaded(plot);
  const [drawing, data, layout] = prepared(plot);
  drawn.add(plot);
  await Plotly.newPlot(drawing, data, layout, CONFIG);
  drawing.querySelector(":scope > .still")?.remove(); // the picture for readers without scripts
  drawing.on("plotly_afterplot", () => name(drawing));
  drawing.addEventListener("keydown", press);
  // Sent to scripts of the page, with the custom data of the point.
  for (const kind of ["hover", "unhover", "click"]) {
    drawing.on(`plotly_${kind}`, ({ points }) => {
      const detail = { name: points?.[0]?.customdata };
      drawing.dispatchEvent(new CustomEvent(`point${kind}`, { bubbles: true, detail }));
    });
  }
  name(drawing);
}

/** Draws figures again that have changed, or whose page has. */
const redraw = (plots) => Promise.all([...plots].map((plot) => Plotly.react(...prepared(plot))));

document.addEventListener("themechange", () => redraw(drawn));
NARROW.addEventListener("change", () => redraw(drawn));

// Menus of maps select the colours of another view.
for (const menu of document.querySelectorAll(".choice select")) {
  const plot = menu.closest(".plot");
  menu.addEventListener("change", async () => {
    const [, views] = plot.querySelectorAll("script");
    plot.view = JSON.parse(await unpack(views))[menu.value];
    await redraw([plot]);
  });
}

/** Shows the figure of another metric in the place of the one that is shown. */
async function show(plot, metric) {
  await loaded(plot);
  const drawing = plot.querySelector(".drawing");
  const text = plot.querySelector("figcaption p");
  const heading = plot.querySelector("h2, h3") ?? plot.closest("section").querySelector("h2");
  if (!plot.choices) {
    // Before the wait, during which another choice may change the figure.
    const first = { ...plot.shown, title: heading.textContent, caption: text.textContent, description: drawing.ariaLabel };
    const others = JSON.parse(await unpack(plot.querySelector(".others script")));
    plot.choices ??= [first, ...others];
  }
  plot.shown = plot.choices.find((one) => one.metric === metric) ?? plot.choices[0];
  const { title, caption, description } = plot.shown;
  [heading.textContent, text.textContent, drawing.ariaLabel] = [title, caption, description];
  if (drawn.has(plot)) await redraw([plot]);
}

const menu = document.querySelector(".metric select");
const showMetric = () => Promise.all([...document.querySelectorAll(".plot:has(.others)")].map((plot) => show(plot, menu.value)));
menu?.addEventListener("change", showMetric);
if (menu?.selectedIndex) showMetric();

// A closed <details> has no width to draw into, so its figure is drawn when it is opened.
const plots = [...document.querySelectorAll(".plot")];
const closed = (plot) => plot.closest("details:not([open])");
for (const plot of plots) closed(plot)?.addEventListener("toggle", () => draw(plot), { once: true });
await Promise.all(plots.filter((plot) => !closed(plot)).map(draw));

/** Lets figures, which are as wide as the window, shrink to a sheet of paper; see report.css. */
function shrink({ type }) {
  for (const layer of document.querySelectorAll(".drawing .main-svg")) {
    const { width, height } = layer.getBoundingClientRect();
    if (type === "afterprint") layer.removeAttribute("viewBox");
    else layer.setAttribute("viewBox", `0 0 ${width} ${height}`);
    layer.style.maxWidth = type === "afterprint" ? "" : `${width}px`;
  }
}
for (const kind of ["beforeprint", "afterprint"]) addEventListener(kind, shrink);
