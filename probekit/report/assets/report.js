// Draws each figure of the page with plotly, in the colours of the page.

const CONFIG = {
  responsive: true,
  displaylogo: false,
  // plotly would offer to upload the figure to its cloud.
  showSendToCloud: false,
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
};

/** The layout values that follow the page's colours. */
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

async function draw(plot) {
  const { data, layout } = JSON.parse(plot.querySelector("script").textContent);
  const drawing = plot.querySelector(".drawing");
  await Plotly.newPlot(drawing, data, layout, CONFIG);
  await Plotly.relayout(drawing, colours());
  drawn.push(drawing);
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
