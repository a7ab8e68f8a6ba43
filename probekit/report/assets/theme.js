// Light or dark colours: those of the system, or those that the reader chose for all pages.

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const systemTheme = () => (darkSystem.matches ? "dark" : "light");
// Storage is forbidden in sandboxed frames of notebooks; the choice then lasts until the page closes.
let chosenTheme = null;
try {
  chosenTheme = localStorage.getItem("theme");
} catch {}

function showTheme() {
  document.documentElement.dataset.theme = chosenTheme ?? systemTheme();
  document.dispatchEvent(new Event("themechange"));
}

/** Changes the theme; choosing that of the system follows the system again. */
function switchTheme() {
  const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  chosenTheme = other === systemTheme() ? null : other;
  try {
    if (chosenTheme) localStorage.setItem("theme", chosenTheme);
    else localStorage.removeItem("theme");
  } catch {}
  showTheme();
}

darkSystem.addEventListener("change", showTheme);
matchMedia("print").addEventListener("change", showTheme);
showTheme();
