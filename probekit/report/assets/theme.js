// Light or dark colours: those of the system, or those that the reader chose for all pages.

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
