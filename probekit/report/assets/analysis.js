// Switches the colouring of a map when the reader selects another view.

for (const choice of document.querySelectorAll(".choice select")) {
  const plot = choice.closest(".plot");
  const read = (query) => JSON.parse(plot.querySelector(query).textContent);
  choice.addEventListener("change", () => {
    const { data } = read("script");
    const { traces, ground } = read("script.views")[choice.value];
    const drawing = plot.querySelector(".drawing");
    const view = data.map((trace, number) => ({ ...trace, ...traces[number] }));
    Plotly.react(drawing, view, { ...drawing.layout, plot_bgcolor: ground });
  });
}
