// What is wider than its place scrolls sideways. Where more is hidden at a side, the style lets it fade there.
"use strict";

const WIDE = "article :is(.ap-figure, mjx-container, .pst-scrollable-table-container, .cell_output .output, pre)";

function noteHidden(place) {
  const hidden = Math.max(0, place.scrollWidth - place.clientWidth);
  place.toggleAttribute("data-wide", hidden > 1); // a pixel may be rounding
  place.style.setProperty("--ap-before", `${place.scrollLeft}px`);
  place.style.setProperty("--ap-after", `${Math.max(0, hidden - place.scrollLeft)}px`);
}

addEventListener("load", async () => {
  await window.MathJax?.startup?.promise; // the equations are set only then
  const sizes = new ResizeObserver((changes) => changes.forEach((change) => noteHidden(change.target)));
  for (const place of document.querySelectorAll(WIDE)) {
    sizes.observe(place);
    place.addEventListener("scroll", () => noteHidden(place), { passive: true });
  }
});
