"use strict";
// A box of the graph shows its step's card below the graph, when pointed at, focused or tapped.
const inspector = document.getElementById("inspector");
const boxes = document.querySelectorAll(".dag a");
const show = (box) => {
  const card = document.querySelector(box.getAttribute("href") + " .card");
  const title = document.createElement("h3");
  title.textContent = box.getAttribute("aria-label");
  inspector.replaceChildren(title, card.cloneNode(true));
  boxes.forEach((other) => other.removeAttribute("aria-current"));
  box.setAttribute("aria-current", "true");
};
boxes.forEach((box) => {
  box.addEventListener("pointerenter", () => show(box));
  box.addEventListener("focus", () => show(box));
  box.addEventListener("click", (event) => {
    event.preventDefault();
    show(box);
  });
});
// A link to a step opens it.
const open = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", open);
open();
