// What every page has: light or dark colours, a clipboard, and a function that makes elements.

// Colours are those of the system, or those that the reader chose for all pages; paper is light.
const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const paper = matchMedia("print");
let chosenTheme = null;
try {
  chosenTheme = localStorage.getItem("theme") || null;
} catch {} // storage is forbidden in frames of notebooks; a choice then lasts until the page closes

function showTheme(event) {
  const onScreen = chosenTheme ?? (darkSystem.matches ? "dark" : "light");
  const isPaper = paper.matches || event?.type === "beforeprint";
  document.documentElement.dataset.theme = isPaper ? "light" : onScreen;
  document.dispatchEvent(new Event("themechange"));
}

/** Changes the theme; choosing that of the system follows the system again. */
function switchTheme() {
  const isDark = document.documentElement.dataset.theme !== "dark";
  chosenTheme = isDark === darkSystem.matches ? null : { true: "dark", false: "light" }[isDark];
  try {
    localStorage.setItem("theme", chosenTheme ?? "");
  } catch {}
  showTheme();
}

for (const query of [darkSystem, paper]) query.addEventListener("change", showTheme);
for (const kind of ["beforeprint", "afterprint"]) addEventListener(kind, showTheme);
showTheme();

/** A new element with properties and children. */
function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Copies text to the clipboard, also in frames without clipboard permission (notebooks). */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { value: text });
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    if (!isCopied) throw new Error("The browser does not allow this page to copy to the clipboard.");
  }
}
