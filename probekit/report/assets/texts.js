// Shows the prediction of the probe at the hovered token, at the bottom of the window.

const readout = document.querySelector(".readout");

document.addEventListener("pointerover", (event) => {
  const token = event.target.closest(".token");
  readout.hidden = !token;
  if (!token) return;
  const shown = token.querySelector("bdi").textContent;
  const space = token.querySelector("i")?.textContent ?? "";
  readout.textContent = `[${token.dataset.at}] ${space}${shown}  ${token.dataset.answer}`;
});
