// Shows the worst errors of the probe at the point of the layer curve that is pointed at or chosen.

const section = document.querySelector(".errors");
const menu = section.querySelector("select");
const peek = section.querySelector(".peek");
const lists = new Map([...section.querySelectorAll("[data-probe]")].map((list) => [list.dataset.probe, list]));

function show(name) {
  for (const [own, list] of lists) list.hidden = own !== name;
}

/** Whether the list of errors is on the screen. */
function isVisible() {
  const { top, bottom } = section.getBoundingClientRect();
  return top < innerHeight - 150 && bottom > 150;
}

/** Shows a list at the far edge of the window while the section itself is not on the screen. */
function peekAt(name, y) {
  const list = lists.get(name);
  peek.hidden = isVisible();
  peek.classList.toggle("top", y > innerHeight / 2);
  peek.replaceChildren(...[...list.children].map((child) => child.cloneNode(true)));
}

// report.js sends these events for points of all figures; points without errors have no list.
document.addEventListener("pointhover", ({ detail: { name, y } }) => {
  if (!lists.has(name)) return;
  show(name);
  peekAt(name, y);
});
document.addEventListener("pointunhover", () => {
  peek.hidden = true;
  show(menu.value);
});
document.addEventListener("pointclick", ({ detail: { name } }) => {
  if (!lists.has(name)) return;
  menu.value = name;
  show(name);
  peek.hidden = true;
  section.scrollIntoView({ block: "nearest" });
});
menu.addEventListener("change", () => show(menu.value));
