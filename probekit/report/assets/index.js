// Searches and ticks the runs, and polls the server for rows that have changed.

const SECONDS = 2;
const table = document.querySelector("#runs");
const body = table.tBodies[0];
const search = document.querySelector("#search");
const gone = document.querySelector("#gone");

// What the reader typed and ticked is kept with the place in the browser's history, to which Back returns.
search.value = history.state?.typed ?? "";
const ticked = new Set(history.state?.ticked);

/** Shows the rows that contain every word, and enables the buttons that fit the ticked ones. */
function show() {
  const words = search.value.toLowerCase().split(/\s+/);
  const rows = [...body.rows];
  const boxes = rows.map((row) => row.querySelector("input")).filter(Boolean);
  for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  for (const box of boxes) box.checked = ticked.has(box.value);
  const n = boxes.filter((box) => box.checked).length;
  history.replaceState({ typed: search.value, ticked: [...ticked] }, "");
  const found = rows.filter((row) => !row.hidden).length;
  document.querySelector("#count").textContent = `${found} of ${rows.length} runs${n ? `, ${n} ticked` : ""}`;
  document.querySelector("[formaction='/overlay']").disabled = n < 2;
  document.querySelector("[formaction='/compare']").disabled = n !== 2;
}

/** Replaces the rows that differ from those of the server; ticks, focus and order of others stay. */
function renew(fresh) {
  const before = new Map([...body.rows].map((row) => [row.dataset.run, row]));
  for (const row of [...fresh.rows].reverse()) {
    const old = before.get(row.dataset.run);
    before.delete(row.dataset.run);
    if (!old) body.prepend(row);
    else if (old.innerHTML !== row.innerHTML) old.replaceWith(row);
  }
  for (const row of before.values()) row.remove();
  resort(table);
  show();
}

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch("/", { cache: "no-store" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    gone.hidden = true;
    const fresh = page.querySelector("#runs");
    if (fresh) renew(fresh.tBodies[0]);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    gone.hidden = false;
  }
}

search.addEventListener("input", show);
search.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
table.addEventListener("change", ({ target }) => {
  if (target.checked) ticked.add(target.value);
  else ticked.delete(target.value);
  show();
});
show();

// A saved copy of the page has no server to poll.
if (location.protocol.startsWith("http")) setInterval(refresh, SECONDS * 1000);
