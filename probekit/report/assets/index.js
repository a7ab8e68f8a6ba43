// Polls the server for the list of runs and updates the page when it changes.

const SECONDS = 2;
const list = document.querySelector("#runs");
const gone = document.querySelector("#gone");

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch("/", { cache: "no-store" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const runs = page.querySelector("#runs");
    gone.hidden = true;
    // Replaced only on change, to keep focus and selection.
    if (runs && runs.innerHTML !== list.innerHTML) list.replaceChildren(...runs.childNodes);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    gone.hidden = false;
  }
}

// A saved copy of the page has no server to poll.
if (location.protocol.startsWith("http")) setInterval(refresh, SECONDS * 1000);
