// Draws each figure of the page with plotly, in the colours of the page.

const CONFIG = {
  responsive: true,
  displaylogo: false,
  // plotly would offer to upload the figure to its cloud.
  showSendToCloud: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};

/** The layout values that follow the page's colours, by their path. */
function colours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const axes = ["xaxis", "yaxis"].flatMap((axis) => [
    [`${axis}.gridcolor`, value("--grid")],
    [`${axis}.linecolor`, value("--line")],
    [`${axis}.tickcolor`, value("--line")],
  ]);
  const texts = [["font.color", value("--ink")], ["modebar.color", value("--quiet")]];
  return Object.fromEntries([...texts, ...axes]);
}

const drawn = [];

/** Sets values of a layout by their path, so that it is drawn in its colours at once. */
function paint(layout, values) {
  for (const [path, value] of Object.entries(values)) {
    const [name, last] = path.split(".");
    layout[name] = { ...layout[name], [last]: value };
  }
  return layout;
}

async function draw(plot) {
  const { data, layout } = JSON.parse(plot.querySelector("script").textContent);
  const drawing = plot.querySelector(".drawing");
  drawn.push(drawing);
  await Plotly.newPlot(drawing, data, paint(layout, colours()), CONFIG);
}

const recolour = () => Promise.all(drawn.map((drawing) => Plotly.relayout(drawing, colours())));

for (const query of ["(prefers-color-scheme: dark)", "print"]) {
  matchMedia(query).addEventListener("change", recolour);
}

const plots = [...document.querySelectorAll(".plot")];
await Promise.all(plots.filter((plot) => !plot.closest("details")).map(draw));

// A closed box has no width to draw into, so its figure waits until it is opened.
for (const plot of document.querySelectorAll("details .plot")) {
  plot.closest("details").addEventListener("toggle", () => draw(plot), { once: true });
}
