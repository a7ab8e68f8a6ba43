// Draws each figure of the page with Plotly, in the colours of the page.

const CONFIG = {
  responsive: true,
  displaylogo: false,
  // The default button would upload the figure to Plotly's cloud.
  showSendToCloud: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};

// Figures are drawn by the library that the page contains compressed.
const library = document.createElement("script");
library.textContent = await unpack(document.querySelector("#plotly script"));
document.head.append(library);

for (const link of document.querySelectorAll("a.save")) {
  unpack(link.nextElementSibling).then((text) => {
    link.setAttribute("href", URL.createObjectURL(new Blob([text], { type: "text/csv" })));
  });
}

for (const source of document.querySelectorAll(".modules script")) {
  const module = document.createElement("script");
  module.type = "module";
  module.textContent = await unpack(source);
  document.head.append(module);
}

const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

/** Colours of the texts that name lines, by path: that of the line, mixed with the ink (see `label_colour` in style.py). */
function labelColours(layout, ink) {
  const mixed = (colour) => channels(colour).map((own, at) => Math.round(0.6 * own + 0.4 * channels(ink)[at]));
  return (layout.annotations ?? []).flatMap(({ arrowcolor, font }, number) => (
    arrowcolor && font?.color ? [[`annotations[${number}].font.color`, `rgb(${mixed(arrowcolor)})`]] : []
  ));
}

/** Layout colours taken from the page's style, by path in the layout. */
function colours(layout) {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const axes = Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name)).flatMap((axis) => [
    [`${axis}.gridcolor`, value("--grid")],
    [`${axis}.linecolor`, value("--line")],
    [`${axis}.tickcolor`, value("--line")],
  ]);
  const texts = [["font.color", value("--ink")], ["modebar.color", value("--quiet")]];
  return Object.fromEntries([...texts, ...axes, ...labelColours(layout, value("--ink"))]);
}

const drawn = [];

/** Sets values of a layout by path before the first draw, so that colours do not flicker; null is the default. */
function paint(layout, values) {
  for (const [path, value] of Object.entries(values)) {
    const names = path.split(/[.[\]]+/);
    const last = names.pop();
    const at = names.reduce((part, name) => (part[name] ??= {}), layout);
    if (value === null) delete at[last];
    else at[last] = value;
  }
  return layout;
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

/** Values of the layout, by path, with panels in one column or as they were written; sets the height of the drawing. */
function arranged(drawing, layout) {
  const axes = Object.keys(layout).filter((name) => /^xaxis\d*$/.test(name)).map((name) => [name, name.replace("x", "y")]);
  if (!layout.meta?.stacks || axes.length < 2) return {};
  drawing.style.height = drawing.dataset.height;
  drawing.style.minWidth = "";
  const { meta, margin } = layout;
  const isLong = layout.annotations?.some((note) => note.name === "panel title" && note.text.includes("<br>"));
  const gap = GAP + (isLong ? LINE : 0);
  const around = margin.t + 64; // and the labels of the last panel
  const [low, high] = layout.yaxis.domain ?? [0, 1];
  const panel = (drawing.offsetHeight - around) * (high - low);
  const whole = axes.length * (panel + gap) - gap;
  if (NARROW.matches) {
    drawing.style.height = `${whole + around}px`;
    drawing.style.minWidth = `calc(6rem + var(--least, 0rem) / ${axes.length})`;
  }
  return Object.fromEntries(axes.flatMap(([x, y], number) => {
    const top = 1 - number * (panel + gap) / whole;
    const isLast = number === axes.length - 1;
    const stacked = {
      [`${x}.domain`]: [0, 1],
      [`${x}.showticklabels`]: true,
      [`${x}.ticktext`]: meta.ticktext?.[x] ?? layout[x].ticktext,
      [`${x}.title.text`]: isLast ? layout[x].title.text : "",
      [`${y}.domain`]: [Math.max(0, top - panel / whole), top],
      [`${y}.showticklabels`]: true,
    };
    const read = (path) => path.split(".").reduce((at, part) => at?.[part], layout) ?? null;
    return Object.entries(stacked).map(([path, value]) => [path, NARROW.matches ? value : read(path)]);
  }));
}

/** Numbers of the maps whose colour bar is left out in narrow windows, because their cells contain the values. */
const scaled = (data) => (
  data.some(({ mode }) => mode === "text") ? data.flatMap(({ type, colorbar }, number) => (
    type === "heatmap" && colorbar?.orientation !== "h" ? [number] : []
  )) : []
);

/** Lets a map without its colour bar be narrower. */
function narrow(drawing, maps) {
  if (maps.length === 1) drawing.style.minWidth = NARROW.matches ? "calc(var(--least, 0rem) - 5rem)" : "";
}

/** Reads the figure of a plot once. */
const loaded = (plot) => (plot.loading ??= unpack(plot.querySelector("script")).then((text) => { plot.figure = JSON.parse(text); }));

/** The drawing, traces and layout of a figure, in the colours and for the width of the window. */
function prepared(plot) {
  const { data, layout } = structuredClone(plot.figure);
  const drawing = plot.querySelector(".drawing");
  drawing.dataset.height = drawing.style.height;
  drawing.written = plot.figure;
  const maps = scaled(data);
  if (NARROW.matches) maps.forEach((number) => { data[number].showscale = false; });
  narrow(drawing, maps);
  return [drawing, data, paint(layout, { ...colours(layout), ...arranged(drawing, drawing.written.layout) })];
}

async function draw(plot) {
  await loaded(plot);
  const [drawing, data, layout] = prepared(plot);
  drawn.push(drawing);
  await Plotly.newPlot(drawing, data, layout, CONFIG);
  NARROW.addEventListener("change", async () => {
    const { written } = drawing;
    const maps = scaled(written.data);
    const values = arranged(drawing, written.layout);
    if (maps.length) {
      const shown = maps.map((number) => !NARROW.matches && (written.data[number].showscale ?? true));
      await Plotly.restyle(drawing, { showscale: shown }, maps);
      narrow(drawing, maps);
    }
    await Plotly.relayout(drawing, values);
    await Plotly.Plots.resize(drawing);
  });
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

const recolour = () => Promise.all(drawn.map((drawing) => Plotly.relayout(drawing, colours(drawing.layout))));

document.addEventListener("themechange", recolour);

const choices = new Map(); // plot -> its figures by metric

/** Draws the figure of another metric in the place of the one that is shown. */
async function show(plot, metric) {
  await loaded(plot);
  const drawing = plot.querySelector(".drawing");
  const text = plot.querySelector("figcaption p") ?? plot.querySelector("figcaption");
  const heading = plot.querySelector("h2, h3") ?? plot.closest("section").querySelector("h2");
  if (!choices.has(plot)) {
    const first = { title: heading.textContent, figure: plot.figure, caption: text.textContent, description: drawing.ariaLabel, style: drawing.getAttribute("style") };
    choices.set(plot, [first, ...JSON.parse(await unpack(plot.querySelector(".others script")))]);
  }
  const all = choices.get(plot);
  const { title, figure, caption: words, description, style } = all.find((one) => one.metric === metric) ?? all[0];
  [heading.textContent, text.textContent, plot.figure] = [title, words, figure];
  drawing.ariaLabel = description;
  drawing.style.height = /height: ([^;]+)/.exec(style)?.[1] ?? "";
  if (drawn.includes(drawing)) await Plotly.react(...prepared(plot));
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
