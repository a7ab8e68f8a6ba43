// Returns the texts of the attention explorer, its focus and its visible parts, a line for each.
(() => {
  const texts = (selector) => [...document.querySelectorAll(selector)].map((part) => part.textContent);
  const active = document.activeElement;
  const matrix = document.querySelector(".matrix");
  const parts = {
    heads: texts(".view:not([hidden]) .name"),
    readout: texts(".view:not([hidden]) .readout"),
    facts: texts(".view:not([hidden]) .facts span:first-child"),
    reason: texts(".reason"),
    refusal: texts(".refusal:not([hidden])"),
    status: texts(".status"),
    arrangement: texts(".arrangement"),
    passed: texts(".passed"),
    "heads in order": texts(".grid b"),
    "filtered out": texts(".grid .out b"),
    scores: texts(".grid small"),
    "colours of tokens": [...document.querySelectorAll(".view:not([hidden]) .token")].map((token) => token.style.background || "none"),
    focus: [active.getAttribute("aria-label") ?? (active === document.body ? "" : active.textContent)],
    "reached by tab": [...document.querySelectorAll(".token[tabindex='0']")].map((token) => token.dataset.at),
    "matrix in words": [matrix.getAttribute("aria-label")],
    seen: [".matrix", ".lines", ".zoom", ".nearby"].filter((part) => document.querySelector(part).checkVisibility()),
  };
  return Object.entries(parts).map(([name, values]) => `${name}: ${values.filter(Boolean).join(" | ")}`.trim()).join("\n");
})()
