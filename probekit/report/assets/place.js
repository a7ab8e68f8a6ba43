// Ids of headings, a list of contents, and the state of the page in the URL fragment.

const taken = new Set([...document.querySelectorAll("[id]")].map((one) => one.id));

for (const heading of document.querySelectorAll("h1, h2, h3, summary")) {
  const words = heading.textContent.toLowerCase().match(/[\p{L}\p{N}]+/gu)?.slice(0, 8) ?? ["part"];
  let [id, number] = [words.join("-"), 1];
  while (!heading.id && taken.has(id)) id = [...words, ++number].join("-");
  heading.id ||= id;
  taken.add(heading.id);
}

/** The fragment as names and values; a fragment that is only an id is the value of "at". */
function fragment() {
  const text = location.hash.slice(1);
  return new URLSearchParams(text.includes("=") || !text ? text : { at: decodeURIComponent(text) });
}

function keep(name, value) {
  const all = fragment();
  if (value) all.set(name, value);
  else all.delete(name);
  try {
    history.replaceState(null, "", `#${all}`);
  } catch {} // frames of notebooks have no address
}

// Sections that are not as the page was written, and menus and fields that have a name.
const sections = [...document.querySelectorAll("details")].filter((one) => !one.closest(".explorer"));
const first = new Map(sections.map((one) => [one, one.open]));
const fields = [...document.querySelectorAll("select[name], input[name]")].filter((one) => !one.closest(".explorer"));
const idOf = (section) => section.querySelector("summary").id;
const toggled = () => sections.filter((one) => one.open !== first.get(one)).map(idOf).join(",");

function restore() {
  const all = fragment();
  const changed = (all.get("toggled") ?? "").split(",");
  for (const one of sections) one.open = first.get(one) !== changed.includes(idOf(one));
  for (const field of fields) {
    const value = all.get(field.name) ?? field.dataset.first;
    if (field.value === value) continue;
    field.value = value;
    field.dispatchEvent(new Event(field.type === "select-one" ? "change" : "input", { bubbles: true }));
  }
  const target = document.getElementById(all.get("at"));
  target?.closest("details")?.setAttribute("open", "");
  target?.scrollIntoView();
}

for (const field of fields) {
  field.dataset.first = field.value;
  for (const kind of ["input", "change"]) {
    field.addEventListener(kind, () => keep(field.name, field.value === field.dataset.first ? "" : field.value));
  }
}
// A toggle does not bubble.
document.addEventListener("toggle", () => keep("toggled", toggled()), true);
addEventListener("hashchange", restore);

const headings = [...document.querySelectorAll("main > section:not(.text) > h2")];
const contents = document.querySelector(".contents");
for (const heading of headings.length > 2 ? headings : []) {
  const link = Object.assign(document.createElement("a"), { href: `#${heading.id}`, textContent: heading.textContent });
  link.addEventListener("click", (event) => {
    event.preventDefault();
    keep("at", heading.id);
    heading.scrollIntoView();
  });
  contents.append(link);
}
if (location.hash) restore();
