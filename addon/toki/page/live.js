// Keeps what is shown up to date: asks for this page again and puts its parts in place of the old ones.
// Without it the page shows the same and stands still. What has the focus, or was opened, is left alone.
"use strict";

const PACE = 3000; // milliseconds from one answer to the next question
const button = document.getElementById("live");
let timer;

async function fetched() {
  const answer = await fetch(location.href, { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.statusText);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
}

function replace(fresh) {
  for (const part of document.querySelectorAll("[data-live]")) {
    const newer = fresh.getElementById(part.id);
    const used = part.contains(document.activeElement) || part.querySelector("details[open]");
    if (newer && !used && newer.innerHTML !== part.innerHTML) part.replaceChildren(...newer.childNodes);
  }
}

async function turn() {
  if (!document.hidden) {
    try {
      replace(await fetched());
      button.classList.remove("lost");
      button.textContent = "Live";
    } catch {
      button.classList.add("lost");
      button.textContent = "toki does not answer";
    }
  }
  if (button.getAttribute("aria-pressed") === "true") timer = setTimeout(turn, PACE);
}

button.addEventListener("click", () => {
  const on = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(on));
  clearTimeout(timer);
  if (on) turn();
});
button.hidden = false;
timer = setTimeout(turn, PACE);
