// What every page has: light or dark colours, and a clipboard.

// Colours are those of the system, or those that the reader chose for all pages.
const darkSystem = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
try {
  chosenTheme = localStorage.getItem("theme") || null;
} catch {} // storage is forbidden in frames of notebooks; a choice then lasts until the page closes

function showTheme() {
  document.documentElement.dataset.theme = chosenTheme ?? (darkSystem.matches ? "dark" : "light");
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

for (const query of [darkSystem, matchMedia("print")]) query.addEventListener("change", showTheme);
showTheme();

/** Copies text to the clipboard, also in frames without clipboard permission (notebooks). */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    if (!isCopied) throw new Error("The browser does not allow this page to copy to the clipboard.");
  }
}
