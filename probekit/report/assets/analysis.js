// Switches the colouring of a map when the reader selects another view.

for (const choice of document.querySelectorAll(".choice select")) {
  const plot = choice.closest(".plot");
  choice.addEventListener("change", async () => {
    const texts = await Promise.all([...plot.querySelectorAll("script")].map(unpack));
    const [{ data }, changes] = texts.map(JSON.parse);
    const { traces, ground } = changes[choice.value];
    const drawing = plot.querySelector(".drawing");
    const view = data.map((trace, number) => ({ ...trace, ...traces[number] }));
    Plotly.react(drawing, view, { ...drawing.layout, plot_bgcolor: ground });
  });
}
