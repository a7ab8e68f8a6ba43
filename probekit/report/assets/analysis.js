// Switches the colouring of a map when the reader selects another view.

for (const choice of document.querySelectorAll(".choice select")) {
  const plot = choice.closest(".plot");
  choice.addEventListener("change", async () => {
    const [, changes] = plot.querySelectorAll("script");
    const { traces, ground } = JSON.parse(await unpack(changes))[choice.value];
    const { data } = plot.figure;
    const drawing = plot.querySelector(".drawing");
    const view = data.map((trace, number) => ({ ...trace, ...traces[number] }));
    Plotly.react(drawing, view, { ...drawing.layout, plot_bgcolor: ground });
  });
}
