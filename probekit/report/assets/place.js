// Ids of headings, a list of contents, and the view of the reader in the URL fragment.

const taken = new Set([...document.querySelectorAll("[id]")].map((one) => one.id));
for (const heading of document.querySelectorAll("h1, h2, h3, summary")) {
  const words = heading.textContent.toLowerCase().match(/[\p{L}\p{N}]+/gu)?.slice(0, 8) ?? ["part"];
  let [id, number] = [words.join("-"), 1];
  while (taken.has(id)) id = [...words, ++number].join("-");
  heading.id ||= id;
  taken.add(heading.id);
}

// Sections that the reader opened or closed, and menus and fields that have a name.
const isOwn = (one) => !one.closest(".explorer"); // the explorer writes its own part of the fragment
const sections = new Map([...document.querySelectorAll("details")].filter(isOwn).map((one) => [one, one.open]));
const fields = new Map([...document.querySelectorAll("select[name], input[name]")].filter(isOwn).map((one) => [one, one.value]));
const idOf = (section) => section.querySelector("summary").id;

/** Writes the view into the fragment; `at` is the id of a heading. */
function write(at) {
  const { hash } = location;
  const all = new URLSearchParams(hash.includes("=") ? hash.slice(1) : "");
  const toggled = [...sections].filter(([one, first]) => one.open !== first).map(([one]) => idOf(one)).join(",");
  const values = [...fields].map(([field, first]) => [field.name, field.value === first ? "" : field.value]);
  for (const [name, value] of [["at", at ?? all.get("at")], ["toggled", toggled], ...values]) {
    if (value) all.set(name, value);
    else all.delete(name);
  }
  if (`#${all}` === (hash || "#")) return;
  try {
    history.replaceState(null, "", `#${all}`);
  } catch {} // the frame of a notebook has no address
}

function goTo(id) {
  const target = document.getElementById(id);
  for (let one = target?.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
  target?.scrollIntoView();
}

/** Shows the view of the fragment. A fragment that is only an id leaves sections and menus as they are. */
function read() {
  const text = location.hash.slice(1);
  if (!text.includes("=")) {
    write(decodeURIComponent(text));
    return goTo(decodeURIComponent(text));
  }
  const all = new URLSearchParams(text);
  const toggled = (all.get("toggled") ?? "").split(",");
  for (const [one, first] of sections) one.open = first !== toggled.includes(idOf(one));
  for (const [field, first] of fields) {
    const value = all.get(field.name) ?? first;
    if (field.value === value) continue;
    field.value = value;
    for (const kind of ["input", "change"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
  }
  goTo(all.get("at"));
}

const contents = document.querySelector(".contents");
const headings = [...document.querySelectorAll("main > section:not(.text) > h2")];
if (headings.length > 2) {
  contents.append(...headings.map(({ id, textContent }) => (
    Object.assign(document.createElement("a"), { href: `#${id}`, textContent })
  )));
}
if (location.hash) read();
addEventListener("hashchange", read);
for (const kind of ["toggle", "input", "change"]) document.addEventListener(kind, () => write(), true); // a toggle does not bubble
