// Figures are drawn before the page has its final width.
window.addEventListener("load", () => window.dispatchEvent(new Event("resize")));
