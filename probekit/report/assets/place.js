// Ids of headings, a list of contents, and the view of the reader in the URL fragment.

const taken = new Set([...document.querySelectorAll("[id]")].map((one) => one.id));
for (const heading of document.querySelectorAll("h1, h2, h3, summary")) {
  const words = heading.textContent.toLowerCase().match(/[\p{L}\p{N}]+/gu)?.slice(0, 8) ?? ["part"];
  let [id, number] = [words.join("-"), 1];
  while (taken.has(id)) id = [...words, ++number].join("-");
  heading.id ||= id;
  taken.add(heading.id);
}

// Sections, menus and fields with a name, as they were written. The explorer has its own part of the fragment.
const own = (selector) => [...document.querySelectorAll(selector)].filter((one) => !one.closest(".explorer"));
const sections = new Map(own("details").map((one) => [one, one.open]));
const fields = new Map(own("select[name]").map((one) => [one, one.value]));
const idOf = (section) => section.querySelector("summary").id;

/** Writes the view into the fragment; `at` is the id of a heading. */
function write(at) {
  const all = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  const toggled = [...sections].filter(([one, first]) => one.open !== first).map(([one]) => idOf(one)).join(",");
  const values = [...fields].map(([{ name, value }, first]) => [name, value === first ? "" : value]);
  for (const [name, value] of [["at", at ?? all.get("at")], ["toggled", toggled], ...values]) {
    if (value) all.set(name, value);
    else all.delete(name);
  }
  if (`#${all}` !== (location.hash || "#")) history.replaceState(null, "", `#${all}`);
}

/** Shows the view of the fragment; a fragment that is only the id of a heading changes nothing else. */
function read() {
  const text = location.hash.slice(1);
  const [id] = text.includes("=") ? [] : new URLSearchParams(text).keys();
  if (id !== undefined) write(document.getElementById(id) ? id : "");
  const all = new URLSearchParams(location.hash.slice(1));
  const toggled = (all.get("toggled") ?? "").split(",");
  for (const [one, first] of sections) one.open = first !== toggled.includes(idOf(one));
  for (const [field, first] of fields) {
    const value = all.get(field.name) ?? first;
    if (field.value === value) continue;
    field.value = value;
    for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
  }
  const target = document.getElementById(all.get("at"));
  for (let one = target?.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
  target?.scrollIntoView();
}

const headings = [...document.querySelectorAll("main > section:not(.text) > h2")];
const links = headings.map(({ id, textContent }) => element("a", { href: `#${id}`, textContent }));
if (links.length > 2) document.querySelector(".contents").append(...links);
if (window === window.parent) { // the frame of a notebook has no address
  if (location.hash) read();
  addEventListener("hashchange", read);
  for (const kind of ["toggle", "input", "change"]) document.addEventListener(kind, () => write(), true); // a toggle does not bubble
}
