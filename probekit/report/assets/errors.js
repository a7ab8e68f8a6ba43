// Shows the worst errors of the probe at the point of the layer curve that is pointed at or chosen.

const section = document.querySelector(".errors");
const menu = section.querySelector("select");
const peek = section.querySelector(".peek");
const lists = new Map([...section.querySelectorAll("[data-probe]")].map((list) => [list.dataset.probe, list]));

/** Shows a list in the section, and its first errors below the curve. */
function show(name) {
  for (const [own, list] of lists) list.hidden = own !== name;
  const parts = [...lists.get(name).querySelectorAll("h3, .count, p:not(.note), .examples")];
  peek.replaceChildren(...parts.map((part) => part.cloneNode(true)));
  peek.querySelector("h3").removeAttribute("id");
}

document.querySelector(".screen .plot")?.append(peek);
show(menu.value);

// report.js sends these events for points of all figures; points without errors have no list.
document.addEventListener("pointhover", ({ detail: { name } }) => {
  if (lists.has(name)) show(name);
});
document.addEventListener("pointunhover", () => show(menu.value));
document.addEventListener("pointclick", ({ detail: { name } }) => {
  if (!lists.has(name)) return;
  menu.value = name;
  menu.dispatchEvent(new Event("change", { bubbles: true }));
});
menu.addEventListener("change", () => show(menu.value));
